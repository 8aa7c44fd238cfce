/* A rank's transfers (rank_transfers.h). */
#include "worker/strategy/transport/rank_transfers.h"

#include "worker/strategy/reduce/tree_sum.h"

#include <stdlib.h>

/* A stage of one rank. */
struct planner {
    struct dpt_rank_transfers *transfers;
    const struct dpt_world *world;
    int rank, position;
    bool gather;
    enum dpt_stage stage;
    struct dpt_range before; /* lanes of which this rank has the sums before the stage */
    struct dpt_range over;   /* lanes over which the stage adds */
};

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail_nomem(err, "plan of the all-reduce");
}

/* The buffer of this rank that has the sum of `node` before the stage. */
static int buffer_of(const struct planner *p, struct dpt_range node)
{
    struct dpt_range nodes[DPT_COVER_MAX];
    const int n = dpt_tree_cover(p->world->lanes, p->before, nodes);
    for (int i = 0; i < n; i++)
        if (nodes[i].first == node.first && nodes[i].end == node.end)
            return i;
    DPT_ASSERT(!"a sum that this rank has");
    return -1;
}

/* The stage's sum of a piece; transfers come in the order of pieces. NULL: no memory. */
static struct dpt_piece_sum *sum_of_piece(const struct planner *p, struct dpt_stage_transfers *plan,
                                          int piece)
{
    struct dpt_piece_sum *sum = &plan->sums[plan->n_sums];
    if (plan->n_sums > 0 && sum[-1].piece == piece)
        return sum - 1;
    plan->n_sums++;
    sum->piece = piece;
    sum->n_out = dpt_tree_cover(p->world->lanes, p->over, sum->out);
    sum->parts = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *sum->parts);
    return sum->parts ? sum : NULL;
}

/* Adds this rank's side of a transfer to the plan of the stage; a send is added to `sends`. */
static enum dpt_status plan_transfer(const struct planner *p, const struct dpt_transfer *t,
                                     bool first_of_sender, struct dpt_stage_transfers *sends,
                                     struct dpt_err *err)
{
    struct dpt_stage_transfers *plan = &p->transfers->stage[p->stage];
    const bool write = p->gather && !p->transfers->cross, far = p->stage == DPT_STAGE_CROSS;
    const int buffer = t->from == p->rank ? buffer_of(p, t->node) : -1;
    if (buffer >= 0 && t->to != p->rank)
        sends->transfers[sends->n_transfers++] = (struct dpt_rank_transfer){
            DPT_COMM_SEND, t->to, t->piece, buffer, write && buffer == 0, far};
    if (t->to != p->rank)
        return DPT_OK;
    struct dpt_piece_sum *sum = sum_of_piece(p, plan, t->piece);
    if (!sum)
        return no_memory(err);
    DPT_ASSERT(sum->n_parts < DPT_TREE_SUM_PARTS_MAX);
    sum->parts[sum->n_parts++] =
        (struct dpt_part_source){t->node, buffer, buffer < 0 ? plan->n_transfers : -1};
    if (buffer < 0)
        plan->transfers[plan->n_transfers++] = (struct dpt_rank_transfer){
            DPT_COMM_LEND, t->from, t->piece, -1, write && first_of_sender, far};
    return DPT_OK;
}

static int list_transfers(const struct planner *p, struct dpt_transfer *ret, int max)
{
    return p->stage == DPT_STAGE_CROSS ? dpt_reduce_stage2(p->world, ret, max)
                                       : dpt_reduce_stage1(p->world, ret, max);
}

static enum dpt_status plan_stage(const struct planner *p, struct dpt_err *err)
{
    struct dpt_stage_transfers *stages = p->transfers->stage, *plan = &stages[p->stage],
                               *sends = p->gather && !p->transfers->cross
                                            ? &stages[DPT_STAGE_GATHER]
                                            : plan;
    const int n = list_transfers(p, NULL, 0);
    struct dpt_transfer *list = calloc((size_t)n + 1, sizeof *list);
    plan->transfers = calloc((size_t)n + 1, sizeof *plan->transfers);
    if (sends != plan)
        sends->transfers = calloc((size_t)n + 1, sizeof *sends->transfers);
    plan->sums = calloc((size_t)p->world->size, sizeof *plan->sums);
    enum dpt_status status =
        list && plan->transfers && sends->transfers && plan->sums ? DPT_OK : no_memory(err);
    if (status == DPT_OK)
        (void)list_transfers(p, list, n);
    for (int i = 0; status == DPT_OK && i < n; i++) {
        /* A rank's first sum of a piece is in its buffer 0. */
        const bool first =
            i == 0 || list[i - 1].from != list[i].from || list[i - 1].piece != list[i].piece;
        status = plan_transfer(p, &list[i], first, sends, err);
    }
    free(list);
    return status;
}

static enum dpt_status plan_gather(const struct planner *p, struct dpt_err *err)
{
    struct dpt_stage_transfers *plan = &p->transfers->stage[DPT_STAGE_GATHER];
    const int *host = p->world->host_of_position;
    plan->transfers = calloc((size_t)(2 * p->world->size), sizeof *plan->transfers);
    if (!plan->transfers)
        return no_memory(err);
    for (int peer = 0; peer < p->world->size; peer++) {
        const bool far = host[dpt_world_position(p->world, peer)] != host[p->position];
        if (peer == p->rank)
            continue;
        plan->transfers[plan->n_transfers++] =
            (struct dpt_rank_transfer){DPT_COMM_SEND, peer, p->rank, 0, false, far};
        plan->transfers[plan->n_transfers++] =
            (struct dpt_rank_transfer){DPT_COMM_RECV, peer, peer, 0, false, far};
    }
    return DPT_OK;
}

enum dpt_status dpt_rank_transfers_init(struct dpt_rank_transfers *transfers,
                                        const struct dpt_world *world, int rank, bool gather,
                                        struct dpt_err *err)
{
    const int position = dpt_world_position(world, rank);
    const struct dpt_range host_lanes = dpt_world_lanes(world, dpt_world_host(world, position));
    struct planner planner = {.transfers = transfers,
                              .world = world,
                              .rank = rank,
                              .position = position,
                              .gather = gather,
                              .stage = DPT_STAGE_LOCAL,
                              .before = dpt_position_lanes(world->lanes, world->size, position),
                              .over = host_lanes};
    *transfers = (struct dpt_rank_transfers){.cross = dpt_world_host(world, 0).end < world->size};
    if (world->size == 1)
        return DPT_OK;
    DPT_TRY(plan_stage(&planner, err));
    if (!transfers->cross)
        return DPT_OK;
    planner.stage = DPT_STAGE_CROSS;
    planner.before = host_lanes;
    planner.over = (struct dpt_range){0, world->lanes};
    DPT_TRY(plan_stage(&planner, err));
    return gather ? plan_gather(&planner, err) : DPT_OK;
}

void dpt_rank_transfers_fini(struct dpt_rank_transfers *transfers)
{
    for (int s = 0; s < DPT_STAGE_COUNT; s++) {
        for (int g = 0; g < transfers->stage[s].n_sums; g++)
            free(transfers->stage[s].sums[g].parts);
        free(transfers->stage[s].sums);
        free(transfers->stage[s].transfers);
    }
    *transfers = (struct dpt_rank_transfers){.cross = false};
}
