/* What a generation in waves holds beside the state: slots' gradients, sums, staging (core.h). */
#include "worker/strategy/core.h"

#include <stdlib.h>

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "gradients in waves: out of memory");
}

/* Whether members of other hosts get gradients in 16 bits. */
static bool narrows(const struct strategy *s)
{
    for (int p = s->part.members.first; p < s->part.members.end; p++)
        if (strategy_is_narrow(s, p))
            return true;
    return false;
}

/* Makes a buffer, or frees it where it is not wanted. */
static enum dpt_status make_if(const struct strategy *s, bool wanted, enum dpt_memory_tag tag,
                               size_t bytes, struct dpt_buffer *buffer, struct dpt_err *err)
{
    if (wanted)
        return dpt_buffer_make(&s->env, tag, bytes, buffer, err);
    dpt_buffer_free(buffer);
    return DPT_OK;
}

static enum dpt_status make_narrow(struct strategy *s, struct dpt_buffer *buffer, int64_t numel,
                                   struct dpt_err *err)
{
    return make_if(s, narrows(s), DPT_MEMORY_COMM, (size_t)numel * dpt_dtype_bytes(s->wire), buffer,
                   err);
}

/* One for all of a slot's gradient, which has the reduced one in the end. */
static enum dpt_status make_flat_gradient(struct strategy *s, struct dpt_err *err)
{
    DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_GRADIENT, (size_t)s->flat_numel * sizeof(float),
                            &s->waves.gradient[0], err));
    for (int u = 0; u < s->n_units; u++)
        s->waves.grads[u] = (float *)s->waves.gradient[0].data + s->env.grid->offset[u];
    return DPT_OK;
}

/* A slot's gradients: those of the tied unit, and two that the other units use in turn. */
static enum dpt_status make_gradients(struct strategy *s, const struct dpt_step_spec *spec,
                                      struct dpt_err *err)
{
    int own;
    s->waves.n_gradients = dpt_step_gradient_buffers(spec, &own);
    DPT_ASSERT(s->waves.n_gradients <= STRATEGY_GRADIENTS_MAX);
    if (s->traits.route == DPT_GRADIENT_BUCKETS)
        return make_flat_gradient(s, err);
    DPT_ASSERT(own == (s->tied >= 0));
    for (int i = 0; i < s->waves.n_gradients; i++) {
        const int64_t numel = i < own ? dpt_model_unit(s->env.model, s->tied)->numel
                                      : dpt_largest_unit(s->env.model, s->tied);
        DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_SLOT_GRADIENTS, (size_t)numel * sizeof(float),
                                &s->waves.gradient[i], err));
        DPT_TRY(make_narrow(s, &s->waves.narrow_gradient[i], numel, err));
    }
    return DPT_OK;
}

/* Room for what others have added and this rank applies. */
static enum dpt_status make_applied(struct strategy *s, struct dpt_err *err)
{
    const struct dpt_partition *p = &s->part;
    const bool replica =
        s->traits.state == DPT_STATE_PER_NODE && !s->traits.by_node && p->world->size > 1;
    const struct dpt_shard own = dpt_partition_held(p, p->position),
                           shadow = p->shadow_source >= 0 ? dpt_partition_held(p, p->shadow_source)
                                                          : own;
    DPT_TRY(make_if(s, replica, DPT_MEMORY_GRADIENT, strategy_shard_bytes(s, own, sizeof(float)),
                    &s->waves.applied, err));
    return make_if(s, p->shadow_source >= 0, DPT_MEMORY_SHADOW,
                   strategy_shard_bytes(s, shadow, sizeof(float)), &s->waves.shadowed, err);
}

static enum dpt_status make_sums(struct strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const bool by_units = s->traits.route == DPT_GRADIENT_UNITS,
               flat = by_units && s->traits.state == DPT_STATE_REPLICATED;
    const int64_t own =
        dpt_shard_numel(&w->ranges, dpt_partition_added(&s->part, s->part.position));
    const int64_t numel = own > 0 ? own : DPT_BLOCK;
    w->n_sums = dpt_waves_sums(&s->part.waves);
    DPT_ASSERT(w->n_sums <= STRATEGY_SUMS_MAX);
    for (int i = w->n_sums; i < STRATEGY_SUMS_MAX; i++)
        dpt_buffer_free(&w->sums[i]);
    for (int i = 0; i < w->n_sums; i++)
        DPT_TRY(dpt_buffer_make(&s->env, i == 0 && by_units ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS,
                                (size_t)(i == 0 && flat ? s->flat_numel : numel) * sizeof(float),
                                &w->sums[i], err));
    DPT_TRY(make_narrow(s, &w->narrow_sum, numel, err));
    return make_applied(s, err);
}

static enum dpt_status make_steps(struct strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const struct dpt_waves *waves = &s->part.waves;
    const size_t members = (size_t)strategy_n_members(s);
    w->steps = calloc((size_t)(waves->slots + waves->lanes), sizeof *w->steps);
    w->first_step = calloc((size_t)dpt_waves_count(waves) + 1, sizeof *w->first_step);
    w->contributions = calloc(members, sizeof *w->contributions);
    w->narrow_from = calloc(members, sizeof *w->narrow_from);
    if (!w->steps || !w->first_step || !w->contributions || !w->narrow_from)
        return no_memory(err);
    for (int p = s->part.members.first; p < s->part.members.end; p++)
        w->narrow_from[p - s->part.members.first] = strategy_is_narrow(s, p);
    (void)dpt_waves_sum_steps(waves, w->steps, w->first_step);
    return DPT_OK;
}

/* Bytes of the element of what is staged. */
static size_t staged_width(const struct strategy *s)
{
    return s->env.resident ? sizeof(float) : dpt_dtype_bytes(s->wire);
}

/* Cuts the pieces into parts, the same on all ranks: by those of the member that has the largest.
 * Returns the elements of the largest part. */
static int64_t cut_parts(struct strategy *s)
{
    struct strategy_waves *w = &s->waves;
    const int members = strategy_n_members(s);
    const int64_t most = strategy_part_bytes(s, members) / (int64_t)sizeof(float);
    int first = s->part.members.first;
    while (dpt_partition_added(&s->part, first).index > 0)
        first++;
    int64_t largest = 0, own_at = 0;
    for (int r = 0; r < w->ranges.n_units; r++) {
        const struct dpt_interval piece = strategy_added_piece(s, first, r);
        const int parts = (int)((strategy_numel(piece) + most - 1) / most);
        w->parts[r] = parts < 1 || members == 1 ? 1 : parts;
        const int64_t part = strategy_numel(strategy_part_of(piece, 0, w->parts[r]));
        largest = part > largest ? part : largest;
        w->own_at[r] = own_at;
        own_at += strategy_numel(strategy_added_piece(s, s->part.position, r));
    }
    return largest;
}

/* Room on a device for what came in 16 bits: a part in f32, or what is shared of a unit. */
static enum dpt_status make_scratch(struct strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    w->scratch_bytes = w->staging_bytes;
    for (int u = 0; u < s->n_units; u++) {
        const size_t unit = (size_t)dpt_model_unit(s->env.model, u)->numel * sizeof(uint16_t);
        w->scratch_bytes = unit > w->scratch_bytes ? unit : w->scratch_bytes;
    }
    return dpt_device_alloc_for(s->device, DPT_MEMORY_COMM, w->scratch_bytes, &w->scratch, err);
}

/* Room for the parts of others. What is narrow comes to rest there before it is f32. */
static enum dpt_status make_parts(struct strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const size_t n = (size_t)w->ranges.n_units;
    w->parts = calloc(n, sizeof *w->parts);
    w->own_at = calloc(n, sizeof *w->own_at);
    if (!w->parts || !w->own_at)
        return no_memory(err);
    w->staging_bytes = (size_t)cut_parts(s) * staged_width(s);
    for (int p = s->part.members.first; p < s->part.members.end; p++)
        w->n_staged += p != s->part.position && strategy_is_staged(s, p);
    if (s->env.resident && narrows(s))
        DPT_TRY(make_scratch(s, err));
    if (w->n_staged == 0)
        return DPT_OK;
    return dpt_device_alloc_for(s->device, DPT_MEMORY_COMM,
                                STRATEGY_TURNS * (size_t)w->n_staged * w->staging_bytes,
                                &w->staging, err);
}

enum dpt_status strategy_waves_begin(struct strategy *s, const struct dpt_step_spec *spec,
                                     struct dpt_err *err)
{
    s->waves.ranges = s->traits.route == DPT_GRADIENT_BUCKETS ? s->buckets.ranges : *s->env.grid;
    DPT_TRY(make_parts(s, err));
    DPT_TRY(make_gradients(s, spec, err));
    DPT_TRY(make_sums(s, err));
    return make_steps(s, err);
}

void strategy_waves_end(struct strategy *s)
{
    struct strategy_waves *w = &s->waves;
    free(w->steps);
    free(w->first_step);
    free(w->contributions);
    free(w->narrow_from);
    free(w->parts);
    free(w->own_at);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, w->staging,
                        STRATEGY_TURNS * (size_t)w->n_staged * w->staging_bytes);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, w->scratch, w->scratch_bytes);
    w->steps = NULL;
    w->first_step = w->parts = NULL;
    w->contributions = NULL;
    w->narrow_from = NULL;
    w->own_at = NULL;
    w->staging = w->scratch = NULL;
    w->n_staged = 0;
    w->scratch_bytes = 0;
}

void strategy_waves_destroy(struct strategy *s)
{
    struct strategy_waves *w = &s->waves;
    for (int i = 0; i < STRATEGY_SUMS_MAX; i++)
        dpt_buffer_free(&w->sums[i]);
    for (int i = 0; i < STRATEGY_GRADIENTS_MAX; i++) {
        dpt_buffer_free(&w->gradient[i]);
        dpt_buffer_free(&w->narrow_gradient[i]);
    }
    dpt_buffer_free(&w->added);
    dpt_buffer_free(&w->applied);
    dpt_buffer_free(&w->shadowed);
    dpt_buffer_free(&w->narrow_sum);
}
