/* The two stages of the canonical reduction as lists of transfers (reduce.h). */
#include "worker/plan/reduce.h"

#include "base/err.h"
#include "checkpoint/layout/layout.h"

/* A list being made; `ret` may be shorter than the list, which then is only counted. */
struct list {
    struct dpt_transfer *ret;
    int max, n;
};

static void list_add(struct list *list, struct dpt_transfer transfer)
{
    if (list->n < list->max)
        list->ret[list->n] = transfer;
    list->n++;
}

/* Which rank of the host at these positions gathers piece `piece` in stage 1. */
static int gatherer_of(const struct dpt_world *world, struct dpt_range positions, int piece)
{
    for (int p = positions.first; p < positions.end; p++)
        if (world->rank_of_position[p] == piece)
            return piece;
    return world->rank_of_position[positions.first + piece % (positions.end - positions.first)];
}

static void check_world(const struct dpt_world *world)
{
    DPT_ASSERT(world->size >= 1 && world->size <= world->lanes && world->lanes <= DPT_LANES_MAX);
}

int dpt_reduce_stage1(const struct dpt_world *world, struct dpt_transfer *ret, int max)
{
    check_world(world);
    struct list list = {.ret = ret, .max = max};
    for (int piece = 0; piece < world->size; piece++) {
        struct dpt_range host;
        for (int at = 0; at < world->size; at = host.end) {
            host = dpt_world_host(world, at);
            const int to = gatherer_of(world, host, piece);
            for (int p = host.first; p < host.end; p++) {
                struct dpt_range cover[DPT_COVER_MAX];
                const struct dpt_range run = dpt_position_lanes(world->lanes, world->size, p);
                const int n = dpt_tree_cover(world->lanes, run, cover);
                for (int i = 0; i < n; i++)
                    list_add(&list, (struct dpt_transfer){.piece = piece,
                                                          .from = world->rank_of_position[p],
                                                          .to = to,
                                                          .node = cover[i]});
            }
        }
    }
    return list.n;
}

int dpt_reduce_stage2(const struct dpt_world *world, struct dpt_transfer *ret, int max)
{
    check_world(world);
    struct list list = {.ret = ret, .max = max};
    if (dpt_world_host(world, 0).end == world->size)
        return 0;
    for (int piece = 0; piece < world->size; piece++) {
        struct dpt_range host;
        for (int at = 0; at < world->size; at = host.end) {
            host = dpt_world_host(world, at);
            struct dpt_range cover[DPT_COVER_MAX];
            const int n = dpt_tree_cover(world->lanes, dpt_world_lanes(world, host), cover);
            for (int i = 0; i < n; i++)
                list_add(&list, (struct dpt_transfer){.piece = piece,
                                                      .from = gatherer_of(world, host, piece),
                                                      .to = piece,
                                                      .node = cover[i]});
        }
    }
    return list.n;
}

int dpt_reduce_buffers(const struct dpt_world *world, int position)
{
    const struct dpt_range host = dpt_world_host(world, position);
    const int own =
        dpt_tree_buffers(world->lanes, dpt_position_lanes(world->lanes, world->size, position));
    if (host.end - host.first == world->size)
        return own;
    struct dpt_range cover[DPT_COVER_MAX];
    const int of_host = dpt_tree_cover(world->lanes, dpt_world_lanes(world, host), cover);
    return own > of_host ? own : of_host;
}

int64_t dpt_reduce_bytes_sent(const struct dpt_world *world, int64_t numel, int64_t block, int rank,
                              bool gather, int far_bytes)
{
    check_world(world);
    const int position = dpt_world_position(world, rank);
    const struct dpt_range host = dpt_world_host(world, position);
    const int neighbours = host.end - host.first - 1;

    struct dpt_range cover[DPT_COVER_MAX];
    const struct dpt_range own_run = dpt_position_lanes(world->lanes, world->size, position);
    const int own_sums = dpt_tree_cover(world->lanes, own_run, cover);
    const int host_sums = dpt_tree_cover(world->lanes, dpt_world_lanes(world, host), cover);

    int64_t near = 0, far = 0; /* elements */
    for (int piece = 0; piece < world->size; piece++) {
        const struct dpt_interval range = dpt_layout_piece(numel, block, world->size, piece);
        const int64_t n = range.end - range.first;
        const int gatherer = gatherer_of(world, host, piece);
        if (gatherer != rank)
            near += own_sums * n; /* stage 1 */
        else if (piece != rank)
            far += host_sums * n; /* stage 2 */
        if (piece == rank && gather) {
            near += neighbours * n;
            far += (world->size - 1 - neighbours) * n;
        }
    }
    return near * (int64_t)sizeof(float) + far * far_bytes;
}
