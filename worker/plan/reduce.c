/* The two stages of the canonical reduction as lists of transfers (reduce.h). */
#include "worker/plan/reduce.h"

#include "base/err.h"

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

void dpt_piece_range(int64_t numel, int64_t block, int n, int i, int64_t *ret_first,
                     int64_t *ret_end)
{
    DPT_ASSERT(numel >= 0 && block >= 1 && n >= 1 && i >= 0 && i < n);
    const int64_t blocks = (numel + block - 1) / block;
    const int64_t each = blocks / n;
    const int64_t larger = blocks % n;
    const int64_t first = i * each + (i < larger ? i : larger);
    const int64_t end = first + each + (i < larger ? 1 : 0);
    *ret_first = first * block < numel ? first * block : numel;
    *ret_end = end * block < numel ? end * block : numel;
}

/* Plan positions of the host at position `first`: [first, end). */
static struct dpt_range host_positions(const struct dpt_world *world, int first)
{
    int end = first + 1;
    while (end < world->size && world->host_of_position[end] == world->host_of_position[first])
        end++;
    return (struct dpt_range){first, end};
}

static struct dpt_range host_lanes(const struct dpt_world *world, struct dpt_range positions)
{
    return (struct dpt_range){
        dpt_position_lanes(world->lanes, world->size, positions.first).first,
        dpt_position_lanes(world->lanes, world->size, positions.end - 1).end,
    };
}

static int gatherer_of(const struct dpt_world *world, struct dpt_range positions, int piece)
{
    for (int p = positions.first; p < positions.end; p++)
        if (world->rank_of_position[p] == piece)
            return piece;
    return world->rank_of_position[positions.first + piece % (positions.end - positions.first)];
}

int dpt_reduce_gatherer(const struct dpt_world *world, int host, int piece)
{
    for (int p = 0; p < world->size; p++)
        if (world->host_of_position[p] == host)
            return gatherer_of(world, host_positions(world, p), piece);
    DPT_ASSERT(!"the world has no such host");
    return -1;
}

static void check(const struct dpt_world *world)
{
    DPT_ASSERT(world->size >= 1 && world->size <= world->lanes && world->lanes <= DPT_LANES_MAX);
}

int dpt_reduce_stage1(const struct dpt_world *world, struct dpt_transfer *ret, int max)
{
    check(world);
    struct list list = {.ret = ret, .max = max};
    for (int piece = 0; piece < world->size; piece++) {
        struct dpt_range host;
        for (int at = 0; at < world->size; at = host.end) {
            host = host_positions(world, at);
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
    check(world);
    struct list list = {.ret = ret, .max = max};
    if (host_positions(world, 0).end == world->size)
        return 0;
    for (int piece = 0; piece < world->size; piece++) {
        struct dpt_range host;
        for (int at = 0; at < world->size; at = host.end) {
            host = host_positions(world, at);
            struct dpt_range cover[DPT_COVER_MAX];
            const int n = dpt_tree_cover(world->lanes, host_lanes(world, host), cover);
            for (int i = 0; i < n; i++)
                list_add(&list, (struct dpt_transfer){.piece = piece,
                                                      .from = gatherer_of(world, host, piece),
                                                      .to = piece,
                                                      .node = cover[i]});
        }
    }
    return list.n;
}

int64_t dpt_reduce_bytes_sent(const struct dpt_world *world, int64_t numel, int64_t block, int rank)
{
    check(world);
    int position = 0;
    while (world->rank_of_position[position] != rank) {
        position++;
        DPT_ASSERT(position < world->size);
    }
    int at = position;
    while (at > 0 && world->host_of_position[at - 1] == world->host_of_position[position])
        at--;
    const struct dpt_range host = host_positions(world, at);

    struct dpt_range cover[DPT_COVER_MAX];
    const struct dpt_range own_run = dpt_position_lanes(world->lanes, world->size, position);
    const int own_sums = dpt_tree_cover(world->lanes, own_run, cover);
    const int host_sums = dpt_tree_cover(world->lanes, host_lanes(world, host), cover);

    int64_t elements = 0;
    for (int piece = 0; piece < world->size; piece++) {
        int64_t first, end;
        dpt_piece_range(numel, block, world->size, piece, &first, &end);
        const int gatherer = gatherer_of(world, host, piece);
        if (gatherer != rank)
            elements += own_sums * (end - first); /* stage 1 */
        else if (piece != rank)
            elements += host_sums * (end - first); /* stage 2 */
        if (piece == rank)
            elements += (world->size - 1) * (end - first); /* all-gather */
    }
    return elements * (int64_t)sizeof(float);
}
