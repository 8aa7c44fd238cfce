/* The scripted agent. One thread, a poll loop over the ranks' sockets with a deadline on every
 * wait. */
#include "tests/worker/train/director_internal.h"

#include "base/clock.h"
#include "rendezvous/proto/message.h"
#include "worker/train/rank.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEASE_MS = 100000, HEARTBEAT_MS = 50 };

void director_fail(const char *what)
{
    (void)fprintf(stderr, "director: %s\n", what);
    abort();
}

void director_fail_at(const struct director *d, const char *what)
{
    (void)fprintf(stderr, "director: generation %llu, best step %lld\n",
                  (unsigned long long)d->generation, (long long)d->best_step);
    for (int i = 0; i < d->n; i++) {
        const struct member *m = &d->member[i];
        if (m->alive && m->said)
            (void)fprintf(
                stderr, "  rank %d: %s of generation %llu, step %lld, failed generation %llu: %s\n",
                i,
                protobuf_c_enum_descriptor_get_value(&dpt__rank_phase__descriptor,
                                                     (int)m->said->state->phase)
                    ->name,
                (unsigned long long)m->said->state->generation,
                (long long)m->said->state->step_applied,
                (unsigned long long)m->said->state->failed_generation, m->said->state->text);
    }
    director_fail(what);
}

struct director *director_create(const struct dpt_config *config, const char *dir)
{
    static uint8_t n_directors;
    struct director *d = calloc(1, sizeof *d);
    d->frame = malloc(DPT_RANK_FRAME_BYTES_MAX);
    d->config = *config;
    d->number = n_directors++;
    d->best_step = -1;
    (void)snprintf(d->config.log.dir, sizeof d->config.log.dir, "%s", dir);
    (void)snprintf(d->config.checkpoint.dir, sizeof d->config.checkpoint.dir, "%s/checkpoints",
                   dir);
    return d;
}

struct director *director_create_without_checkpoints(const struct dpt_config *config,
                                                     const char *dir)
{
    struct director *d = director_create(config, dir);
    d->config.checkpoint.dir[0] = '\0';
    return d;
}

void director_read_checkpoints(struct director *d, const char *dir)
{
    (void)snprintf(d->config.checkpoint.dir, sizeof d->config.checkpoint.dir, "%s/checkpoints",
                   dir);
}

void director_pack_weights(struct director *d, enum dpt_pack_weights mode)
{
    d->config.cluster.pack_weights = mode;
}

void director_offload(struct director *d)
{
    d->config.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
}

void director_on_cpu(struct director *d)
{
    d->config.cluster.device = DPT_DEVICE_CPU;
}

static void *run_rank(void *arg)
{
    struct member *m = arg;
    m->exit_code = dpt_rank_run(&m->options);
    return NULL;
}

void director_send(struct director *d, struct member *m, Dpt__RankCommand command, Dpt__Plan *plan)
{
    Dpt__AgentToRank message = DPT__AGENT_TO_RANK__INIT;
    message.command = m->last = command;
    message.generation = d->generation;
    message.plan = plan;
    message.leaving = d->leaving;
    message.lease_until_ms = dpt_now_ms() + LEASE_MS;
    message.grant_step =
        m->said && m->said->state && !d->withholds ? m->said->state->grant_step : -1;
    message.prepare_ms = message.plan_ms = dpt_now_ms();
    message.confirmed_ms = dpt_now_ms();
    message.rescue_by_ms = d->rescue_by_ms;
    size_t bytes = 0;
    struct dpt_err err;
    if (dpt_message_encode(&message.base, d->frame, DPT_RANK_FRAME_BYTES_MAX, &bytes, &err) !=
        DPT_OK)
        director_fail(err.text);
    enum dpt_status status = dpt_rank_link_send(m->fd, d->frame, bytes, &err);
    if (status != DPT_OK && status != DPT_EPEER)
        director_fail("a command could not be sent");
}

/* An agent repeats itself with every heartbeat. */
static void heartbeat(struct director *d)
{
    if (dpt_now_ms() - d->beat_ms < HEARTBEAT_MS)
        return;
    d->beat_ms = dpt_now_ms();
    for (int i = 0; i < d->n; i++)
        /* A plan is not repeated: it is on its way, and a rank asks for nothing. */
        if (d->member[i].alive && d->generation > 0 &&
            d->member[i].last != DPT__RANK_COMMAND__COMMAND_PLAN)
            director_send(d, &d->member[i], d->member[i].last, NULL);
}

void director_listen_once(struct director *d, int wait_ms)
{
    heartbeat(d);
    struct pollfd fds[DIRECTOR_RANKS_MAX];
    for (int i = 0; i < d->n; i++)
        fds[i] = (struct pollfd){.fd = d->member[i].alive ? d->member[i].fd : -1, .events = POLLIN};
    if (poll(fds, (nfds_t)d->n, wait_ms) <= 0)
        return;
    for (int i = 0; i < d->n; i++) {
        struct member *m = &d->member[i];
        size_t bytes = 0;
        struct dpt_err err;
        if (fds[i].revents == 0 || dpt_rank_link_recv(m->fd, 0, d->frame, &bytes, &err) != DPT_OK)
            continue;
        Dpt__RankToAgent *said = NULL;
        if (dpt_message_decode_rank_to_agent(d->frame, bytes, &said, &err) != DPT_OK)
            director_fail(err.text);
        bool asks = said->state->grant_step >= 0 &&
                    (!m->said || m->said->state->grant_step != said->state->grant_step);
        dpt_message_free_rank_to_agent(&m->said);
        m->said = said;
        if (said->state->step_applied > d->best_step)
            d->best_step = said->state->step_applied;
        if (asks)
            director_send(d, m, m->last, NULL);
    }
}

bool director_in_phase(const struct director *d, const struct member *m, Dpt__RankPhase phase)
{
    return m->said && m->said->state->phase == phase &&
           (phase == DPT__RANK_PHASE__RANK_STANDBY || m->said->state->generation == d->generation);
}

bool director_says_broken(const struct director *d, const struct member *m)
{
    return m->said && m->said->state->failed_generation == d->generation;
}

void director_bench(struct director *d, int handle, bool benched)
{
    d->member[handle].benched = benched;
}

void director_one_writes(struct director *d)
{
    d->one_writes = true;
}

void director_retire(struct director *d, int handle)
{
    d->member[handle].retires = true;
}

void director_respawn(struct director *d)
{
    d->respawns = true;
}

void director_allow_fresh(struct director *d)
{
    d->allow_fresh = true;
}

int director_start(struct director *d, int host)
{
    return director_start_threads(d, host,
                                  d->config.cluster.threads > 0 ? d->config.cluster.threads : 1);
}

static enum dpt_status (*open_device)(const struct dpt_rank_start *start, struct dpt_device **ret,
                                      struct dpt_err *err);

void director_open_device_with(enum dpt_status (*open)(const struct dpt_rank_start *start,
                                                       struct dpt_device **ret,
                                                       struct dpt_err *err))
{
    open_device = open;
}

static enum dpt_status (*load_nccl)(const struct dpt_rank_start *start,
                                    const struct dpt_nccl_calls **ret, void **ret_ctx,
                                    struct dpt_err *err);

void director_use_nccl(enum dpt_status (*load)(const struct dpt_rank_start *start,
                                               const struct dpt_nccl_calls **ret, void **ret_ctx,
                                               struct dpt_err *err))
{
    load_nccl = load;
}

void director_claim(struct director *d, int64_t number, const char *token)
{
    d->claim_number = number;
    d->claim_token = token;
}

int director_start_threads(struct director *d, int host, int threads)
{
    if (d->n == DIRECTOR_RANKS_MAX)
        director_fail("too many ranks");
    int handle = d->n++;
    struct member *m = &d->member[handle];
    struct dpt_err err;
    int fds[2];
    if (dpt_rank_link_pair(fds, &err) != DPT_OK)
        director_fail(err.text);
    m->fd = fds[0];
    m->host = host;
    m->alive = true;
    m->config = d->config;
    m->start = (struct dpt_rank_start){.local_rank = handle,
                                       .ranks = 1,
                                       .spawn = d->respawns ? 2 : 1,
                                       .threads = threads,
                                       .allow_fresh = d->allow_fresh,
                                       .claim_number = d->claim_number,
                                       .address = "127.0.0.1"};
    if (d->claim_number > 0)
        (void)snprintf(m->start.claim_token, sizeof m->start.claim_token, "%s", d->claim_token);
    m->options = (struct dpt_rank_options){.start = &m->start,
                                           .config = &m->config,
                                           .link_fd = fds[1],
                                           .step_fd = -1,
                                           .open_device = open_device,
                                           .load_nccl = load_nccl};
    if (pthread_create(&m->thread, NULL, run_rank, m) != 0)
        director_fail("no thread");
    int64_t deadline = dpt_now_ms() + DIRECTOR_DEADLINE_MS;
    while (!director_in_phase(d, m, DPT__RANK_PHASE__RANK_STANDBY)) {
        if (m->said && (m->said->fatal || m->said->broken))
            break;
        if (dpt_now_ms() > deadline)
            director_fail("a rank did not become a spare in time");
        director_listen_once(d, 100);
    }
    return handle;
}

void director_kill(struct director *d, int handle)
{
    struct member *m = &d->member[handle];
    if (!m->alive)
        return;
    m->alive = false;
    d->lost = true;
    (void)close(m->fd);
    (void)pthread_join(m->thread, NULL);
    dpt_message_free_rank_to_agent(&m->said);
}

void director_destroy(struct director **director)
{
    struct director *d = *director;
    for (int i = 0; i < d->n; i++)
        director_kill(d, i);
    free(d->frame);
    free(d);
    *director = NULL;
}

void director_tell_all(struct director *d, Dpt__RankCommand command)
{
    for (int i = 0; i < d->n; i++)
        if (d->member[i].alive)
            director_send(d, &d->member[i], command, NULL);
}

void director_leave(struct director *d)
{
    d->leaving = true; /* said with every word from now on */
    for (int i = 0; i < d->n; i++)
        if (d->member[i].alive)
            director_send(d, &d->member[i], d->member[i].last, NULL);
}

void director_withhold_grants(struct director *d)
{
    d->withholds = true;
}

void director_listen(struct director *d, int ms)
{
    int64_t end = dpt_now_ms() + ms;
    for (int64_t left = ms; left > 0; left = end - dpt_now_ms())
        director_listen_once(d, (int)left);
}

void director_send_prepare(struct director *d)
{
    d->generation++;
    director_tell_all(d, DPT__RANK_COMMAND__COMMAND_PREPARE);
}

int64_t director_best_step(const struct director *d)
{
    return d->best_step;
}

int64_t director_step(const struct director *d, int handle)
{
    return d->member[handle].said ? d->member[handle].said->state->step_applied : -1;
}

uint32_t director_work_done(const struct director *d, int handle)
{
    return d->member[handle].said->state->work_done;
}

int64_t director_step_ms_median(const struct director *d, int handle)
{
    return d->member[handle].said ? d->member[handle].said->step_ms_median : 0;
}

int64_t director_checkpoint_step(const struct director *d, int handle)
{
    return d->member[handle].said->state->checkpoint_step;
}

int64_t director_steps_lost(const struct director *d)
{
    return d->steps_lost;
}

bool director_fatal(const struct director *d, int handle, const char **ret_text)
{
    const struct member *m = &d->member[handle];
    if (!m->said || !m->said->fatal)
        return false;
    *ret_text = m->said->state->text;
    return true;
}

int director_outcomes_handed(const struct director *d)
{
    return d->outcomes_handed;
}
