/* The world: time, dispatch, start and end of a simulation. */
#include "tests/sim/faults.h"
#include "tests/sim/operator.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void sim_say(struct sim *sim, const char *fmt, ...)
{
    if (!sim->verbose && sim->trace == NULL)
        return;
    FILE *out = sim->trace != NULL ? sim->trace : stdout;
    (void)fprintf(out, "%6lld  %s", (long long)sim->now_ms, sim->host == sim ? "" : "| ");
    va_list ap;
    va_start(ap, fmt);
    (void)vfprintf(out, fmt, ap);
    va_end(ap);
    (void)fputc('\n', out);
}

void sim_fail(struct sim *sim, const char *fmt, ...)
{
    char *failure = sim->host->failure;
    const size_t bytes = sizeof sim->failure;
    if (failure[0] != '\0')
        return;
    int at = snprintf(failure, bytes, "at %lld ms%s: ", (long long)sim->now_ms,
                      sim->host == sim ? "" : ", second run");
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(failure + at, bytes - (size_t)at, fmt, ap);
    va_end(ap);
    sim_say(sim, "FAILED %s", failure);
}

void sim_push(struct sim *sim, struct event event)
{
    DPT_ASSERT(event.at_ms >= sim->now_ms);
    event.beside = sim->host != sim;
    queue_push(&sim->host->queue, &event);
}

void sim_pack(struct sim *sim, const ProtobufCMessage *message, struct event *event)
{
    static uint8_t packed[DPT_MESSAGE_BYTES_MAX];
    struct dpt_err err;
    event->bytes = 0;
    if (dpt_message_encode(message, packed, sizeof packed, &event->bytes, &err) != DPT_OK)
        sim_fail(sim, "encode: %s", err.text);
    event->data = malloc(event->bytes + 1);
    DPT_ASSERT(event->data != NULL);
    memcpy(event->data, packed, event->bytes);
}

int64_t sim_delay(struct sim *sim, int64_t low_ms, int64_t high_ms)
{
    return sim->now_ms + rng_range(&sim->rng, low_ms, high_ms);
}

int64_t sim_saved_step(const struct sim *sim)
{
    return sim->checkpoint > sim->rescue ? sim->checkpoint : sim->rescue;
}

void defer(struct event **list, size_t *n, size_t *max, const struct event *event)
{
    if (*n == *max) {
        *max = *max == 0 ? 16 : 2 * *max;
        *list = realloc(*list, *max * sizeof(struct event));
        DPT_ASSERT(*list != NULL);
    }
    (*list)[(*n)++] = *event;
}

static struct sim *create(uint64_t seed, const struct profile *profile, bool verbose, FILE *trace)
{
    struct sim *sim = calloc(1, sizeof *sim);
    DPT_ASSERT(sim != NULL);
    sim->seed = seed;
    sim->run = "sim";
    sim->host = sim;
    sim->rng.state = seed * 2 + 1;
    sim->profile = *profile;
    sim->verbose = verbose;
    sim->trace = trace;
    sim->checkpoint = sim->rescue = sim->furthest = -1;
    net_clocks_begin(sim);
    return sim;
}

static void add_machines(struct sim *sim)
{
    const struct profile *profile = &sim->profile;
    for (int i = 0; i < profile->machines; i++) {
        if (profile->machines <= 26)
            (void)snprintf(sim->machines[i].id, sizeof sim->machines[i].id, "%c", 'a' + i);
        else
            (void)snprintf(sim->machines[i].id, sizeof sim->machines[i].id, "n%03d", i);
        sim->machines[i].slow = 1;
        sim->machines[i].told_ms = sim->machines[i].refused_ms = -1;
        sim->machines[i].ranks = (uint32_t)profile->ranks;
        bool late = profile->late_ms > 0 && i == profile->machines - 1;
        int64_t at_ms = late ? profile->late_ms : sim_delay(sim, 0, profile->spread_ms);
        sim_push(sim, (struct event){.at_ms = at_ms, .kind = EV_MACHINE_START, .machine = i});
    }
}

struct sim *sim_create(uint64_t seed, const struct profile *profile, bool verbose, FILE *trace)
{
    struct sim *sim = create(seed, profile, verbose, trace);
    sim->has_journal = profile->has_journal;
    sim->has_older_copies = profile->has_older_copies;
    sim->crash_at_record = profile->crash_at_record;
    sim->crash_before_persist = profile->crash_before_persist;
    add_machines(sim);
    server_start(sim);
    faults_plan(sim);
    operator_plan(sim);
    return sim;
}

void sim_add(struct sim *host, uint64_t seed, const struct profile *profile)
{
    struct sim *sim = create(seed, profile, host->verbose, host->trace);
    sim->run = "second";
    sim->host = host;
    sim->core = host->core;
    sim->server_life = host->server_life;
    host->beside = sim;
    add_machines(sim);
    faults_plan(sim);
}

static void free_deferred(struct event *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(list[i].data);
    free(list);
}

void sim_destroy(struct sim **sim_at)
{
    struct sim *sim = *sim_at;
    if (sim->beside != NULL)
        sim_destroy(&sim->beside);
    if (sim->host == sim)
        dpt_rdzv_destroy(&sim->core);
    watch_destroy(&sim->watch);
    disk_destroy(&sim->disk);
    free_deferred(sim->server_deferred, sim->n_server_deferred);
    for (int i = 0; i < MACHINES_MAX; i++) {
        dpt_agent_destroy(&sim->machines[i].agent);
        agent_watch_destroy(&sim->machines[i].watch);
        free_deferred(sim->machines[i].deferred, sim->machines[i].n_deferred);
    }
    for (size_t i = 0; i < sim->n_procs; i++) {
        free_deferred(sim->procs[i]->deferred, sim->procs[i]->n_deferred);
        free(sim->procs[i]);
    }
    free(sim->procs);
    for (size_t i = 0; i < sim->n_groups; i++)
        free(sim->groups[i]);
    queue_fini(&sim->queue);
    free(sim);
    *sim_at = NULL;
}

static void dispatch(struct sim *sim, const struct event *event)
{
    struct proc *proc;
    switch (event->kind) {
    case EV_SERVER_MESSAGE:
    case EV_SERVER_BROKEN:
    case EV_SERVER_TICK:
    case EV_SERVER_START:
    case EV_SERVER_CONT:
    case EV_SERVER_ROUND:
        server_event(sim, event);
        break;
    case EV_RANK_MESSAGE:
    case EV_RANK_TIMER:
    case EV_RANK_BEAT:
    case EV_RANK_BROKEN:
    case EV_RANK_CONT:
        proc = proc_find(sim, event);
        if (proc != NULL && proc->stopped && event->kind != EV_RANK_CONT) {
            const struct event kept = event_copy(event);
            defer(&proc->deferred, &proc->n_deferred, &proc->deferred_max, &kept);
        } else if (proc != NULL && event->kind == EV_RANK_CONT) {
            proc_undefer(sim, proc);
        } else if (proc != NULL && event->kind == EV_RANK_TIMER) {
            if (event->token == proc->timer && !proc->wedged)
                model_timer(sim, proc);
        } else if (proc != NULL && event->kind == EV_RANK_BEAT) {
            model_beat(sim, proc);
        } else if (proc != NULL && event->kind == EV_RANK_BROKEN) {
            if (!proc->wedged)
                model_broken(sim, proc, event->token, (int)event->number);
        } else if (proc != NULL && !proc->wedged) {
            Dpt__AgentToRank *message = NULL;
            struct dpt_err err;
            if (dpt_message_decode_agent_to_rank(event->data, event->bytes, &message, &err) !=
                DPT_OK)
                sim_fail(sim, "agent to rank: %s", err.text);
            else
                model_message(sim, proc, message);
            dpt_message_free_agent_to_rank(&message);
        }
        break;
    case EV_FAULT:
        fault_strike(sim, &sim->faults[event->number]);
        break;
    case EV_OPERATOR:
        operator_event(sim, (int)event->number);
        break;
    default:
        machine_event(sim, event);
    }
}

static bool all_ended(const struct sim *sim)
{
    for (int i = 0; i < sim->profile.machines; i++)
        if (!sim->machines[i].ended || sim->machines[i].agent != NULL)
            return false;
    return sim->beside == NULL || all_ended(sim->beside);
}

static void set_time(struct sim *sim, int64_t now_ms)
{
    sim->now_ms = now_ms;
    if (sim->beside != NULL)
        sim->beside->now_ms = now_ms;
}

void sim_run(struct sim *sim, int64_t until_ms)
{
    struct event event;
    while (sim->failure[0] == '\0' && !all_ended(sim) && sim->queue.n > 0) {
        if (sim->queue.heap[0].at_ms > until_ms) {
            set_time(sim, until_ms);
            return;
        }
        queue_pop(&sim->queue, &event);
        set_time(sim, event.at_ms);
        dispatch(event.beside ? sim->beside : sim, &event);
        free(event.data);
        if (++sim->events > EVENTS_MAX)
            sim_fail(sim, "more than %d events", EVENTS_MAX);
    }
}
