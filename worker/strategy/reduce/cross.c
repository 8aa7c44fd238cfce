/* Where nodes add their own lanes: their sums go once a step to the owners of pieces of the whole,
 * who add them in the lanes' tree. Tasks of kind CROSS (core.h).
 *
 *   node 0, ranks a b, lanes 0 … 3       node 1, ranks c d, lanes 4 … 7
 *   a: half 0, b: half 1                 c: half 0, d: half 1       added, slot after slot
 *   CROSS  quarters 0, 1, 2, 3 of the sums to a, c, b, d
 *   SHARE  the same quarters of the whole sum back
 *
 * So each element goes between two nodes once there and once back in a step, however many slots a
 * rank has. Nodes of different sizes cut differently; then more pieces meet, and go one by one. */
#include "worker/strategy/core.h"
#include "worker/strategy/reduce/tree_sum.h"

#include <stdlib.h>

struct strategy_cross {
    struct cover { /* [world size] the sums that a position's node has */
        int n;
        struct dpt_range node[DPT_COVER_MAX];
    } * covers;
    int n_parts[DPT_UNITS_MAX]; /* that what goes round at once is cut into */
    int xfers_max;
    /* The step: where what a position gives begins, by sum; the parts of a sum. */
    const float **sources; /* [world size * DPT_COVER_MAX] */
    struct dpt_partial *partials;
    float *scratch;
    void *staging;
    size_t staging_bytes; /* of a turn */
    /* On a device: where what is added lies, and what is joined after each, here and there. */
    const float **parts, **device_parts; /* [world size * DPT_COVER_MAX] */
    uint8_t *joins, *device_joins;       /* likewise */
};

/* What the rank at `from` has added of the part that the one at `to` adds. */
static struct dpt_interval crossing_piece(const struct dpt_strategy *s, int from, int to, int unit,
                                          int part)
{
    const struct dpt_shard crossed = {s->waves.crossed[to], s->part.world->size};
    return dpt_partition_crossing(&s->part, s->env.grid, from, crossed, unit, part);
}

static void post_cross(void *ctx, const struct dpt_task *task, int turn,
                       struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_cross *cross = s->waves.cross;
    const int unit = task->unit, me = s->part.position, n_own = cross->covers[me].n;
    char *staging =
        (char *)cross->staging + (size_t)(turn % DPT_STAGING_TURNS) * cross->staging_bytes;
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i), peer = s->part.world->rank_of_position[position];
        const struct dpt_interval give = crossing_piece(s, me, position, unit, task->part),
                                  take = crossing_piece(s, position, me, unit, task->part);
        const int64_t skip = give.first - strategy_held_piece(s, me, unit).first;
        for (int c = 0; c < n_own && !strategy_is_empty(give); c++) {
            const float *sums = s->waves.sums[c].data;
            x->out[x->n_out++] =
                dpt_buffer_send(&s->waves.sums[c], peer,
                                (size_t)(strategy_sum(s, c, unit) + skip - sums) * sizeof(float),
                                (size_t)strategy_numel(give) * sizeof(float));
        }
        for (int c = 0; c < cross->covers[position].n && !strategy_is_empty(take); c++) {
            struct dpt_comm_xfer *in = &x->in[x->n_in++];
            *in = (struct dpt_comm_xfer){.dir = DPT_COMM_LEND,
                                         .peer = peer,
                                         .bytes = (size_t)strategy_numel(take) * sizeof(float)};
            if (dpt_partition_is_staged(&s->part, position)) {
                in->buf = staging;
                staging += in->bytes;
            }
        }
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
                                         .parts = cross->device_parts,
                                         .joins = cross->device_joins,
                                         .dtype = DPT_F32,
                                         .dst = sum};
    s->ops->copy(s->comm_stream, (size_t)n * sizeof *cross->parts, cross->parts,
                 (void *)cross->device_parts);
    s->ops->copy(s->comm_stream, (size_t)n, cross->joins, cross->device_joins);
    s->ops->ordered_sum(s->comm_stream, &args);
}

/* Adds what starts at `at`, as far as every node has it in one piece; returns where that ends. */
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
    if (s->env.resident)
        add_on_device(s, n, end - at, sum);
    else
        dpt_tree_sum_add(s->ops, s->comm_stream, &sum_of);
    return end;
}

static enum dpt_status crossed(void *ctx, const struct dpt_task *task, int turn,
                               const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_cross *cross = s->waves.cross;
    const int me = s->part.position;
    const struct dpt_interval own =
        dpt_part_of(strategy_whole_piece(s, me, task->unit), DPT_BLOCK, task->part, task->n_parts);
    int n = 0;
    (void)turn;
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

static int64_t cross_bytes(const void *ctx, const struct dpt_task *task)
{
    const struct dpt_strategy *s = ctx;
    const int me = s->part.position;
    int64_t numel = 0;
    for (int i = 1; i < s->part.world->size; i++)
        numel +=
            strategy_numel(crossing_piece(s, me, strategy_other(s, i), task->unit, task->part));
    return s->waves.cross->covers[me].n * numel * (int64_t)sizeof(float);
}

/* ---- memory and plan ---- */

static void find_covers(struct dpt_strategy *s, struct strategy_cross *cross)
{
    for (int p = 0; p < s->part.world->size; p++) {
        s->waves.crossed[p] = dpt_partition_crossed(&s->part, p).index;
        cross->covers[p].n = dpt_partition_node_sums(&s->part, p, cross->covers[p].node);
    }
}

/* How many transfers a task has at most, in one direction. */
static void bound_transfers(const struct dpt_strategy *s, struct strategy_cross *cross, int unit,
                            int part)
{
    const int me = s->part.position;
    int in = 0, out = 0;
    for (int i = 1; i < s->part.world->size; i++) {
        const int position = strategy_other(s, i);
        if (!strategy_is_empty(crossing_piece(s, me, position, unit, part)))
            out += cross->covers[me].n;
        if (!strategy_is_empty(crossing_piece(s, position, me, unit, part)))
            in += cross->covers[position].n;
    }
    cross->xfers_max = in > cross->xfers_max ? in : cross->xfers_max;
    cross->xfers_max = out > cross->xfers_max ? out : cross->xfers_max;
}

static void cut_parts(const struct dpt_strategy *s, struct strategy_cross *cross)
{
    for (int u = 0; u < s->n_units; u++) {
        cross->n_parts[u] = dpt_partition_cross_parts(&s->part, s->env.grid, u);
        for (int part = 0; part < cross->n_parts[u]; part++)
            bound_transfers(s, cross, u, part);
    }
}

static size_t sources_of(const struct dpt_strategy *s)
{
    return (size_t)s->part.world->size * DPT_COVER_MAX;
}

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail_nomem(err, "sums of nodes");
}

static enum dpt_status make_device_lists(const struct dpt_strategy *s, struct strategy_cross *cross,
                                         struct dpt_err *err)
{
    const size_t n = sources_of(s);
    void *memory = NULL;
    cross->parts = calloc(n, sizeof *cross->parts);
    cross->joins = calloc(n, sizeof *cross->joins);
    if (!cross->parts || !cross->joins)
        return no_memory(err);
    DPT_TRY(
        dpt_device_alloc_for(s->device, DPT_MEMORY_COMM, n * sizeof *cross->parts, &memory, err));
    cross->device_parts = memory;
    DPT_TRY(dpt_device_alloc_for(s->device, DPT_MEMORY_COMM, n, &memory, err));
    cross->device_joins = memory;
    return DPT_OK;
}

enum dpt_status strategy_cross_begin(struct dpt_strategy *s, struct dpt_err *err)
{
    const size_t size = (size_t)s->part.world->size;
    struct strategy_cross *cross = calloc(1, sizeof *cross);
    s->waves.cross = cross;
    s->waves.crossed = calloc(size, sizeof *s->waves.crossed);
    if (cross) {
        cross->covers = calloc(size, sizeof *cross->covers);
        cross->sources = calloc(sources_of(s), sizeof *cross->sources);
        cross->partials = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *cross->partials);
        cross->scratch = aligned_alloc(64, dpt_tree_sum_scratch_numel() * sizeof(float));
    }
    if (!cross || !s->waves.crossed || !cross->covers || !cross->sources || !cross->partials ||
        !cross->scratch)
        return no_memory(err);
    find_covers(s, cross);
    cut_parts(s, cross);
    if (s->env.resident)
        DPT_TRY(make_device_lists(s, cross, err));
    const struct dpt_memory_entry *staging = &s->memory.item[DPT_ITEM_CROSSING];
    cross->staging_bytes = staging->bytes;
    return staging->n == 0
               ? DPT_OK
               : dpt_device_alloc_for(s->device, staging->tag, (size_t)staging->n * staging->bytes,
                                      &cross->staging, err);
}

void strategy_cross_end(struct dpt_strategy *s)
{
    struct strategy_cross *cross = s->waves.cross;
    free(s->waves.crossed);
    s->waves.crossed = NULL;
    s->waves.cross = NULL;
    if (!cross)
        return;
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, cross->staging,
                        DPT_STAGING_TURNS * cross->staging_bytes);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, (void *)cross->device_parts,
                        sources_of(s) * sizeof *cross->parts);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, cross->device_joins, sources_of(s));
    free(cross->parts);
    free(cross->joins);
    free(cross->covers);
    free(cross->sources);
    free(cross->partials);
    free(cross->scratch);
    free(cross);
}

const int *strategy_cross_parts(const struct strategy_cross *cross)
{
    return cross ? cross->n_parts : NULL;
}

int strategy_cross_xfers_max(const struct strategy_cross *cross)
{
    return cross ? cross->xfers_max : 0;
}

const struct dpt_task_handler strategy_cross = {post_cross, crossed, cross_bytes};
