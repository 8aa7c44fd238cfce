/* Carries out the moves of the state (move_state.h). */
#include "worker/strategy/state/move_state.h"

#include "checkpoint/layout/reshard.h"

#include <stdlib.h>
#include <string.h>

/* The transfers that are posted at once. On all ranks a batch ends at the same move. */
struct batch {
    struct dpt_reshard *reshard;
    struct dpt_comm *comm;
    struct dpt_comm_xfer *xfers; /* [max] */
    int n, max;
    int *counts; /* [world_size] moves of the batch in which each rank sends or receives */
};

static const struct dpt_state_part *part_of(const struct dpt_strategy_state *state, int part)
{
    return part == 0 ? &state->own : &state->shadow;
}

static enum dpt_status post_batch(struct batch *b, struct dpt_err *err)
{
    struct dpt_comm_op *op = NULL;
    if (b->n == 0)
        return DPT_OK;
    DPT_TRY(dpt_comm_exchange(b->comm, b->xfers, b->n, &op, err));
    enum dpt_status status;
    do
        status = dpt_comm_poll(b->comm, op, -1, err);
    while (status == DPT_INPROGRESS);
    dpt_comm_op_free(b->comm, &op);
    b->n = 0;
    return status;
}

/* Every rank counts the moves of all ranks, so all ranks end their batches at the same moves. */
static enum dpt_status count_move(struct batch *b, const struct dpt_move *move, struct dpt_err *err)
{
    const int room = b->max / DPT_VECTOR_COUNT;
    if (b->counts[move->from] == room || b->counts[move->to] == room) {
        DPT_TRY(post_batch(b, err));
        memset(b->counts, 0, (size_t)b->reshard->world_size * sizeof *b->counts);
    }
    b->counts[move->from]++;
    b->counts[move->to]++;
    return DPT_OK;
}

/* The byte of the part's memory at which the move's first element begins. */
static size_t place_of_move(const struct batch *b, const struct dpt_state_part *part,
                            enum dpt_vector vector, const struct dpt_move *move)
{
    const struct dpt_grid *grid = b->reshard->grid;
    const struct dpt_interval piece = dpt_shard_piece(grid, part->shard, move->unit);
    return (size_t)(dpt_strategy_state_offset(part, grid, vector, move->unit) + move->range.first -
                    piece.first) *
           sizeof(float);
}

static void copy_move(const struct batch *b, const struct dpt_move *move, enum dpt_vector vector,
                      size_t bytes)
{
    const struct dpt_state_part *from = part_of(b->reshard->held, move->from_part),
                                *to = part_of(b->reshard->wanted, move->to_part);
    const char *source = dpt_comm_mem_data(from->vector[vector].mem);
    char *target = dpt_comm_mem_data(to->vector[vector].mem);
    source += place_of_move(b, from, vector, move);
    target += place_of_move(b, to, vector, move);
    if (source != target)
        memcpy(target, source, bytes);
}

static enum dpt_status carry_out_move(void *ctx, const struct dpt_move *move, struct dpt_err *err)
{
    struct batch *b = ctx;
    struct dpt_reshard *r = b->reshard;
    const bool sends = move->from == r->rank, receives = move->to == r->rank;
    const size_t bytes = (size_t)(move->range.end - move->range.first) * sizeof(float);
    if (move->from != move->to)
        DPT_TRY(count_move(b, move, err));
    if (!sends && !receives)
        return DPT_OK;
    const struct dpt_state_part *part =
        receives ? part_of(r->wanted, move->to_part) : part_of(r->held, move->from_part);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        if (!part->vector[v].mem)
            continue;
        if (sends && receives) {
            copy_move(b, move, (enum dpt_vector)v, bytes);
            continue;
        }
        b->xfers[b->n++] =
            (struct dpt_comm_xfer){.dir = sends ? DPT_COMM_SEND : DPT_COMM_RECV,
                                   .peer = sends ? move->to : move->from,
                                   .mem = part->vector[v].mem,
                                   .offset = place_of_move(b, part, (enum dpt_vector)v, move),
                                   .bytes = bytes};
        *(sends ? &r->bytes_sent : &r->bytes_received) += (int64_t)bytes;
    }
    return DPT_OK;
}

static int list_holdings(const struct dpt_reshard *r, bool wanted, struct dpt_holding *ret)
{
    int n = 0;
    for (int rank = 0; rank < r->world_size; rank++)
        for (int part = 0; part < DPT_MOVE_STATE_PARTS; part++) {
            const struct dpt_move_state_rank *one = &r->ranks[rank];
            const struct dpt_shard shard = wanted ? one->wanted[part] : one->held[part];
            if (!dpt_shard_is_none(shard))
                ret[n++] = (struct dpt_holding){rank, one->host, part, shard};
        }
    return n;
}

enum dpt_status dpt_move_state(struct dpt_comm *comm, struct dpt_reshard *r, struct dpt_err *err)
{
    const size_t world = (size_t)r->world_size;
    struct batch batch = {
        .reshard = r, .comm = comm, .max = r->xfers_max > 0 ? r->xfers_max : DPT_COMM_XFERS_MAX};
    DPT_ASSERT(batch.max >= DPT_VECTOR_COUNT && batch.max <= DPT_COMM_XFERS_MAX);
    struct dpt_holding *lists = calloc(2 * world * DPT_MOVE_STATE_PARTS, sizeof *lists);
    batch.xfers = calloc((size_t)batch.max, sizeof *batch.xfers);
    batch.counts = calloc(world, sizeof *batch.counts);
    r->bytes_received = r->bytes_sent = 0;
    enum dpt_status status = DPT_OK;
    if (!lists || !batch.xfers || !batch.counts)
        status = dpt_fail_nomem(err, "resharding");
    if (status == DPT_OK) {
        struct dpt_holding *have = lists, *need = lists + world * DPT_MOVE_STATE_PARTS;
        const struct dpt_reshard_plan plan = {.grid = r->grid,
                                              .have = have,
                                              .need = need,
                                              .n_have = list_holdings(r, false, have),
                                              .n_need = list_holdings(r, true, need)};
        status = dpt_reshard_each(&plan, carry_out_move, &batch, err);
    }
    if (status == DPT_OK)
        status = post_batch(&batch, err);
    free(lists);
    free(batch.xfers);
    free(batch.counts);
    return status;
}
