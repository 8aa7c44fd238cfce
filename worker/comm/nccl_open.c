/* Creation of a generation's GPU communicators (nccl_comm.h), with messages over the control:
 *
 *   offers ──► shrink ──► splits ──► verdicts ──all through──► open
 *     │           └ a rank failed: stop, free   ┐
 *     └─ nothing to shrink ─────────────────────┴► id ──► init ──► splits ──► verdicts ──► open
 *
 * A peer's death ends the creation as soon as the control shows the death; at the latest the
 * machine's deadline ends it. A rank that fails sends its verdict. A rank that receives a failed
 * verdict sends its own, too. A rank frees its communicators only after all verdicts: NCCL's abort
 * may wait for other ranks of the host, and it makes the calls of these ranks fail. Such a failure
 * must not count as their fault. */
#include "worker/comm/nccl_comm_state.h"

#include "base/log.h"

#include <string.h>

enum verdict {
    VERDICT_THROUGH,
    VERDICT_FAULT,   /* this rank's device or library failed */
    VERDICT_CAUGHT,  /* the library failed, perhaps because another rank's did */
    VERDICT_GAVE_UP, /* another rank failed, or an abort or a deadline came */
    VERDICT_NONE
};

static enum dpt_status exchange_offers(struct dpt_nccl_comm *c,
                                       const struct dpt_nccl_comm_spec *spec, struct dpt_err *err)
{
    struct dpt_nccl_offer mine = {.generation = spec->generation,
                                  .kept = c->kept,
                                  .kept_rank = c->kept_rank,
                                  .kept_size = c->kept_size,
                                  .n_splits = spec->n_splits};
    uint8_t bytes[DPT_NCCL_OFFER_BYTES];
    memcpy(mine.splits, spec->splits, sizeof mine.splits);
    dpt_nccl_offer_pack(&mine, bytes);
    DPT_TRY(dpt_comm_small_all_gather(c->control, bytes, sizeof bytes, c->gathered, err));
    for (int i = 0; i < dpt_comm_world_size(c->control); i++) {
        DPT_TRY(dpt_nccl_offer_unpack(c->gathered + (size_t)i * sizeof bytes, spec->generation,
                                      &c->offers[i], err));
        if (c->offers[i].n_splits != spec->n_splits)
            return dpt_fail(err, DPT_EPROTO,
                            "rank %d has %d groups of GPUs in its plan, this rank %d", i,
                            c->offers[i].n_splits, spec->n_splits);
    }
    return DPT_OK;
}

/* The receives of verdicts are posted when an attempt begins, so that a rank stops waiting for a
 * rank that has failed. */
static enum dpt_status post_verdict_receives(struct dpt_nccl_comm *c, struct dpt_err *err)
{
    int n = 0;
    for (int i = 0; i < dpt_comm_world_size(c->control); i++) {
        c->verdicts[i] = VERDICT_NONE;
        if (i != dpt_comm_rank(c->control))
            c->verdicts_in[n++] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_RECV, .peer = i, .buf = &c->verdicts[i], .bytes = 1};
    }
    return dpt_comm_exchange(c->control, c->verdicts_in, n, &c->verdicts_op, err);
}

/* The first rank with this verdict; -1: none. */
static int first_rank_with(const struct dpt_nccl_comm *c, enum verdict verdict)
{
    for (int i = 0; i < dpt_comm_world_size(c->control); i++)
        if (c->verdicts[i] == verdict)
            return i;
    return -1;
}

/* The rank to blame according to the verdicts received so far; -1: none. The blamed rank is lost
 * together with its state, and the failure of one rank can make others fail. So only one rank is
 * blamed at a time. */
static int rank_to_blame(const struct dpt_nccl_comm *c)
{
    static const enum verdict worst_first[] = {VERDICT_FAULT, VERDICT_CAUGHT, VERDICT_GAVE_UP};
    int rank = -1;
    for (size_t i = 0; i < sizeof worst_first / sizeof *worst_first && rank < 0; i++)
        rank = first_rank_with(c, worst_first[i]);
    return rank;
}

static enum dpt_status fail_because_of_rank(int other, struct dpt_err *err)
{
    return dpt_fail(err, DPT_EPEER, "rank %d could not create the GPU's communicators", other);
}

/* Waits until no creation is under way. */
static enum dpt_status wait_created(struct dpt_nccl_comm *c, struct dpt_err *err)
{
    for (;;) {
        bool woken;
        const enum dpt_status status = dpt_nccl_comm_move(c, err);
        if (status != DPT_INPROGRESS && status != DPT_EIO)
            return status;
        /* Another rank may have caused the failure: its verdict counts first. */
        DPT_TRY(
            dpt_nccl_comm_poll_control(c, status == DPT_EIO ? 0 : DPT_NCCL_NAP_NS, &woken, err));
        if (rank_to_blame(c) >= 0)
            return fail_because_of_rank(rank_to_blame(c), err);
        if (status == DPT_EIO)
            return dpt_nccl_comm_move(c, err); /* returns the same failure again */
    }
}

/* Waits for the world's communicator, whose creation has begun. Then creates the splits one after
 * another, because each split uses the world's communicator. */
static enum dpt_status finish_world(struct dpt_nccl_comm *c, const struct dpt_nccl_comm_spec *spec,
                                    struct dpt_err *err)
{
    const int rank = dpt_comm_rank(c->control), size = dpt_comm_world_size(c->control);
    struct nccl_group *world = &c->groups[0];
    DPT_TRY(wait_created(c, err));
    world->size = size;
    memcpy(world->order, c->world.order, sizeof world->order);
    for (int s = 0; s < spec->n_splits; s++) {
        struct nccl_group *g = &c->groups[s + 1];
        g->size = dpt_nccl_plan_split(c->offers, size, &c->world, s, rank, g->order);
        DPT_TRY(dpt_nccl_machine_split(c->machine, dpt_nccl_comm_at(c, s + 1), c->world_at,
                                       spec->splits[s].color, spec->splits[s].key, err));
        DPT_TRY(wait_created(c, err));
    }
    return DPT_OK;
}

static enum dpt_status shrink_kept_world(struct dpt_nccl_comm *c,
                                         const struct dpt_nccl_comm_spec *spec, struct dpt_err *err)
{
    const int old = c->world_at;
    c->world_at = 1 - old;
    DPT_TRY(dpt_nccl_machine_shrink(c->machine, c->world_at, old, c->world.excluded,
                                    c->world.n_excluded, err));
    return finish_world(c, spec, err);
}

static enum dpt_status exchange_id(struct dpt_nccl_comm *c, const struct dpt_nccl_comm_spec *spec,
                                   uint8_t ret_id[DPT_NCCL_ID_BYTES], struct dpt_err *err)
{
    static const uint8_t none[DPT_NCCL_ID_MESSAGE_BYTES];
    uint8_t bytes[DPT_NCCL_ID_MESSAGE_BYTES] = {0}, id[DPT_NCCL_ID_BYTES];
    bool made = true;
    if (dpt_comm_rank(c->control) == 0) {
        dpt_nccl_guard_enter(&c->guard, "ncclGetUniqueId",
                             c->calls->now_ms(c->ctx) + c->guard.limit_ms);
        made = c->calls->unique_id(c->ctx, id) == DPT_NCCL_OK;
        dpt_nccl_guard_leave(&c->guard);
        if (made)
            dpt_nccl_id_pack(spec->generation, spec->nonce, id, bytes);
    }
    DPT_TRY(dpt_comm_small_all_gather(c->control, bytes, sizeof bytes, c->gathered, err));
    if (!made)
        return dpt_fail(err, DPT_EDEVICE, "an id for the GPU's communicators: %s",
                        c->calls->last_error(c->ctx, NULL));
    if (memcmp(c->gathered, none, sizeof none) == 0)
        return fail_because_of_rank(0, err);
    return dpt_nccl_id_unpack(c->gathered, spec->generation, spec->nonce, ret_id, err);
}

static enum dpt_status create_new_world(struct dpt_nccl_comm *c,
                                        const struct dpt_nccl_comm_spec *spec,
                                        const uint8_t id[DPT_NCCL_ID_BYTES], struct dpt_err *err)
{
    DPT_TRY(dpt_nccl_machine_init(c->machine, c->world_at, dpt_comm_world_size(c->control),
                                  dpt_comm_rank(c->control), id, err));
    return finish_world(c, spec, err);
}

static enum dpt_status await_exchange(struct dpt_nccl_comm *c, struct dpt_comm_op *op,
                                      int64_t until_ms, struct dpt_err *err)
{
    for (;;) {
        const int64_t left_ms = until_ms - c->calls->now_ms(c->ctx);
        const int wait_ms = until_ms == INT64_MAX ? -1 : left_ms > 0 ? (int)left_ms : 0;
        const enum dpt_status status = dpt_comm_poll(c->control, op, wait_ms, err);
        if (status != DPT_INPROGRESS)
            return status;
        if (wait_ms == 0)
            return dpt_fail(err, DPT_ETIMEOUT,
                            "a rank did not follow to the end of the GPU's communicators in time");
    }
}

/* Sends this rank's verdict to all. */
static enum dpt_status post_verdict(struct dpt_nccl_comm *c, enum verdict verdict,
                                    struct dpt_comm_op **ret, struct dpt_err *err)
{
    const int rank = dpt_comm_rank(c->control);
    int n = 0;
    c->verdicts[rank] = verdict;
    for (int i = 0; i < dpt_comm_world_size(c->control); i++)
        if (i != rank)
            c->verdicts_out[n++] = (struct dpt_comm_xfer){
                .dir = DPT_COMM_SEND, .peer = i, .buf = &c->verdicts[rank], .bytes = 1};
    return dpt_comm_exchange(c->control, c->verdicts_out, n, ret, err);
}

/* Waits until this verdict is sent and all others are received. */
static enum dpt_status await_verdicts(struct dpt_nccl_comm *c, struct dpt_comm_op *sent,
                                      int64_t until_ms, struct dpt_err *err)
{
    DPT_TRY(await_exchange(c, sent, until_ms, err));
    dpt_comm_op_free(c->control, &sent);
    DPT_TRY(await_exchange(c, c->verdicts_op, until_ms, err));
    dpt_comm_op_free(c->control, &c->verdicts_op);
    for (int i = 0; i < dpt_comm_world_size(c->control); i++)
        if (c->verdicts[i] >= VERDICT_NONE)
            return dpt_fail(err, DPT_EPROTO, "the message of rank %d is no verdict", i);
    return DPT_OK;
}

enum dpt_status dpt_nccl_comm_barrier(struct dpt_nccl_comm *c, struct dpt_err *err)
{
    struct dpt_comm_op *sent;
    const int64_t until_ms = c->calls->now_ms(c->ctx) + c->guard.limit_ms;
    DPT_TRY(post_verdict_receives(c, err));
    DPT_TRY(post_verdict(c, VERDICT_THROUGH, &sent, err));
    return await_verdicts(c, sent, until_ms, err);
}

static enum verdict verdict_of(enum dpt_status status)
{
    switch (status) {
    case DPT_OK:
        return VERDICT_THROUGH;
    case DPT_EPEER:
    case DPT_ETIMEOUT:
    case DPT_EABORTED:
        return VERDICT_GAVE_UP;
    case DPT_EIO:
        return VERDICT_CAUGHT;
    default:
        return VERDICT_FAULT;
    }
}

/* To be called after this rank's attempt, which ended with `status`. DPT_OK and *ret_all is true:
 * all ranks succeeded. DPT_OK and *ret_all is false: *failure has the reason. Other errors: the
 * control failed or was aborted. */
static enum dpt_status exchange_verdicts(struct dpt_nccl_comm *c, enum dpt_status status,
                                         bool *ret_all, struct dpt_err *failure)
{
    struct dpt_err err = {0};
    struct dpt_comm_op *sent;
    if (status != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "the GPU's communicators: %s", failure->text);
    enum dpt_status exchanged = post_verdict(c, verdict_of(status), &sent, &err);
    if (exchanged == DPT_OK)
        exchanged = await_verdicts(c, sent, INT64_MAX, &err);
    if (status != DPT_OK)
        dpt_nccl_comm_stop(c, -1);
    if (exchanged != DPT_OK) {
        *failure = err;
        return exchanged;
    }
    const int rank = dpt_comm_rank(c->control), first = rank_to_blame(c);
    *ret_all = first < 0;
    if (first == rank && status == DPT_EIO)
        failure->status = DPT_EDEVICE;
    else if (first >= 0 && first != rank)
        (void)fail_because_of_rank(first, failure);
    return DPT_OK;
}

static enum dpt_status build_communicators(struct dpt_nccl_comm *c,
                                           const struct dpt_nccl_comm_spec *spec,
                                           struct dpt_err *err)
{
    bool all = false;
    uint8_t id[DPT_NCCL_ID_BYTES];
    struct dpt_err failure = {0};
    const int size = dpt_comm_world_size(c->control);
    DPT_TRY(exchange_offers(c, spec, err));
    dpt_nccl_plan_world(c->offers, size, dpt_nccl_machine_can_shrink(c->machine), &c->world);
    if (c->world.shrink) {
        DPT_TRY(post_verdict_receives(c, err));
        const enum dpt_status status = shrink_kept_world(c, spec, &failure);
        if (exchange_verdicts(c, status, &all, &failure) != DPT_OK)
            return dpt_pass(err, &failure);
        if (all) {
            dpt_nccl_machine_release(c->machine, 1 - c->world_at);
            return DPT_OK;
        }
        dpt_nccl_plan_world(c->offers, size, false, &c->world);
    }
    dpt_nccl_comm_stop(c, -1); /* frees the kept communicator, or what a failed shrink left */
    DPT_TRY(exchange_id(c, spec, id, err));
    DPT_TRY(post_verdict_receives(c, err));
    enum dpt_status status = create_new_world(c, spec, id, &failure);
    status = exchange_verdicts(c, status, &all, &failure);
    if (status == DPT_OK && all)
        return DPT_OK;
    return dpt_pass(err, &failure);
}

enum dpt_status dpt_nccl_comm_open(struct dpt_nccl_comm *c, const struct dpt_nccl_comm_spec *spec,
                                   struct dpt_err *err)
{
    DPT_ASSERT(c->control == NULL && spec->control != NULL);
    DPT_ASSERT(spec->n_splits >= 0 && spec->n_splits <= DPT_NCCL_SPLITS_MAX);
    c->control = spec->control;
    c->n_splits = spec->n_splits;
    c->built = false;
    const enum dpt_status status = build_communicators(c, spec, err);
    if (status != DPT_OK) {
        dpt_nccl_comm_stop(c, -1);
        dpt_nccl_comm_reset(c);
        return status;
    }
    c->built = true;
    c->kept = dpt_nccl_kept_number(spec->generation, spec->nonce);
    c->kept_rank = c->world.order[dpt_comm_rank(c->control)];
    c->kept_size = dpt_comm_world_size(c->control);
    return DPT_OK;
}
