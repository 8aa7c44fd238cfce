/* The two stages of the canonical reduction as lists of transfers (reduce_transfers.h). */
#include "worker/plan/reduce_transfers.h"

#include "base/err.h"
#include "checkpoint/layout/layout.h"

/* The rank that gathers piece `piece` in stage 1, of the host at these positions. */
static int gatherer_of(const struct dpt_world *world, struct dpt_range positions, int piece)
{
    for (int p = positions.first; p < positions.end; p++)
        if (world->rank_of_position[p] == piece)
            return piece;
    return world->rank_of_position[positions.first + piece % (positions.end - positions.first)];
}

static void assert_world(const struct dpt_world *world)
{
    DPT_ASSERT(world->size >= 1 && world->size <= world->lanes && world->lanes <= DPT_LANES_MAX);
}

/* Lists the transfers of a stage for every piece and host. Stage 1: the sums over the lanes of each
 * position go to the host's gatherer. Stage 2: the sums over the lanes of the whole host go to the
 * owner. */
static int list_stage(const struct dpt_world *world, bool between_hosts, struct dpt_transfer *ret,
                      int max)
{
    int n = 0;
    assert_world(world);
    for (int piece = 0; piece < world->size; piece++)
        for (int p = 0; p < world->size;) {
            const struct dpt_range host = dpt_world_host(world, p),
                                   from = between_hosts ? host : (struct dpt_range){p, p + 1};
            const int gatherer = gatherer_of(world, host, piece);
            struct dpt_range nodes[DPT_COVER_MAX];
            const int n_nodes = dpt_tree_cover(world->lanes, dpt_world_lanes(world, from), nodes);
            for (int i = 0; i < n_nodes; i++, n++)
                if (n < max)
                    ret[n] = (struct dpt_transfer){
                        .piece = piece,
                        .from = between_hosts ? gatherer : world->rank_of_position[p],
                        .to = between_hosts ? piece : gatherer,
                        .node = nodes[i]};
            p = from.end;
        }
    return n;
}

int dpt_reduce_stage1(const struct dpt_world *world, struct dpt_transfer *ret, int max)
{
    return list_stage(world, false, ret, max);
}

int dpt_reduce_stage2(const struct dpt_world *world, struct dpt_transfer *ret, int max)
{
    return dpt_world_host(world, 0).end == world->size ? 0 : list_stage(world, true, ret, max);
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
    assert_world(world);
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
