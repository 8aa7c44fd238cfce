/* The agent of the rank of dpt-bench train. It gives the rank the commands of one generation
 * (worker/train/rank.h), and repeats the last command with every heartbeat. */
#include "worker/bench/bench_train_rank.h"

#include "base/clock.h"
#include "rendezvous/proto/message.h"
#include "worker/agent/rank_protocol.h"
#include "worker/train/rank.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    GENERATION = 1,
    HEARTBEAT_MS = 50,
    LEASE_MS = 100 * 1000,
    QUIET_MS_MAX = 10 * 60 * 1000 /* the longest time without a new step or phase */
};

struct bench_rank {
    pthread_t thread;
    struct dpt_rank_start start;
    struct dpt_rank_options options;
    int fd; /* the agent's end of the link */
    Dpt__RankCommand command;
    int64_t beat_ms;        /* of the last heartbeat */
    Dpt__RankToAgent *said; /* the newest report; NULL: none yet */
    uint8_t frame[DPT_RANK_FRAME_BYTES_MAX];
};

static void *train_as_rank(void *ctx)
{
    struct bench_rank *r = ctx;
    (void)dpt_rank_run(&r->options); /* the rank reports its errors to the agent */
    return NULL;
}

static enum dpt_status send_command(struct bench_rank *r, Dpt__RankCommand command, Dpt__Plan *plan,
                                    struct dpt_err *err)
{
    const int64_t now_ms = dpt_now_ms();
    Dpt__AgentToRank message = DPT__AGENT_TO_RANK__INIT;
    size_t bytes = 0;
    message.command = r->command = command;
    message.generation = GENERATION;
    message.plan = plan;
    message.lease_until_ms = now_ms + LEASE_MS;
    message.grant_step = -1;
    message.prepare_ms = message.plan_ms = message.confirmed_ms = now_ms;
    DPT_TRY(dpt_message_encode(&message.base, r->frame, sizeof r->frame, &bytes, err));
    return dpt_rank_link_send(r->fd, r->frame, bytes, err);
}

/* The plan of a world of one rank, which begins at step 0 from the seed. */
static enum dpt_status send_plan(struct bench_rank *r, struct dpt_err *err)
{
    uint8_t nonce[DPT_PROTO_NONCE_BYTES] = {GENERATION};
    Dpt__PlanRank rank = DPT__PLAN_RANK__INIT, *ranks[] = {&rank};
    Dpt__Plan plan = DPT__PLAN__INIT;
    rank.shm_addr = r->said->state->shm_addr;
    rank.tcp_addr = r->said->state->tcp_addr;
    rank.writes_log = true;
    plan.generation = GENERATION;
    plan.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    plan.world_size = plan.n_nodes = plan.n_hosts = plan.checkpoint_writers = 1;
    plan.n_ranks = 1;
    plan.ranks = ranks;
    plan.digest = (char *)(uintptr_t) "bench";
    plan.load_checkpoint = -1;
    plan.from_seed = true;
    plan.cause = plan.cause_kind = (char *)(uintptr_t) "start";
    return send_command(r, DPT__RANK_COMMAND__COMMAND_PLAN, &plan, err);
}

/* Repeats the last command, which renews the lease. A plan is not repeated: the rank has it. A
 * command that a full socket drops is sent again later; the report of a rank that has ended may
 * still be unread. */
static enum dpt_status send_heartbeat(struct bench_rank *r, struct dpt_err *err)
{
    if (r->command == DPT__RANK_COMMAND__COMMAND_STANDBY ||
        r->command == DPT__RANK_COMMAND__COMMAND_PLAN || dpt_now_ms() - r->beat_ms < HEARTBEAT_MS)
        return DPT_OK;
    r->beat_ms = dpt_now_ms();
    const enum dpt_status status = send_command(r, r->command, NULL, err);
    return status == DPT_INPROGRESS || status == DPT_EPEER ? DPT_OK : status;
}

/* Waits for the rank's next report, for a heartbeat at most. */
static enum dpt_status read_report(struct bench_rank *r, struct dpt_err *err)
{
    size_t bytes = 0;
    Dpt__RankToAgent *said = NULL;
    const enum dpt_status status = dpt_rank_link_recv(r->fd, HEARTBEAT_MS, r->frame, &bytes, err);
    if (status == DPT_INPROGRESS)
        return DPT_OK;
    DPT_TRY(status);
    DPT_TRY(dpt_message_decode_rank_to_agent(r->frame, bytes, &said, err));
    dpt_message_free_rank_to_agent(&r->said);
    r->said = said;
    if (said->fatal || said->broken || said->state->failed_generation == GENERATION)
        return dpt_fail(err, DPT_EREFUSED, "%s", said->state->text);
    return DPT_OK;
}

static int64_t applied_step(const struct bench_rank *r)
{
    return r->said ? r->said->state->step_applied : -1;
}

/* Waits for the phase and for `step` applied steps. A rank that has finished does no more steps. */
static enum dpt_status await_rank_phase(struct bench_rank *r, Dpt__RankPhase phase, int64_t step,
                                        struct dpt_err *err)
{
    int64_t seen = applied_step(r), deadline = dpt_now_ms() + QUIET_MS_MAX;
    for (;;) {
        const Dpt__RankPhase now = r->said ? r->said->state->phase : DPT__RANK_PHASE__RANK_STARTING;
        if ((now == phase && applied_step(r) >= step) || now == DPT__RANK_PHASE__RANK_FINISHED)
            return DPT_OK;
        if (applied_step(r) > seen) {
            seen = applied_step(r);
            deadline = dpt_now_ms() + QUIET_MS_MAX;
        }
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "the rank did not go on within %d ms at step %lld",
                            QUIET_MS_MAX, (long long)seen);
        DPT_TRY(send_heartbeat(r, err));
        DPT_TRY(read_report(r, err));
    }
}

static enum dpt_status form_generation(struct bench_rank *r, struct dpt_err *err)
{
    DPT_TRY(await_rank_phase(r, DPT__RANK_PHASE__RANK_STANDBY, -1, err));
    DPT_TRY(send_command(r, DPT__RANK_COMMAND__COMMAND_PREPARE, NULL, err));
    DPT_TRY(await_rank_phase(r, DPT__RANK_PHASE__RANK_QUIESCED, -1, err));
    DPT_TRY(send_plan(r, err));
    DPT_TRY(await_rank_phase(r, DPT__RANK_PHASE__RANK_READY, -1, err));
    return send_command(r, DPT__RANK_COMMAND__COMMAND_GO, NULL, err);
}

enum dpt_status bench_rank_start(const struct dpt_config *config, struct bench_rank **ret,
                                 struct dpt_err *err)
{
    int fds[2];
    struct bench_rank *r = calloc(1, sizeof *r);
    if (!r)
        return dpt_fail_nomem(err, "a rank");
    enum dpt_status status = dpt_rank_link_pair(fds, err);
    if (status != DPT_OK) {
        free(r);
        return status;
    }
    r->fd = fds[0];
    r->start = (struct dpt_rank_start){.node = "bench",
                                       .ranks = 1,
                                       .spawn = 1,
                                       .threads = config->cluster.threads,
                                       .address = "127.0.0.1"};
    r->options = (struct dpt_rank_options){
        .start = &r->start, .config = config, .link_fd = fds[1], .step_fd = -1};
    DPT_ASSERT(pthread_create(&r->thread, NULL, train_as_rank, r) == 0);
    status = form_generation(r, err);
    if (status == DPT_OK)
        *ret = r;
    else
        bench_rank_destroy(&r);
    return status;
}

enum dpt_status bench_rank_await_step(struct bench_rank *r, int64_t step, int64_t *ret_step,
                                      struct dpt_err *err)
{
    DPT_TRY(await_rank_phase(r, DPT__RANK_PHASE__RANK_RUNNING, step, err));
    *ret_step = applied_step(r);
    return DPT_OK;
}

enum dpt_status bench_rank_finish(struct bench_rank *r, struct dpt_err *err)
{
    DPT_TRY(await_rank_phase(r, DPT__RANK_PHASE__RANK_FINISHED, 0, err));
    return send_command(r, DPT__RANK_COMMAND__COMMAND_EXIT, NULL, err);
}

void bench_rank_destroy(struct bench_rank **r)
{
    if (!*r)
        return;
    (void)close((*r)->fd); /* the rank ends when its link does */
    (void)pthread_join((*r)->thread, NULL);
    dpt_message_free_rank_to_agent(&(*r)->said);
    free(*r);
    *r = NULL;
}
