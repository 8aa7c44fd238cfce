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
    while (sharded_summed(s, s->largest).index > 0)
        s->largest++;
    s->shadow_shift = s->policy.shadow ? dpt_shadow_shift(s->world) : 0;
    s->shadow_holder = dpt_shadow_holder(s->world, s->shadow_shift, s->position);
    s->shadow_source = dpt_shadow_source(s->world, s->shadow_shift, s->position);
}

struct dpt_shard sharded_summed(const struct sharded *s, int position)
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
    float *data = s->sums[sum].data;
    return data + (sum == 0 && s->policy.whole_state
                       ? dpt_shard_piece(s->env.grid, s->piece, unit).first
                       : dpt_shard_offset(s->env.grid, s->piece, unit));
}

/* Bytes of a compact shard; never none, so that there is memory to point to. */
static size_t shard_bytes(const struct sharded *s, struct dpt_shard shard, size_t width)
{
    const int64_t numel = dpt_shard_numel(s->env.grid, shard);
    return (size_t)(numel > 0 ? numel : DPT_BLOCK) * width;
}

static enum dpt_memory_tag part_tag(const struct sharded *s, bool own, int vector)
{
    return own ? dpt_vector_tag((enum dpt_vector)vector, s->dtype) : DPT_MEMORY_SHADOW;
}

/* The own f32 weights lie in their places among all of them, if there are all. */
static bool lies_in_whole(const struct sharded *s, bool own, int vector)
{
    return vector == DPT_VECTOR_PARAM && own && has_whole(s) && s->dtype == DPT_F32;
}

/* Frees what the device has of a part, but for what `kept` has too. */
static void free_resident(const struct sharded *s, bool own, struct dpt_state_part *part,
                          const struct dpt_state_part *kept)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        float **memory = &part->vector[v].resident;
        if (*memory && *memory != s->whole.data && !(kept && kept->vector[v].resident == *memory))
            dpt_device_free_for(s->device, part_tag(s, own, v), *memory,
                                shard_bytes(s, part->shard, sizeof(float)));
        *memory = NULL;
    }
}

/* Frees a part's memory but for what `kept` has too. */
static void free_part(const struct sharded *s, bool own, struct dpt_state_part *part,
                      const struct dpt_state_part *kept)
{
    free_resident(s, own, part, kept);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_comm_mem **mem = &part->vector[v].mem;
        if (*mem && *mem != s->whole.mem && !(kept && kept->vector[v].mem == *mem))
            dpt_comm_mem_destroy(mem);
        *mem = NULL;
    }
    part->shard = (struct dpt_shard){0, 0};
}

void sharded_part_free(const struct sharded *s, bool own, struct dpt_state_part *part)
{
    free_part(s, own, part, NULL);
}

static enum dpt_status make_part(struct sharded *s, struct dpt_shard shard, bool own,
                                 struct dpt_state_part *part, struct dpt_err *err)
{
    *part = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < dpt_vectors(s->env.config) && !dpt_shard_is_none(shard); v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        if (lies_in_whole(s, own, v) && s->whole.mem) {
            *vector = (struct dpt_state_vector){.mem = s->whole.mem, .flat = true};
            continue;
        }
        vector->flat = s->policy.whole_state;
        const enum dpt_status status =
            dpt_comm_mem_create_for(s->env.listener, part_tag(s, own, v), false,
                                    shard_bytes(s, shard, sizeof(float)), &vector->mem, err);
        if (status != DPT_OK) {
            free_part(s, own, part, NULL);
            return status;
        }
    }
    return DPT_OK;
}

/* Room on the device for what of a part is not there. */
static enum dpt_status make_resident(struct sharded *s, bool own, struct dpt_state_part *part,
                                     struct dpt_err *err)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        void *memory = NULL;
        if (!vector->mem || vector->resident)
            continue;
        vector->resident_flat = vector->flat || lies_in_whole(s, own, v);
        if (lies_in_whole(s, own, v))
            memory = s->whole.data;
        else
            DPT_TRY(dpt_device_alloc_for(s->device, part_tag(s, own, v),
                                         shard_bytes(s, part->shard, sizeof(float)), &memory, err));
        vector->resident = memory;
    }
    return DPT_OK;
}

struct dpt_buffer sharded_vector(const struct sharded *s, const struct dpt_state_part *part,
                                 enum dpt_vector vector)
{
    const struct dpt_state_vector *v = &part->vector[vector];
    if (s->env.resident)
        return (struct dpt_buffer){.data = v->resident};
    return (struct dpt_buffer){.data = dpt_comm_mem_data(v->mem), .mem = v->mem};
}

int64_t sharded_vector_offset(const struct sharded *s, const struct dpt_state_part *part,
                              enum dpt_vector vector, int unit)
{
    const struct dpt_state_vector *v = &part->vector[vector];
    return (s->env.resident ? v->resident_flat : v->flat)
               ? dpt_shard_piece(s->env.grid, part->shard, unit).first
               : dpt_shard_offset(s->env.grid, part->shard, unit);
}

float *sharded_vector_at(const struct sharded *s, const struct dpt_state_part *part,
                         enum dpt_vector vector, int unit)
{
    float *data = sharded_vector(s, part, vector).data;
    return data + sharded_vector_offset(s, part, vector, unit);
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
        free_part(s, true, &s->wanted.own, &s->held.own);
        free_part(s, false, &s->wanted.shadow, &s->held.shadow);
    }
    s->moves = false;
}

enum dpt_status sharded_state_create(struct sharded *s, struct dpt_err *err)
{
    s->newest = SHARDED_REGISTERED;
    if (has_whole(s)) {
        DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_WEIGHTS, (size_t)s->flat_numel * s->width,
                                &s->whole, err));
        for (int u = 0; u < s->n_units; u++)
            s->weights[u] = (char *)s->whole.data + (size_t)s->env.grid->offset[u] * s->width;
    }
    /* What no world changes is there from the beginning. */
    if (!s->policy.whole_state)
        return DPT_OK;
    DPT_TRY(make_part(s, (struct dpt_shard){0, 1}, true, &s->held.own, err));
    return s->env.resident ? make_resident(s, true, &s->held.own, err) : DPT_OK;
}

void sharded_state_destroy(struct sharded *s)
{
    drop_wanted(s);
    sharded_rebuild_drop(s);
    free_part(s, true, &s->held.own, NULL);
    free_part(s, false, &s->held.shadow, NULL);
    dpt_buffer_free(&s->env, &s->whole);
    dpt_buffer_free(&s->env, &s->copy);
    for (int i = 0; i < s->n_gathered; i++)
        dpt_device_free_for(s->device, DPT_MEMORY_GATHERED, s->gathered[i], s->gathered_bytes[i]);
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
    const int own = s->tied >= 0, n = own + dpt_gathered_places(s->env.config, s->env.model);
    while (s->n_gathered < n) {
        const int i = s->n_gathered;
        const int64_t numel =
            i < own ? dpt_model_unit(s->env.model, s->tied)->numel : shared_numel(s);
        s->gathered_bytes[i] = (size_t)numel * s->width;
        DPT_TRY(dpt_device_alloc_for(s->device, DPT_MEMORY_GATHERED, s->gathered_bytes[i],
                                     &s->gathered[i], err));
        s->n_gathered++;
    }
    return DPT_OK;
}

/* What the device has of a part that is held, for the one that is wanted in its place. */
static enum dpt_status move_resident(struct sharded *s, bool own, struct dpt_state_part *held,
                                     struct dpt_state_part *wanted, struct dpt_err *err)
{
    const bool same = dpt_shard_equal(held->shard, wanted->shard);
    if (!same)
        free_resident(s, own, held, NULL);
    const enum dpt_status status = make_resident(s, own, wanted, err);
    if (same)
        *held = *wanted;
    return status;
}

/* Nothing of what is held is lost: registered memory has it first. */
static enum dpt_status move_to_wanted(struct sharded *s, struct dpt_err *err)
{
    if (s->moves) {
        DPT_TRY(sharded_state_fetch(s, err));
        s->newest = SHARDED_REGISTERED;
    }
    DPT_TRY(move_resident(s, true, &s->held.own, &s->wanted.own, err));
    return move_resident(s, false, &s->held.shadow, &s->wanted.shadow, err);
}

enum dpt_status sharded_state_begin(struct sharded *s, struct dpt_err *err)
{
    const struct dpt_shard own = sharded_shard(s, s->position);
    const struct dpt_shard shadow =
        s->shadow_source < 0 ? (struct dpt_shard){0, 0} : sharded_shard(s, s->shadow_source);
    drop_wanted(s);
    sharded_rebuild_drop(s);
    s->wanted = s->held;
    DPT_TRY(want_part(s, own, true, &s->held.own, &s->wanted.own, err));
    DPT_TRY(want_part(s, shadow, false, &s->held.shadow, &s->wanted.shadow, err));
    if (s->env.resident)
        DPT_TRY(move_to_wanted(s, err));
    if (s->policy.weights != DPT_WEIGHTS_UNITS)
        return DPT_OK;
    if (s->dtype != DPT_F32)
        DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_WEIGHTS, shard_bytes(s, own, s->width),
                                &s->copy, err));
    return s->group_size > 1 ? make_gathered(s, err) : DPT_OK;
}

/* Where this rank's own weights of a unit lie in the compute dtype. */
static char *own_weights(const struct sharded *s, int unit)
{
    size_t offset;
    char *data = sharded_weights(s, unit, &offset).data;
    return data + offset;
}

struct dpt_buffer sharded_weights(const struct sharded *s, int unit, size_t *ret_offset)
{
    const struct dpt_state_part *own = &s->held.own;
    if (has_whole(s)) {
        *ret_offset = (size_t)dpt_shard_piece(s->env.grid, own->shard, unit).first * s->width;
        return s->whole;
    }
    *ret_offset = (size_t)dpt_shard_offset(s->env.grid, own->shard, unit) * s->width;
    return s->dtype == DPT_F32 ? sharded_vector(s, own, DPT_VECTOR_PARAM) : s->copy;
}

void sharded_state_changed(struct sharded *s)
{
    DPT_ASSERT(s->newest != SHARDED_RESIDENT); /* it was fetched before it was written to */
    if (s->moves) {
        free_part(s, true, &s->held.own, &s->wanted.own);
        free_part(s, false, &s->held.shadow, &s->wanted.shadow);
        s->held = s->wanted;
        s->moves = false;
    }
    s->stale = true;
    s->newest = SHARDED_REGISTERED;
}

/* Between registered memory and the device's, piece by piece. */
static void copy_part(const struct sharded *s, const struct dpt_state_part *part, bool to_device)
{
    for (int v = 0; v < DPT_VECTOR_COUNT && !dpt_shard_is_none(part->shard); v++)
        for (int u = 0; part->vector[v].mem && u < s->n_units; u++) {
            const struct dpt_interval piece = dpt_shard_piece(s->env.grid, part->shard, u);
            if (piece.end <= piece.first)
                continue;
            float *registered = dpt_state_at(part, s->env.grid, (enum dpt_vector)v, u),
                  *resident = sharded_vector_at(s, part, (enum dpt_vector)v, u);
            const size_t bytes = (size_t)(piece.end - piece.first) * sizeof(float);
            if (to_device)
                dpt_stager_to_device(s->env.stager, bytes, registered, resident);
            else
                dpt_stager_to_host(s->env.stager, bytes, resident, registered);
        }
}

enum dpt_status sharded_state_fetch(struct sharded *s, struct dpt_err *err)
{
    if (s->newest != SHARDED_RESIDENT)
        return DPT_OK;
    copy_part(s, &s->held.own, false);
    copy_part(s, &s->held.shadow, false);
    DPT_TRY(dpt_stager_finish(s->env.stager, err));
    s->newest = SHARDED_BOTH;
    return DPT_OK;
}

void sharded_state_refresh(struct sharded *s)
{
    const struct dpt_state_part *own = &s->held.own;
    if (s->newest != SHARDED_REGISTERED)
        return;
    if (s->env.resident) {
        copy_part(s, own, true);
        copy_part(s, &s->held.shadow, true);
    }
    s->newest = SHARDED_BOTH;
    if (dpt_shard_is_none(own->shard))
        return;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, own->shard, u);
        if (s->dtype != DPT_F32 && piece.end > piece.first)
            s->ops->cast(s->stream, piece.end - piece.first,
                         sharded_vector_at(s, own, DPT_VECTOR_PARAM, u), s->dtype,
                         own_weights(s, u));
        if (own->shard.of == 1 && !has_whole(s))
            s->weights[u] = own_weights(s, u);
    }
}

float *sharded_own_gradient(const struct sharded *s, int unit)
{
    const struct dpt_shard shard = s->held.own.shard;
    if (s->applied.data)
        return (float *)s->applied.data + dpt_shard_offset(s->env.grid, shard, unit);
    if (s->policy.whole_state)
        return (float *)s->sums[0].data + s->env.grid->offset[unit];
    return sharded_sum(s, 0, unit);
}

float *sharded_shadow_gradient(const struct sharded *s, int unit)
{
    return (float *)s->shadowed.data +
           dpt_shard_offset(s->env.grid, sharded_shadow(s)->shard, unit);
}

/* Applies the step to a part's piece of a unit; `copy`: where its weights go, too. */
static void apply_piece(const struct sharded *s, const struct dpt_optim_step *step,
                        const struct dpt_state_part *part, int unit, const float *grad, void *copy)
{
    const struct dpt_interval piece = dpt_shard_piece(s->env.grid, part->shard, unit);
    const struct dpt_optim_vectors vectors = {
        .origin = piece.first,
        .param = sharded_vector_at(s, part, DPT_VECTOR_PARAM, unit),
        .m = sharded_vector_at(s, part, DPT_VECTOR_M, unit),
        .v = part->vector[DPT_VECTOR_V].mem ? sharded_vector_at(s, part, DPT_VECTOR_V, unit) : NULL,
        .grad = grad,
        .copy = copy};
    if (piece.end > piece.first)
        dpt_optim_update(s->env.config, s->env.model, s->ops, s->stream, step, piece.first,
                         piece.end, &vectors);
}

enum dpt_status sharded_apply(struct sharded *s, const struct dpt_optim_step *step,
                              struct dpt_err *err)
{
    sharded_state_refresh(s);
    for (int u = 0; u < s->n_units; u++) {
        apply_piece(s, step, &s->held.own, u, sharded_own_gradient(s, u),
                    s->dtype == DPT_F32 ? NULL : own_weights(s, u));
        const struct dpt_state_part *shadow = sharded_shadow(s);
        if (!dpt_shard_is_none(shadow->shard) && (shadow != &s->late || u < s->late_end))
            apply_piece(s, step, shadow, u, sharded_shadow_gradient(s, u), NULL);
    }
    sharded_rebuild_applied(s);
    s->stale = true;
    s->newest = s->env.resident ? SHARDED_RESIDENT : SHARDED_BOTH;
    return dpt_stream_sync(s->stream, err);
}

enum dpt_status sharded_norm(struct sharded *s, struct dpt_accum *ret, struct dpt_err *err)
{
    double *sums = s->env.resident ? s->resident_sums : s->block_sums;
    int64_t n = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = sharded_whole_piece(s, s->position, u);
        const float *sum = s->cross ? sharded_added_sum(s, u) : sharded_sum(s, 0, u);
        if (piece.first < piece.end)
            n += dpt_optim_squares(s->env.model, s->ops, s->stream, piece.first, piece.end, sum,
                                   sums + n);
    }
    if (s->env.resident && n > 0)
        s->ops->copy(s->stream, (size_t)n * sizeof *sums, sums, s->block_sums);
    DPT_TRY(dpt_stream_sync(s->stream, err));
    dpt_accum_init(ret);
    n = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = sharded_whole_piece(s, s->position, u);
        if (piece.first < piece.end)
            n +=
                dpt_optim_squares_add(s->env.model, piece.first, piece.end, s->block_sums + n, ret);
    }
    dpt_accum_normalise(ret);
    return DPT_OK;
}
