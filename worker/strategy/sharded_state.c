/* Masters, moments and weights of a sharded strategy: where they lie, how the weights are made from
 * the masters, the step (sharded.h). */
#include "worker/strategy/sharded.h"

#include "worker/optim/optim.h"

#include <stdlib.h>
#include <string.h>

static bool has_whole(const struct sharded *s)
{
    return s->policy.weights != DPT_WEIGHTS_UNITS;
}

enum dpt_weights_plan sharded_weights_plan(const struct sharded *s)
{
    return s->group_size == 1 ? DPT_WEIGHTS_HELD : s->policy.weights;
}

/* Positions of the host at position `position`. */
static struct dpt_range host_of(const struct dpt_world *world, int position)
{
    const int host = world->host_of_position[position];
    struct dpt_range range = {position, position + 1};
    while (range.first > 0 && world->host_of_position[range.first - 1] == host)
        range.first--;
    while (range.end < world->size && world->host_of_position[range.end] == host)
        range.end++;
    return range;
}

struct dpt_shard sharded_shard(const struct sharded *s, int position)
{
    if (s->policy.whole_state)
        return (struct dpt_shard){0, 1};
    if (!s->policy.group)
        return (struct dpt_shard){s->world->rank_of_position[position], s->world->size};
    const struct dpt_range host = host_of(s->world, position);
    return (struct dpt_shard){position - host.first, host.end - host.first};
}

/* A shard's buddy is as many positions on as the largest host has ranks: so on another host, and
 * each rank has one, where that host has no more than half of them. */
void sharded_find_group(struct sharded *s)
{
    const int size = s->world->size;
    struct dpt_range group = {0, size};
    int largest = 0;
    for (int p = 0; p < size; p++) {
        const struct dpt_range host = host_of(s->world, p);
        if (host.end - host.first > largest)
            largest = host.end - host.first;
    }
    if (s->policy.group)
        group = host_of(s->world, s->position);
    s->group_first = group.first;
    s->group_size = group.end - group.first;
    s->buddy = s->ward = -1;
    if (!s->policy.shadow || size < 2 * largest)
        return;
    s->buddy = (s->position + largest) % size;
    s->ward = (s->position + size - largest) % size;
}

struct dpt_interval sharded_piece(const struct sharded *s, int rank, int unit)
{
    return dpt_shard_piece(s->env.grid, (struct dpt_shard){rank, s->world->size}, unit);
}

float *sharded_sum(const struct sharded *s, int sum, int unit)
{
    if (s->lanes)
        return dpt_lane_sums_gradient(s->lanes) +
               dpt_shard_piece(s->env.grid, s->piece, unit).first;
    if (sum > 0)
        return (float *)s->sums[sum] + dpt_shard_offset(s->env.grid, s->piece, unit);
    float *data = dpt_comm_mem_data(s->sum0);
    return data + (s->policy.whole_state ? dpt_shard_piece(s->env.grid, s->piece, unit).first
                                         : dpt_shard_offset(s->env.grid, s->piece, unit));
}

enum dpt_status sharded_mem(struct sharded *s, struct dpt_comm_mem **mem, size_t bytes,
                            struct dpt_err *err)
{
    if (*mem && dpt_comm_mem_bytes(*mem) == bytes)
        return DPT_OK;
    dpt_comm_mem_destroy(mem);
    return dpt_comm_mem_create(s->env.listener, bytes, mem, err);
}

/* Bytes of a compact shard; never none, so that there is memory to point to. */
static size_t shard_bytes(const struct sharded *s, struct dpt_shard shard, size_t width)
{
    const int64_t numel = dpt_shard_numel(s->env.grid, shard);
    return (size_t)(numel > 0 ? numel : DPT_BLOCK) * width;
}

/* Frees a part's memory but for what `kept` has too. */
static void free_part(const struct sharded *s, struct dpt_state_part *part,
                      const struct dpt_state_part *kept)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_comm_mem **mem = &part->vector[v].mem;
        if (*mem != s->whole && !(kept && kept->vector[v].mem == *mem))
            dpt_comm_mem_destroy(mem);
        *mem = NULL;
    }
    part->shard = (struct dpt_shard){0, 0};
}

/* `in_whole`: its f32 weights lie in their places among all of them. */
static enum dpt_status make_part(struct sharded *s, struct dpt_shard shard, bool in_whole,
                                 struct dpt_state_part *part, struct dpt_err *err)
{
    *part = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < DPT_VECTOR_COUNT && !dpt_shard_is_none(shard); v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        if (v == DPT_VECTOR_PARAM && in_whole && has_whole(s) && s->dtype == DPT_F32) {
            *vector = (struct dpt_state_vector){.mem = s->whole, .flat = true};
            continue;
        }
        vector->flat = s->policy.whole_state;
        const enum dpt_status status = dpt_comm_mem_create(
            s->env.listener, shard_bytes(s, shard, sizeof(float)), &vector->mem, err);
        if (status != DPT_OK) {
            free_part(s, part, NULL);
            return status;
        }
    }
    return DPT_OK;
}

/* What is wanted: what is held, or a part of its own. */
static enum dpt_status want_part(struct sharded *s, struct dpt_shard shard, bool in_whole,
                                 const struct dpt_state_part *held, struct dpt_state_part *wanted,
                                 struct dpt_err *err)
{
    *wanted = *held;
    if (dpt_shard_equal(held->shard, shard))
        return DPT_OK;
    s->moves = true;
    return make_part(s, shard, in_whole, wanted, err);
}

static void drop_wanted(struct sharded *s)
{
    if (s->moves) {
        free_part(s, &s->wanted.own, &s->held.own);
        free_part(s, &s->wanted.shadow, &s->held.shadow);
    }
    s->moves = false;
}

enum dpt_status sharded_state_create(struct sharded *s, struct dpt_err *err)
{
    if (has_whole(s)) {
        DPT_TRY(
            dpt_comm_mem_create(s->env.listener, (size_t)s->flat_numel * s->width, &s->whole, err));
        for (int u = 0; u < s->n_units; u++)
            s->weights[u] =
                (char *)dpt_comm_mem_data(s->whole) + (size_t)s->env.grid->offset[u] * s->width;
    }
    /* What no world changes is there from the beginning. */
    if (s->policy.whole_state)
        return make_part(s, (struct dpt_shard){0, 1}, true, &s->held.own, err);
    return DPT_OK;
}

void sharded_state_destroy(struct sharded *s)
{
    drop_wanted(s);
    free_part(s, &s->held.own, NULL);
    free_part(s, &s->held.shadow, NULL);
    dpt_comm_mem_destroy(&s->whole);
    dpt_comm_mem_destroy(&s->copy);
    for (int i = 0; i < s->n_gathered; i++)
        dpt_device_free(s->env.device, s->gathered[i], s->gathered_bytes[i]);
}

/* Elements of the largest unit that has no buffer of its own. */
static int64_t shared_numel(const struct sharded *s)
{
    int64_t most = 0;
    for (int u = 0; u < s->n_units; u++) {
        const int64_t numel = dpt_model_unit(s->env.model, u)->numel;
        if (u != s->tied && numel > most)
            most = numel;
    }
    return most;
}

/* Room for units that are gathered: no world changes it. */
static enum dpt_status make_gathered(struct sharded *s, struct dpt_err *err)
{
    const int own = s->tied >= 0, n = own + s->env.config->strategy.gathered_units_max;
    while (s->n_gathered < n) {
        const int i = s->n_gathered;
        const int64_t numel =
            i < own ? dpt_model_unit(s->env.model, s->tied)->numel : shared_numel(s);
        s->gathered_bytes[i] = (size_t)numel * s->width;
        DPT_TRY(dpt_device_alloc(s->env.device, s->gathered_bytes[i], &s->gathered[i], err));
        s->n_gathered++;
    }
    return DPT_OK;
}

enum dpt_status sharded_state_begin(struct sharded *s, struct dpt_err *err)
{
    const struct dpt_shard own = sharded_shard(s, s->position);
    const struct dpt_shard shadow =
        s->ward < 0 ? (struct dpt_shard){0, 0} : sharded_shard(s, s->ward);
    drop_wanted(s);
    s->wanted = s->held;
    DPT_TRY(want_part(s, own, true, &s->held.own, &s->wanted.own, err));
    DPT_TRY(want_part(s, shadow, false, &s->held.shadow, &s->wanted.shadow, err));
    if (s->policy.weights != DPT_WEIGHTS_UNITS)
        return DPT_OK;
    if (s->dtype != DPT_F32)
        DPT_TRY(sharded_mem(s, &s->copy, shard_bytes(s, own, s->width), err));
    return s->group_size > 1 ? make_gathered(s, err) : DPT_OK;
}

/* Where this rank's own weights of a unit lie in the compute dtype. */
static char *own_weights(const struct sharded *s, int unit)
{
    size_t offset;
    const struct dpt_comm_mem *mem = sharded_weights_mem(s, unit, &offset);
    return (char *)dpt_comm_mem_data(mem) + offset;
}

struct dpt_comm_mem *sharded_weights_mem(const struct sharded *s, int unit, size_t *ret_offset)
{
    const struct dpt_state_part *own = &s->held.own;
    if (has_whole(s)) {
        *ret_offset = (size_t)dpt_shard_piece(s->env.grid, own->shard, unit).first * s->width;
        return s->whole;
    }
    *ret_offset = (size_t)dpt_shard_offset(s->env.grid, own->shard, unit) * s->width;
    return s->dtype == DPT_F32 ? own->vector[DPT_VECTOR_PARAM].mem : s->copy;
}

void sharded_state_changed(struct sharded *s)
{
    if (s->moves) {
        free_part(s, &s->held.own, &s->wanted.own);
        free_part(s, &s->held.shadow, &s->wanted.shadow);
        s->held = s->wanted;
        s->moves = false;
    }
    const struct dpt_state_part *own = &s->held.own;
    s->stale = true;
    if (dpt_shard_is_none(own->shard))
        return;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, own->shard, u);
        if (s->dtype != DPT_F32 && piece.end > piece.first)
            s->ops->cast(s->env.stream, piece.end - piece.first,
                         dpt_state_at(own, s->env.grid, DPT_VECTOR_PARAM, u), s->dtype,
                         own_weights(s, u));
        if (own->shard.of == 1 && !has_whole(s))
            s->weights[u] = own_weights(s, u);
    }
}

float *sharded_own_gradient(const struct sharded *s, int unit)
{
    const struct dpt_shard shard = s->held.own.shard;
    if (s->applied)
        return (float *)dpt_comm_mem_data(s->applied) + dpt_shard_offset(s->env.grid, shard, unit);
    if (s->policy.whole_state)
        return (float *)dpt_comm_mem_data(s->sum0) + s->env.grid->offset[unit];
    return sharded_sum(s, 0, unit);
}

float *sharded_shadow_gradient(const struct sharded *s, int unit)
{
    return (float *)dpt_comm_mem_data(s->shadowed) +
           dpt_shard_offset(s->env.grid, s->held.shadow.shard, unit);
}

/* Applies the step to a part's piece of a unit; `copy`: where its weights go, too. */
static void apply_piece(const struct sharded *s, const struct dpt_optim_step *step,
                        const struct dpt_state_part *part, int unit, const float *grad, void *copy)
{
    const struct dpt_interval piece = dpt_shard_piece(s->env.grid, part->shard, unit);
    const struct dpt_optim_vectors vectors = {
        .origin = piece.first,
        .param = dpt_state_at(part, s->env.grid, DPT_VECTOR_PARAM, unit),
        .m = dpt_state_at(part, s->env.grid, DPT_VECTOR_M, unit),
        .v = dpt_state_at(part, s->env.grid, DPT_VECTOR_V, unit),
        .grad = grad,
        .copy = copy};
    if (piece.end > piece.first)
        dpt_optim_update(s->env.config, s->env.model, s->ops, s->env.stream, step, piece.first,
                         piece.end, &vectors);
}

enum dpt_status sharded_apply(struct sharded *s, const struct dpt_optim_step *step,
                              struct dpt_err *err)
{
    for (int u = 0; u < s->n_units; u++) {
        apply_piece(s, step, &s->held.own, u, sharded_own_gradient(s, u),
                    s->dtype == DPT_F32 ? NULL : own_weights(s, u));
        if (!dpt_shard_is_none(s->held.shadow.shard))
            apply_piece(s, step, &s->held.shadow, u, sharded_shadow_gradient(s, u), NULL);
    }
    s->stale = true;
    return dpt_stream_sync(s->env.stream, err);
}

enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret, struct dpt_err *err)
{
    dpt_accum_init(ret);
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, s->piece, u);
        const int64_t numel = piece.end - piece.first;
        if (numel <= 0)
            continue;
        s->ops->sumsq_blocks(s->env.stream, numel, DPT_BLOCK, sharded_sum(s, 0, u), s->block_sums);
        DPT_TRY(dpt_stream_sync(s->env.stream, err));
        for (int64_t b = 0; b < numel / DPT_BLOCK; b++)
            dpt_accum_add(ret, s->block_sums[b]);
    }
    dpt_accum_normalise(ret);
    return DPT_OK;
}
