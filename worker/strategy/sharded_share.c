/* What follows a unit's sums (sharded.h): where nodes sum their own lanes, their sums go to the
 * owners of pieces of the whole, who add them in the lanes' tree (CROSS); and what is summed goes
 * to who applies it: to all, to the replicas, to the shadow (SHARE).
 *
 *   node 0, ranks a b, lanes 0 … 3       node 1, ranks c d, lanes 4 … 7
 *   a: half 0, b: half 1                 c: half 0, d: half 1       summed, slot after slot
 *   CROSS  quarters 0, 1, 2, 3 of the sums to a, c, b, d
 *   SHARE  the same quarters of the whole sum back
 *
 * So each element goes between two nodes once there and once back in a step, however many slots a
 * rank has. Nodes of different sizes cut differently; then more pieces meet, and go one by one. */
#include "worker/strategy/sharded.h"

#include "worker/strategy/tree_sum.h"
#include "worker/strategy/wire.h"

#include <stdlib.h>
#include <string.h>

struct sharded_cross {
    struct cover { /* [world size] the sums that a position's node has */
        int n;
        struct dpt_range node[DPT_COVER_MAX];
    } * covers;
    int *piece;                 /* [world size] of the whole, that the rank at a position adds */
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

static bool is_empty(struct dpt_interval range)
{
    return range.end <= range.first;
}

static int64_t numel_of(struct dpt_interval range)
{
    return is_empty(range) ? 0 : range.end - range.first;
}

/* Position i places after the own one: so that not all begin with the same rank. */
static int other_position(const struct sharded *s, int i)
{
    return (s->position + i) % s->world->size;
}

struct dpt_shard sharded_added(const struct sharded *s, int position)
{
    return (struct dpt_shard){s->cross->piece[position], s->world->size};
}

float *sharded_added_sum(const struct sharded *s, int unit)
{
    float *data = s->added.data;
    return data + dpt_shard_offset(s->env.grid, sharded_added(s, s->position), unit);
}

/* Part `part` of what the rank at a position adds of a unit. */
static struct dpt_interval cross_part(const struct sharded *s, int position, int unit, int part)
{
    const struct dpt_interval piece = sharded_whole_piece(s, position, unit);
    if (is_empty(piece))
        return (struct dpt_interval){0, 0};
    const struct dpt_interval range =
        dpt_layout_piece(piece.end - piece.first, DPT_BLOCK, s->cross->n_parts[unit], part);
    return (struct dpt_interval){piece.first + range.first, piece.first + range.end};
}

/* What the rank at `from` has summed of what the one at `to` adds. */
static struct dpt_interval crossing(const struct sharded *s, int from, int to, int unit, int part)
{
    return dpt_interval_intersect(sharded_held_piece(s, from, unit), cross_part(s, to, unit, part));
}

void sharded_post_cross(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x)
{
    const struct sharded *s = ctx;
    const struct sharded_cross *cross = s->cross;
    const int unit = task->unit, n_own = cross->covers[s->position].n;
    char *staging = (char *)cross->staging + (size_t)(turn % SHARDED_TURNS) * cross->staging_bytes;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval give = crossing(s, s->position, position, unit, task->part),
                                  take = crossing(s, position, s->position, unit, task->part);
        const int64_t skip = give.first - sharded_held_piece(s, s->position, unit).first;
        for (int c = 0; c < n_own && !is_empty(give); c++) {
            const float *sums = s->sums[c].data;
            x->out[x->n_out++] = dpt_buffer_send(
                &s->sums[c], peer, (size_t)(sharded_sum(s, c, unit) + skip - sums) * sizeof(float),
                (size_t)numel_of(give) * sizeof(float));
        }
        for (int c = 0; c < cross->covers[position].n && !is_empty(take); c++) {
            struct dpt_comm_xfer *in = &x->in[x->n_in++];
            *in = (struct dpt_comm_xfer){.dir = DPT_COMM_LEND,
                                         .peer = peer,
                                         .bytes = (size_t)numel_of(take) * sizeof(float)};
            if (sharded_is_staged(s, position)) {
                in->buf = staging;
                staging += in->bytes;
            }
        }
    }
}

/* The sum of n partials on the device, in the order of the lanes' tree. */
static void add_on_device(const struct sharded *s, int n, int64_t numel, float *sum)
{
    const struct sharded_cross *cross = s->cross;
    const struct dpt_range whole = {0, s->world->lanes};
    for (int i = 0; i < n; i++) {
        cross->parts[i] = cross->partials[i].data;
        cross->joins[i] =
            (uint8_t)dpt_tree_joins_at(s->world->lanes, whole, cross->partials[i].node);
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
static int64_t add_run(const struct sharded *s, const struct dpt_task *task,
                       struct dpt_interval own, int64_t at)
{
    const struct sharded_cross *cross = s->cross;
    const struct dpt_range whole = {0, s->world->lanes};
    int64_t end = own.end;
    int n = 0;
    for (int position = 0; position < s->world->size; position++) {
        const struct dpt_interval piece = sharded_held_piece(s, position, task->unit);
        if (at < piece.first || at >= piece.end) /* who has it of this node is another */
            continue;
        const int64_t begins = piece.first > own.first ? piece.first : own.first;
        for (int c = 0; c < cross->covers[position].n; c++)
            cross->partials[n++] = (struct dpt_partial){
                .node = cross->covers[position].node[c],
                .data = cross->sources[position * DPT_COVER_MAX + c] + (at - begins)};
        end = piece.end < end ? piece.end : end;
    }
    float *sum = sharded_added_sum(s, task->unit) +
                 (at - sharded_whole_piece(s, s->position, task->unit).first);
    if (s->env.resident)
        add_on_device(s, n, end - at, sum);
    else
        dpt_tree_sum(s->ops, s->comm_stream, cross->partials, n, &whole, &sum, 1, NULL, 0, DPT_F32,
                     end - at, cross->scratch);
    return end;
}

enum dpt_status sharded_crossed(void *ctx, const struct dpt_task *task, int turn,
                                const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct sharded *s = ctx;
    const struct dpt_interval own = cross_part(s, s->position, task->unit, task->part);
    int n = 0;
    (void)turn;
    for (int i = 0; i < s->world->size; i++) {
        const int position = other_position(s, i);
        const struct dpt_interval take = crossing(s, position, s->position, task->unit, task->part);
        const int64_t skip = take.first - sharded_held_piece(s, position, task->unit).first;
        for (int c = 0; c < s->cross->covers[position].n && !is_empty(take); c++)
            s->cross->sources[position * DPT_COVER_MAX + c] =
                i == 0 ? sharded_sum(s, c, task->unit) + skip : x->in[n++].lent;
    }
    DPT_ASSERT(n == x->n_in);
    for (int64_t at = own.first; at < own.end;)
        at = add_run(s, task, own, at);
    return dpt_stream_sync(s->comm_stream, err);
}

/* What the rank at position `from` has whole of a unit and the one at `to` applies beside it. */
static struct dpt_interval shared(const struct sharded *s, int from, int to, int unit)
{
    const struct dpt_interval summed = sharded_whole_piece(s, from, unit);
    if (s->policy.shadow) {
        const bool covers = (from == s->position && to == s->shadow_holder) ||
                            (to == s->position && from == s->shadow_source);
        return covers ? summed : (struct dpt_interval){0, 0};
    }
    return dpt_interval_intersect(summed, sharded_held_piece(s, to, unit));
}

/* Where this rank keeps element `element` of what it applies of a unit that others have summed. */
static float *share_place(const struct sharded *s, int unit, int64_t element)
{
    if (s->policy.shadow)
        return sharded_shadow_gradient(s, unit) +
               (element - sharded_held_piece(s, s->shadow_source, unit).first);
    return sharded_own_gradient(s, unit) +
           (element - sharded_held_piece(s, s->position, unit).first);
}

/* The own part, where it is applied elsewhere than it was summed. */
static void share_own(const struct sharded *s, int unit)
{
    const struct dpt_interval take = shared(s, s->position, s->position, unit);
    const float *own = s->cross ? sharded_added_sum(s, unit) : sharded_sum(s, 0, unit);
    const int64_t skip = take.first - sharded_whole_piece(s, s->position, unit).first;
    if (!is_empty(take) && (s->applied.data || s->cross))
        s->ops->copy(s->comm_stream, (size_t)(take.end - take.first) * sizeof(float), own + skip,
                     share_place(s, unit, take.first));
}

void sharded_post_share(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x)
{
    const struct sharded *s = ctx;
    const int unit = task->unit;
    const struct dpt_buffer *from = s->cross ? &s->added : &s->sums[0];
    const float *sums = from->data,
                *own = s->cross ? sharded_added_sum(s, unit) : sharded_sum(s, 0, unit);
    const int64_t own_first = sharded_whole_piece(s, s->position, unit).first;
    (void)turn;
    share_own(s, unit);
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), peer = s->world->rank_of_position[position];
        const struct dpt_interval give = shared(s, s->position, position, unit),
                                  take = shared(s, position, s->position, unit);
        const bool narrow = sharded_is_narrow(s, position);
        const size_t width = sharded_width(s, position);
        if (!is_empty(give))
            x->out[x->n_out++] = dpt_buffer_send(
                narrow ? &s->narrow_sum : from, peer,
                narrow ? sharded_narrow_offset(s, unit, give.first - own_first)
                       : (size_t)(own + (give.first - own_first) - sums) * sizeof(float),
                (size_t)(give.end - give.first) * width);
        if (is_empty(take))
            continue;
        float *place = share_place(s, unit, take.first);
        x->in[x->n_in++] = (struct dpt_comm_xfer){
            .dir = DPT_COMM_RECV,
            .peer = peer,
            .buf = narrow ? dpt_wire_inbox(take.end - take.first, place) : place,
            .bytes = (size_t)(take.end - take.first) * width};
    }
}

/* What other hosts have summed lies narrow in its place. */
static void widen_shared(const struct sharded *s, int64_t n, float *values)
{
    if (!s->env.resident) {
        dpt_wire_unpack(s->ops, s->comm_stream, s->wire, n, values);
        return;
    }
    s->ops->copy(s->comm_stream, (size_t)n * dpt_dtype_bytes(s->wire), dpt_wire_inbox(n, values),
                 s->scratch);
    s->ops->widen(s->comm_stream, n, s->wire, s->scratch, values);
}

enum dpt_status sharded_shared(void *ctx, const struct dpt_task *task, int turn,
                               const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct sharded *s = ctx;
    (void)turn;
    (void)x;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i);
        const struct dpt_interval take = shared(s, position, s->position, task->unit);
        if (!is_empty(take) && sharded_is_narrow(s, position))
            widen_shared(s, take.end - take.first, share_place(s, task->unit, take.first));
    }
    return dpt_stream_sync(s->comm_stream, err);
}

int64_t sharded_share_bytes(const struct sharded *s, const struct dpt_task *t)
{
    int64_t bytes = 0;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i);
        if (t->kind == DPT_TASK_CROSS)
            bytes += s->cross->covers[s->position].n *
                     numel_of(crossing(s, s->position, position, t->unit, t->part)) *
                     (int64_t)sizeof(float);
        else
            bytes += numel_of(shared(s, s->position, position, t->unit)) *
                     (int64_t)sharded_width(s, position);
    }
    return bytes;
}

/* ---- memory and plan ---- */

/* Pieces of the whole go to the ranks by where their own pieces of a replica lie, so that they meet
 * as far as they can. */
static void assign_pieces(const struct sharded *s, struct sharded_cross *cross)
{
    for (int p = 0; p < s->world->size; p++) {
        const struct dpt_shard own = sharded_shard(s, p);
        for (int k = 0; k < s->world->size; k++) {
            const struct dpt_shard other = sharded_shard(s, k);
            const int difference = other.index * own.of - own.index * other.of;
            cross->piece[p] += difference < 0 || (difference == 0 && k < p);
        }
        cross->covers[p].n =
            dpt_tree_cover(s->world->lanes, dpt_world_lanes(s->world, dpt_world_node(s->world, p)),
                           cross->covers[p].node);
    }
}

/* How many transfers a task has at most, and how many bytes of it are staged. */
static void bound_task(const struct sharded *s, struct sharded_cross *cross, int unit, int part)
{
    int in = 0, out = 0;
    size_t staged = 0;
    for (int i = 1; i < s->world->size; i++) {
        const int position = other_position(s, i), sums = cross->covers[position].n;
        const struct dpt_interval give = crossing(s, s->position, position, unit, part),
                                  take = crossing(s, position, s->position, unit, part);
        out += is_empty(give) ? 0 : cross->covers[s->position].n;
        in += is_empty(take) ? 0 : sums;
        if (sharded_is_staged(s, position))
            staged += (size_t)(sums * numel_of(take)) * sizeof(float);
    }
    cross->xfers_max = in > cross->xfers_max ? in : cross->xfers_max;
    cross->xfers_max = out > cross->xfers_max ? out : cross->xfers_max;
    cross->staging_bytes = staged > cross->staging_bytes ? staged : cross->staging_bytes;
}

static void cut_parts(const struct sharded *s, struct sharded_cross *cross)
{
    for (int u = 0; u < s->n_units; u++) {
        const int64_t bytes =
            numel_of(dpt_shard_piece(s->env.grid, (struct dpt_shard){0, s->world->size}, u)) *
            (int64_t)sizeof(float);
        const int64_t most = sharded_part_bytes(s, s->world->size);
        cross->n_parts[u] = bytes > most ? (int)((bytes + most - 1) / most) : 1;
        for (int part = 0; part < cross->n_parts[u]; part++)
            bound_task(s, cross, u, part);
    }
}

static size_t sources_of(const struct sharded *s)
{
    return (size_t)s->world->size * DPT_COVER_MAX;
}

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "sums of nodes: out of memory");
}

static enum dpt_status make_lists(const struct sharded *s, struct sharded_cross *cross,
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

enum dpt_status sharded_cross_begin(struct sharded *s, struct dpt_err *err)
{
    const size_t size = (size_t)s->world->size;
    struct sharded_cross *cross = calloc(1, sizeof *cross);
    s->cross = cross;
    if (cross) {
        cross->covers = calloc(size, sizeof *cross->covers);
        cross->piece = calloc(size, sizeof *cross->piece);
        cross->sources = calloc(sources_of(s), sizeof *cross->sources);
        cross->partials = calloc(DPT_TREE_SUM_PARTS_MAX, sizeof *cross->partials);
        cross->scratch = aligned_alloc(64, dpt_tree_sum_scratch_numel() * sizeof(float));
    }
    if (!cross || !cross->covers || !cross->piece || !cross->sources || !cross->partials ||
        !cross->scratch)
        return no_memory(err);
    assign_pieces(s, cross);
    cut_parts(s, cross);
    const int64_t numel = dpt_shard_numel(s->env.grid, sharded_added(s, s->position));
    DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_GRADIENT,
                            (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float), &s->added,
                            err));
    if (s->env.resident)
        DPT_TRY(make_lists(s, cross, err));
    if (cross->staging_bytes == 0)
        return DPT_OK;
    return dpt_device_alloc_for(s->device, DPT_MEMORY_COMM, SHARDED_TURNS * cross->staging_bytes,
                                &cross->staging, err);
}

void sharded_cross_end(struct sharded *s)
{
    struct sharded_cross *cross = s->cross;
    if (!cross)
        return;
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, cross->staging,
                        SHARDED_TURNS * cross->staging_bytes);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, (void *)cross->device_parts,
                        sources_of(s) * sizeof *cross->parts);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, cross->device_joins, sources_of(s));
    free(cross->parts);
    free(cross->joins);
    free(cross->covers);
    free(cross->piece);
    free(cross->sources);
    free(cross->partials);
    free(cross->scratch);
    free(cross);
    s->cross = NULL;
}

const int *sharded_cross_parts(const struct sharded *s)
{
    return s->cross ? s->cross->n_parts : NULL;
}

int sharded_xfers_max(const struct sharded *s)
{
    const int others = s->world->size - 1;
    return s->cross && s->cross->xfers_max > others ? s->cross->xfers_max : others;
}
