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

struct dpt_shard sharded_shard(const struct sharded *s, int position)
{
    if (s->policy.whole_state)
        return (struct dpt_shard){0, 1};
    if (!s->policy.group)
        return (struct dpt_shard){s->world->rank_of_position[position], s->world->size};
    const struct dpt_range node = dpt_world_node(s->world, position);
    return (struct dpt_shard){position - node.first, node.end - node.first};
}

void sharded_find_group(struct sharded *s)
{
    const struct dpt_range group = s->policy.group ? dpt_world_node(s->world, s->position)
                                                   : (struct dpt_range){0, s->world->size};
    s->group_first = group.first;
    s->group_size = group.end - group.first;
    s->members = s->policy.by_node ? group : (struct dpt_range){0, s->world->size};
    s->largest = s->members.first;
    while (sharded_folded(s, s->largest).index > 0)
        s->largest++;
    s->shadow_shift = s->policy.shadow ? dpt_shadow_shift(s->world) : 0;
    s->buddy = dpt_shadow_buddy(s->world, s->shadow_shift, s->position);
    s->ward = dpt_shadow_ward(s->world, s->shadow_shift, s->position);
}

struct dpt_shard sharded_folded(const struct sharded *s, int position)
{
    return s->policy.by_node
               ? sharded_shard(s, position)
               : (struct dpt_shard){s->world->rank_of_position[position], s->world->size};
}

float *sharded_sum(const struct sharded *s, int sum, int unit)
{
    if (s->lanes)
        return dpt_lane_sums_gradient(s->lanes) +
               dpt_shard_piece(s->env.grid, s->piece, unit).first;
    float *data = dpt_comm_mem_data(s->sums[sum]);
    return data + (sum == 0 && s->policy.whole_state
                       ? dpt_shard_piece(s->env.grid, s->piece, unit).first
                       : dpt_shard_offset(s->env.grid, s->piece, unit));
}

enum dpt_status sharded_mem(struct sharded *s, enum dpt_memory_tag tag, struct dpt_comm_mem **mem,
                            size_t bytes, struct dpt_err *err)
{
    if (*mem && dpt_comm_mem_bytes(*mem) == bytes)
        return DPT_OK;
    dpt_comm_mem_destroy(mem);
    return dpt_comm_mem_create_for(s->env.listener, tag, false, bytes, mem, err);
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

/* `own`, not a shadow: its f32 weights lie in their places among all of them, if there are all. */
static enum dpt_status make_part(struct sharded *s, struct dpt_shard shard, bool own,
                                 struct dpt_state_part *part, struct dpt_err *err)
{
    *part = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < dpt_vectors(s->env.config) && !dpt_shard_is_none(shard); v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        if (v == DPT_VECTOR_PARAM && own && has_whole(s) && s->dtype == DPT_F32) {
            *vector = (struct dpt_state_vector){.mem = s->whole, .flat = true};
            continue;
        }
        vector->flat = s->policy.whole_state;
        const enum dpt_memory_tag tag =
            own ? dpt_vector_tag((enum dpt_vector)v, s->dtype) : DPT_MEMORY_SHADOW;
        const enum dpt_status status = dpt_comm_mem_create_for(
            s->env.listener, tag, false, shard_bytes(s, shard, sizeof(float)), &vector->mem, err);
        if (status != DPT_OK) {
            free_part(s, part, NULL);
            return status;
        }
    }
    return DPT_OK;
}

/* What is wanted: what is held, or a part of its own. */
static enum dpt_status want_part(struct sharded *s, struct dpt_shard shard, bool own,
                                 const struct dpt_state_part *held, struct dpt_state_part *wanted,
                                 struct dpt_err *err)
{
    *wanted = *held;
    if (dpt_shard_equal(held->shard, shard))
        return DPT_OK;
    s->moves = true;
    return make_part(s, shard, own, wanted, err);
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
        DPT_TRY(dpt_comm_mem_create_for(s->env.listener, DPT_MEMORY_WEIGHTS, false,
                                        (size_t)s->flat_numel * s->width, &s->whole, err));
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
    sharded_rebuild_drop(s);
    free_part(s, &s->held.own, NULL);
    free_part(s, &s->held.shadow, NULL);
    dpt_comm_mem_destroy(&s->whole);
    dpt_comm_mem_destroy(&s->copy);
    for (int i = 0; i < s->n_gathered; i++)
        dpt_device_free_for(s->env.device, DPT_MEMORY_GATHERED, s->gathered[i],
                            s->gathered_bytes[i]);
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
        DPT_TRY(dpt_device_alloc_for(s->env.device, DPT_MEMORY_GATHERED, s->gathered_bytes[i],
                                     &s->gathered[i], err));
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
    sharded_rebuild_drop(s);
    s->wanted = s->held;
    DPT_TRY(want_part(s, own, true, &s->held.own, &s->wanted.own, err));
    DPT_TRY(want_part(s, shadow, false, &s->held.shadow, &s->wanted.shadow, err));
    if (s->policy.weights != DPT_WEIGHTS_UNITS)
        return DPT_OK;
    if (s->dtype != DPT_F32)
        DPT_TRY(sharded_mem(s, DPT_MEMORY_WEIGHTS, &s->copy, shard_bytes(s, own, s->width), err));
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
        return (float *)dpt_comm_mem_data(s->sums[0]) + s->env.grid->offset[unit];
    return sharded_sum(s, 0, unit);
}

float *sharded_shadow_gradient(const struct sharded *s, int unit)
{
    return (float *)dpt_comm_mem_data(s->shadowed) +
           dpt_shard_offset(s->env.grid, sharded_shadow(s)->shard, unit);
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
        .v = part->vector[DPT_VECTOR_V].mem ? dpt_state_at(part, s->env.grid, DPT_VECTOR_V, unit)
                                            : NULL,
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
        const struct dpt_state_part *shadow = sharded_shadow(s);
        if (!dpt_shard_is_none(shadow->shard) && (shadow != &s->late || u < s->late_end))
            apply_piece(s, step, shadow, u, sharded_shadow_gradient(s, u), NULL);
    }
    sharded_rebuild_applied(s);
    s->stale = true;
    return dpt_stream_sync(s->env.stream, err);
}

enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret, struct dpt_err *err)
{
    dpt_accum_init(ret);
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = sharded_whole_piece(s, s->position, u);
        const float *sum = s->cross ? sharded_added_sum(s, u) : sharded_sum(s, 0, u);
        const int64_t numel = piece.end - piece.first;
        if (numel <= 0)
            continue;
        s->ops->sumsq_blocks(s->env.stream, numel, DPT_BLOCK, sum, s->block_sums);
        DPT_TRY(dpt_stream_sync(s->env.stream, err));
        for (int64_t b = 0; b < numel / DPT_BLOCK; b++)
            dpt_accum_add(ret, s->block_sums[b]);
    }
    dpt_accum_normalise(ret);
    return DPT_OK;
}
