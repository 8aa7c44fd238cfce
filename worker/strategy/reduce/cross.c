/* Tasks of kind CROSS (strategy_internal.h). Where each node adds its own lanes, the nodes send
 * their sums once a step to the owners of the pieces of the whole sum. The owners add them in the
 * order of the lanes' tree.
 *
 *   node 0, ranks a b, lanes 0 … 3       node 1, ranks c d, lanes 4 … 7
 *   a: half 0, b: half 1                 c: half 0, d: half 1       added, slot after slot
 *   CROSS  quarters 0, 1, 2, 3 of the sums to a, c, b, d
 *   SHARE  the same quarters of the whole sum back
 *
 * So in a step each element goes between two nodes once in each direction, for any number of slots.
 * Nodes of different sizes cut their sums into different pieces. Then more pieces overlap, and each
 * overlap is a transfer. */
#include "worker/strategy/reduce/tree_sum.h"
#include "worker/strategy/strategy_internal.h"

#include <stdlib.h>

struct strategy_cross {
    struct cover { /* [world size] the sums that a position's node has */
        int n;
        struct dpt_range node[DPT_COVER_MAX];
    } * covers;
    /* In a step: the first element of each position's contribution, by sum; then the parts of one
     * sum. */
    const float **sources; /* [world size * DPT_COVER_MAX] */
    struct dpt_partial *partials;
    float *scratch;
    struct dpt_buffer staging; /* of all turns */
    /* On a device: the addresses of the sums to add, and the number of joins after each. `parts`
     * and `joins` are in the host's memory, `device_parts` and `device_joins` are their copies on
     * the device. */
    const float **parts; /* [world size * DPT_COVER_MAX] */
    uint8_t *joins;      /* likewise */
    struct dpt_buffer device_parts, device_joins;
};

/* The elements that the rank at `from` has summed for its node and that lie in the part that the
 * rank at `to` adds. */
static struct dpt_interval crossing_piece(const struct dpt_strategy *s, int from, int to, int unit,
                                          int part)
{
    const struct dpt_shard crossed = {s->waves.crossed[to], s->part.world->size};
    return dpt_partition_crossing(&s->part, s->env.grid, from, crossed, unit, part);
}

static int64_t cross_bytes_to(const void *ctx, const struct dpt_task *task, int position)
{
    const struct dpt_strategy *s = ctx;
    const int me = s->part.position;
    return s->waves.cross->covers[me].n *
           strategy_numel(crossing_piece(s, me, position, task->unit, task->part)) *
           (int64_t)sizeof(float);
}

static void post_cross(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_cross *cross = s->waves.cross;
    const int unit = task->unit, me = s->part.position;
    char *staging = strategy_staging(&cross->staging, x->turn);
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        const struct dpt_interval give = crossing_piece(s, me, position, unit, task->part),
                                  take = crossing_piece(s, position, me, unit, task->part);
        const int64_t skip = give.first - strategy_held_piece(s, me, unit).first;
        for (int c = 0; c < cross->covers[me].n; c++) {
            const float *sums = s->waves.sums[c].data;
            strategy_send(s, x, position, &s->waves.sums[c],
                          (size_t)(strategy_sum(s, c, unit) - sums + skip) * sizeof(float),
                          (size_t)strategy_numel(give) * sizeof(float));
        }
        for (int c = 0; c < cross->covers[position].n && !strategy_is_empty(take); c++)
            strategy_borrow(s, x, position, &staging, (size_t)strategy_numel(take) * sizeof(float));
    }
}

/* The sum of n partials on the device, in the order of the lanes' tree. */
static void add_on_device(const struct dpt_strategy *s, int n, int64_t numel, float *sum)
{
    const struct strategy_cross *cross = s->waves.cross;
    const int lanes = s->part.world->lanes;
    for (int i = 0; i < n; i++) {
        cross->parts[i] = cross->partials[i].data;
        cross->joins[i] = (uint8_t)dpt_tree_joins_at(lanes, (struct dpt_range){0, lanes},
                                                     cross->partials[i].node);
    }
    const struct dpt_ordered_sum args = {.n = numel,
                                         .n_parts = n,
                                         .parts = cross->device_parts.data,
                                         .joins = cross->device_joins.data,
                                         .dtype = DPT_F32,
                                         .dst = sum};
    s->ops->copy(s->comm_stream, (size_t)n * sizeof *cross->parts, cross->parts,
                 cross->device_parts.data);
    s->ops->copy(s->comm_stream, (size_t)n, cross->joins, cross->device_joins.data);
    s->ops->ordered_sum(s->comm_stream, &args);
}

/* Adds the elements from `at` on that lie in one piece on every node, and returns the end of these
 * elements. */
static int64_t add_run(const struct dpt_strategy *s, const struct dpt_task *task,
                       struct dpt_interval own, int64_t at)
{
    const struct strategy_cross *cross = s->waves.cross;
    const struct dpt_range whole = {0, s->part.world->lanes};
    int64_t end = own.end;
    int n = 0;
    for (int position = 0; position < s->part.world->size; position++) {
        const struct dpt_interval piece = strategy_held_piece(s, position, task->unit);
        if (at < piece.first || at >= piece.end) /* another rank of this node has it */
            continue;
        const int64_t begins = piece.first > own.first ? piece.first : own.first;
        for (int c = 0; c < cross->covers[position].n; c++)
            cross->partials[n++] = (struct dpt_partial){
                .node = cross->covers[position].node[c],
                .data = cross->sources[position * DPT_COVER_MAX + c] + (at - begins)};
        end = piece.end < end ? piece.end : end;
    }
    float *sum = strategy_crossed_sum(s, task->unit) +
                 (at - strategy_whole_piece(s, s->part.position, task->unit).first);
    const struct dpt_tree_sum sum_of = {.parts = cross->partials,
                                        .n_parts = n,
                                        .out_nodes = &whole,
                                        .out_data = &sum,
                                        .n_out = 1,
                                        .dtype = DPT_F32,
                                        .numel = end - at,
                                        .scratch = cross->scratch};
    if (s->traits.on_device)
        add_on_device(s, n, end - at, sum);
    else
        dpt_tree_sum_add(s->ops, s->comm_stream, &sum_of);
    return end;
}

static enum dpt_status cross_done(void *ctx, const struct dpt_task *task,
                                  const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_cross *cross = s->waves.cross;
    const int me = s->part.position;
    const struct dpt_interval own =
        dpt_part_of(strategy_whole_piece(s, me, task->unit), DPT_BLOCK, task->part, task->n_parts);
    int n = 0;
    for (int i = 0; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        const struct dpt_interval take = crossing_piece(s, position, me, task->unit, task->part);
        const int64_t skip = take.first - strategy_held_piece(s, position, task->unit).first;
        for (int c = 0; c < cross->covers[position].n && !strategy_is_empty(take); c++)
            cross->sources[position * DPT_COVER_MAX + c] =
                i == 0 ? strategy_sum(s, c, task->unit) + skip : x->in[n++].lent;
    }
    DPT_ASSERT(n == x->n_in);
    for (int64_t at = own.first; at < own.end;)
        at = add_run(s, task, own, at);
    return dpt_stream_sync(s->comm_stream, err);
}

/* ---- memory and plan ---- */

/* The sums of each node, and the piece of all nodes' sums that each position adds. */
static void list_covers(struct dpt_strategy *s, struct strategy_cross *cross)
{
    for (int p = 0; p < s->part.world->size; p++) {
        s->waves.crossed[p] = dpt_partition_crossed(&s->part, p).index;
        cross->covers[p].n = dpt_partition_node_sums(&s->part, p, cross->covers[p].node);
    }
}

/* The larger of `most` and the number of transfers of a task in one direction. */
static int most_transfers(const struct dpt_strategy *s, int unit, int part, int most)
{
    const struct cover *covers = s->waves.cross->covers;
    const int me = s->part.position;
    int in = 0, out = 0;
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        if (!strategy_is_empty(crossing_piece(s, me, position, unit, part)))
            out += covers[me].n;
        if (!strategy_is_empty(crossing_piece(s, position, me, unit, part)))
            in += covers[position].n;
    }
    most = in > most ? in : most;
    return out > most ? out : most;
}

static void cut_parts(struct dpt_strategy *s)
{
    struct strategy_waves *w = &s->waves;
    for (int u = 0; u < s->n_units; u++) {
        w->cross_parts[u] = dpt_partition_cross_parts(&s->part, s->env.grid, u);
        for (int part = 0; part < w->cross_parts[u]; part++)
            w->cross_xfers_max = most_transfers(s, u, part, w->cross_xfers_max);
    }
}

static enum dpt_status make_device_lists(const struct dpt_strategy *s, struct strategy_cross *cross,
                                         size_t n, struct dpt_err *err)
{
    cross->parts = calloc(n, sizeof *cross->parts);
    cross->joins = calloc(n, sizeof *cross->joins);
    if (!cross->parts || !cross->joins)
        return dpt_fail_nomem(err, "sums of nodes");
    DPT_TRY(dpt_buffer_make(NULL, s->device, DPT_MEMORY_COMM, n * sizeof *cross->parts,
                            &cross->device_parts, err));
    return dpt_buffer_make(NULL, s->device, DPT_MEMORY_COMM, n, &cross->device_joins, err);
}

enum dpt_status strategy_cross_begin(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const size_t size = (size_t)s->part.world->size, sources = size * DPT_COVER_MAX;
    struct strategy_cross *cross = calloc(1, sizeof *cross);
    w->cross = cross;
    w->crossed = calloc(size, sizeof *w->crossed);
    w->cross_parts = calloc((size_t)s->n_units, sizeof *w->cross_parts);
    if (cross) {
        cross->covers = calloc(size, sizeof *cross->covers);
        cross->sources = calloc(sources, sizeof *cross->sources);
        cross->partials = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *cross->partials);
        cross->scratch = aligned_alloc(64, dpt_tree_sum_scratch_numel() * sizeof(float));
    }
    if (!cross || !w->crossed || !w->cross_parts || !cross->covers || !cross->sources ||
        !cross->partials || !cross->scratch)
        return dpt_fail_nomem(err, "sums of nodes");
    list_covers(s, cross);
    cut_parts(s);
    if (s->traits.on_device)
        DPT_TRY(make_device_lists(s, cross, sources, err));
    return strategy_staging_make(s, DPT_ITEM_CROSSING, &cross->staging, err);
}

void strategy_cross_end(struct dpt_strategy *s)
{
    struct strategy_waves *w = &s->waves;
    struct strategy_cross *cross = w->cross;
    free(w->crossed);
    free(w->cross_parts);
    w->crossed = w->cross_parts = NULL;
    w->cross_xfers_max = 0;
    w->cross = NULL;
    if (!cross)
        return;
    dpt_buffer_free(&cross->staging);
    dpt_buffer_free(&cross->device_parts);
    dpt_buffer_free(&cross->device_joins);
    free(cross->parts);
    free(cross->joins);
    free(cross->covers);
    free(cross->sources);
    free(cross->partials);
    free(cross->scratch);
    free(cross);
}

const struct dpt_task_handler strategy_cross = {post_cross, cross_done, cross_bytes_to};
