/* A rank's transfers (rank_transfers.h). */
#include "worker/strategy/transport/rank_transfers.h"

#include "worker/strategy/reduce/tree_sum.h"

#include <stdlib.h>

struct planner {
    struct dpt_rank_transfers *transfers;
    const struct dpt_world *world;
    int rank, position;
    bool gather;
};

static int node_index(const struct dpt_range *nodes, int n, struct dpt_range node)
{
    for (int i = 0; i < n; i++)
        if (nodes[i].first == node.first && nodes[i].end == node.end)
            return i;
    return -1;
}

/* A stage: the nodes that this rank holds before it, in its buffers in order; the lanes that the
 * stage's sums go over. */
struct stage_spec {
    struct dpt_stage_transfers *plan, *sends;
    const struct dpt_transfer *transfers;
    int n;
    const struct dpt_range *own;
    int n_own;
    struct dpt_range over;
};

/* Turns a stage's transfers into this rank's transfers and sums. */
static enum dpt_status plan_stage(struct planner *r, const struct stage_spec *spec,
                                  struct dpt_err *err)
{
    struct dpt_stage_transfers *plan = spec->plan, *sends = spec->sends;
    const struct dpt_transfer *transfers = spec->transfers;
    const int rank = r->rank, n = spec->n;
    /* No transfer of a single host goes any further. */
    const bool write = r->gather && !r->transfers->cross;
    const bool far = plan == &r->transfers->stage[DPT_STAGE_CROSS];
    plan->transfers = calloc((size_t)n + 1, sizeof *plan->transfers);
    if (sends != plan)
        sends->transfers = calloc((size_t)n + 1, sizeof *sends->transfers);
    plan->sums = calloc((size_t)r->world->size, sizeof *plan->sums);
    if (!plan->transfers || !sends->transfers || !plan->sums)
        return dpt_fail_nomem(err, "plan of the all-reduce");
    for (int i = 0; i < n; i++) {
        const struct dpt_transfer *t = &transfers[i];
        if (t->from == rank && t->to != rank) {
            int buffer = node_index(spec->own, spec->n_own, t->node);
            DPT_ASSERT(buffer >= 0);
            sends->transfers[sends->n_transfers++] = (struct dpt_rank_transfer){
                DPT_COMM_SEND, t->to, t->piece, buffer, write && buffer == 0, far, t->node};
        }
        if (t->to != rank)
            continue;
        struct dpt_piece_sum *g = plan->n_sums > 0 ? &plan->sums[plan->n_sums - 1] : NULL;
        if (!g || g->piece != t->piece) {
            g = &plan->sums[plan->n_sums++];
            g->piece = t->piece;
            g->n_out = dpt_tree_cover(r->world->lanes, spec->over, g->out);
            g->parts = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *g->parts);
            if (!g->parts)
                return dpt_fail_nomem(err, "plan of the all-reduce");
        }
        DPT_ASSERT(g->n_parts < DPT_TREE_SUM_PARTS_MAX);
        struct dpt_part_source *part = &g->parts[g->n_parts++];
        *part = (struct dpt_part_source){t->node, -1, -1};
        if (t->from == rank) {
            part->buffer = node_index(spec->own, spec->n_own, t->node);
            DPT_ASSERT(part->buffer >= 0);
        } else {
            /* A rank's first part of a piece lies in its buffer 0. */
            const bool first =
                i == 0 || transfers[i - 1].from != t->from || transfers[i - 1].piece != t->piece;
            part->transfer = plan->n_transfers;
            plan->transfers[plan->n_transfers++] = (struct dpt_rank_transfer){
                DPT_COMM_LEND, t->from, t->piece, -1, write && first, far, t->node};
        }
    }
    return DPT_OK;
}

static enum dpt_status plan_gather(struct planner *r, struct dpt_err *err)
{
    struct dpt_stage_transfers *plan = &r->transfers->stage[DPT_STAGE_GATHER];
    int size = r->world->size, rank = r->rank;
    plan->transfers = calloc((size_t)(2 * size), sizeof *plan->transfers);
    if (!plan->transfers)
        return dpt_fail_nomem(err, "plan of the all-reduce");
    const struct dpt_range none = {0, 0};
    for (int peer = 0; peer < size; peer++) {
        if (peer == rank)
            continue;
        const int *host = r->world->host_of_position;
        const bool far = host[dpt_world_position(r->world, peer)] != host[r->position];
        plan->transfers[plan->n_transfers++] =
            (struct dpt_rank_transfer){DPT_COMM_SEND, peer, rank, 0, false, far, none};
        plan->transfers[plan->n_transfers++] =
            (struct dpt_rank_transfer){DPT_COMM_RECV, peer, peer, 0, false, far, none};
    }
    return DPT_OK;
}

static enum dpt_status plan_reduction(struct planner *r, struct dpt_err *err)
{
    const struct dpt_world *world = r->world;
    struct dpt_range own[DPT_COVER_MAX], host[DPT_COVER_MAX];
    int n_own = dpt_tree_cover(world->lanes,
                               dpt_position_lanes(world->lanes, world->size, r->position), own);
    struct dpt_range host_lanes = dpt_world_lanes(world, dpt_world_host(world, r->position));
    int n_host = dpt_tree_cover(world->lanes, host_lanes, host);

    int n1 = dpt_reduce_stage1(world, NULL, 0), n2 = dpt_reduce_stage2(world, NULL, 0);
    int max = n1 > n2 ? n1 : n2;
    struct dpt_transfer *transfers = calloc((size_t)max + 1, sizeof *transfers);
    if (!transfers)
        return dpt_fail_nomem(err, "plan of the all-reduce");
    struct dpt_stage_transfers *stage = r->transfers->stage;
    const bool cross = r->transfers->cross;
    const struct stage_spec local = {
        .plan = &stage[DPT_STAGE_LOCAL],
        .sends = &stage[r->gather && !cross ? DPT_STAGE_GATHER : DPT_STAGE_LOCAL],
        .transfers = transfers,
        .n = dpt_reduce_stage1(world, transfers, max),
        .own = own,
        .n_own = n_own,
        .over = host_lanes};
    enum dpt_status status = plan_stage(r, &local, err);
    if (status == DPT_OK && cross) {
        const struct stage_spec between = {.plan = &stage[DPT_STAGE_CROSS],
                                           .sends = &stage[DPT_STAGE_CROSS],
                                           .transfers = transfers,
                                           .n = dpt_reduce_stage2(world, transfers, max),
                                           .own = host,
                                           .n_own = n_host,
                                           .over = {0, world->lanes}};
        status = plan_stage(r, &between, err);
    }
    free(transfers);
    return status == DPT_OK && r->transfers->cross && r->gather ? plan_gather(r, err) : status;
}

enum dpt_status dpt_rank_transfers_init(struct dpt_rank_transfers *transfers,
                                        const struct dpt_world *world, int rank, bool gather,
                                        struct dpt_err *err)
{
    *transfers = (struct dpt_rank_transfers){.cross = dpt_world_host(world, 0).end < world->size};
    struct planner planner = {.transfers = transfers,
                              .world = world,
                              .rank = rank,
                              .position = dpt_world_position(world, rank),
                              .gather = gather};
    return world->size > 1 ? plan_reduction(&planner, err) : DPT_OK;
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
