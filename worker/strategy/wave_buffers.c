/* What a sharded strategy holds of a generation beside its state: a slot's gradients, sums, staging
 * (sharded.h). */
#include "worker/strategy/sharded.h"

#include <stdlib.h>

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail(err, DPT_ENOMEM, "sharded strategy: out of memory");
}

/* Whether members of other hosts get gradients in 16 bits. */
static bool narrows(const struct sharded *s)
{
    for (int p = s->members.first; p < s->members.end; p++)
        if (sharded_is_narrow(s, p))
            return true;
    return false;
}

/* Memory of gradients as other hosts get them, if they are narrowed for that. */
static enum dpt_status make_narrow(struct sharded *s, struct dpt_buffer *buffer, int64_t numel,
                                   struct dpt_err *err)
{
    if (narrows(s))
        return dpt_buffer_make(&s->env, DPT_MEMORY_COMM, (size_t)numel * dpt_dtype_bytes(s->wire),
                               buffer, err);
    dpt_buffer_free(&s->env, buffer);
    return DPT_OK;
}

/* A slot's gradients: those of the tied unit, and two that the other units use in turn. */
static enum dpt_status make_gradients(struct sharded *s, const struct dpt_step_spec *spec,
                                      struct dpt_err *err)
{
    int own;
    int64_t shared = 0;
    s->n_gradients = dpt_step_gradient_buffers(spec, &own);
    DPT_ASSERT(own == (s->tied >= 0) && s->n_gradients <= SHARDED_GRADIENTS_MAX);
    for (int u = 0; u < s->n_units; u++) {
        const int64_t numel = dpt_model_unit(s->env.model, u)->numel;
        if (u != s->tied && numel > shared)
            shared = numel;
    }
    for (int i = 0; i < s->n_gradients; i++) {
        const int64_t numel = i < own ? dpt_model_unit(s->env.model, s->tied)->numel : shared;
        DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_SLOT_GRADIENTS, (size_t)numel * sizeof(float),
                                &s->gradient[i], err));
        DPT_TRY(make_narrow(s, &s->narrow_gradient[i], numel, err));
    }
    return DPT_OK;
}

/* Room for what others have summed and this rank applies. */
static enum dpt_status make_applied(struct sharded *s, struct dpt_err *err)
{
    if (s->policy.group && !s->policy.by_node && s->world->size > 1) {
        const int64_t numel = dpt_shard_numel(s->env.grid, sharded_shard(s, s->position));
        DPT_TRY(dpt_buffer_make(&s->env, DPT_MEMORY_GRADIENT,
                                (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float),
                                &s->applied, err));
    } else {
        dpt_buffer_free(&s->env, &s->applied);
    }
    if (s->shadow_source >= 0) {
        const int64_t numel = dpt_shard_numel(s->env.grid, sharded_shard(s, s->shadow_source));
        return dpt_buffer_make(&s->env, DPT_MEMORY_SHADOW,
                               (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float),
                               &s->shadowed, err);
    }
    dpt_buffer_free(&s->env, &s->shadowed);
    return DPT_OK;
}

static enum dpt_status make_sums(struct sharded *s, struct dpt_err *err)
{
    const int64_t numel = dpt_shard_numel(s->env.grid, s->piece);
    const size_t bytes = (size_t)(numel > 0 ? numel : DPT_BLOCK) * sizeof(float);
    s->n_sums = dpt_waves_sums(&s->waves);
    DPT_ASSERT(s->n_sums <= SHARDED_SUMS_MAX);
    for (int i = s->n_sums; i < SHARDED_SUMS_MAX; i++)
        dpt_buffer_free(&s->env, &s->sums[i]);
    for (int i = 0; i < s->n_sums; i++)
        DPT_TRY(dpt_buffer_make(
            &s->env, i == 0 ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS,
            i == 0 && s->policy.whole_state ? (size_t)s->flat_numel * sizeof(float) : bytes,
            &s->sums[i], err));
    DPT_TRY(make_narrow(s, &s->narrow_sum, numel > 0 ? numel : DPT_BLOCK, err));
    return make_applied(s, err);
}

static enum dpt_status make_sum_steps(struct sharded *s, struct dpt_err *err)
{
    const size_t waves = (size_t)dpt_waves_count(&s->waves);
    s->steps = calloc((size_t)(s->waves.slots + s->waves.lanes), sizeof *s->steps);
    s->first_step = calloc(waves + 1, sizeof *s->first_step);
    s->contributions = calloc((size_t)s->world->size, sizeof *s->contributions);
    s->narrow_from = calloc((size_t)s->world->size, sizeof *s->narrow_from);
    if (!s->steps || !s->first_step || !s->contributions || !s->narrow_from)
        return no_memory(err);
    for (int p = s->members.first; p < s->members.end; p++)
        s->narrow_from[p - s->members.first] = sharded_is_narrow(s, p);
    (void)dpt_waves_sum_steps(&s->waves, s->steps, s->first_step);
    return DPT_OK;
}

/* Bytes of the element of what is staged. */
static size_t staged_width(const struct sharded *s)
{
    return s->env.resident ? sizeof(float) : dpt_dtype_bytes(s->wire);
}

/* Cuts the pieces into parts, the same on all ranks. Returns the elements of the largest. */
static int64_t cut_parts(struct sharded *s)
{
    const int members = s->members.end - s->members.first;
    const int64_t most = sharded_part_bytes(s, members) / (int64_t)sizeof(float);
    int64_t largest = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval first =
            dpt_shard_piece(s->env.grid, sharded_summed(s, s->largest), u);
        const int64_t numel = first.end - first.first;
        s->parts[u] = (int)((numel + most - 1) / most);
        if (s->parts[u] < 1 || members == 1)
            s->parts[u] = 1;
        const struct dpt_interval part = sharded_part(s, s->largest, u, 0, s->parts[u]);
        if (part.end - part.first > largest)
            largest = part.end - part.first;
    }
    return largest;
}

/* Room for the parts of others. What is narrow comes to rest there before it is f32. */
static enum dpt_status make_parts(struct sharded *s, struct dpt_err *err)
{
    const int64_t largest = cut_parts(s);
    s->n_staged = 0;
    for (int p = s->members.first; p < s->members.end; p++)
        s->n_staged += p != s->position && sharded_is_staged(s, p);
    s->staging_bytes = (size_t)largest * staged_width(s);
    if (s->env.resident && narrows(s)) {
        /* A part in f32, or what is shared of a unit in 16 bits. */
        s->scratch_bytes = s->staging_bytes;
        for (int u = 0; u < s->n_units; u++) {
            const size_t unit = (size_t)dpt_model_unit(s->env.model, u)->numel * sizeof(uint16_t);
            s->scratch_bytes = unit > s->scratch_bytes ? unit : s->scratch_bytes;
        }
        DPT_TRY(
            dpt_device_alloc_for(s->device, DPT_MEMORY_COMM, s->scratch_bytes, &s->scratch, err));
    }
    if (s->n_staged == 0)
        return DPT_OK;
    return dpt_device_alloc_for(s->device, DPT_MEMORY_COMM,
                                SHARDED_TURNS * (size_t)s->n_staged * s->staging_bytes, &s->staging,
                                err);
}

enum dpt_status sharded_memory_begin(struct sharded *s, const struct dpt_step_spec *spec,
                                     struct dpt_err *err)
{
    DPT_TRY(make_parts(s, err));
    DPT_TRY(make_gradients(s, spec, err));
    DPT_TRY(make_sums(s, err));
    return make_sum_steps(s, err);
}

void sharded_memory_end(struct sharded *s)
{
    free(s->steps);
    free(s->first_step);
    free(s->contributions);
    free(s->narrow_from);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, s->staging,
                        SHARDED_TURNS * (size_t)s->n_staged * s->staging_bytes);
    dpt_device_free_for(s->device, DPT_MEMORY_COMM, s->scratch, s->scratch_bytes);
    s->steps = NULL;
    s->first_step = NULL;
    s->contributions = NULL;
    s->narrow_from = NULL;
    s->staging = s->scratch = NULL;
    s->scratch_bytes = 0;
}

static size_t block_sums_bytes(const struct sharded *s)
{
    return (size_t)dpt_optim_squares_max(s->env.model, s->flat_numel) * sizeof *s->block_sums;
}

enum dpt_status sharded_block_sums(struct sharded *s, struct dpt_err *err)
{
    void *memory = s->resident_sums, *block_sums;
    if (s->block_sums)
        return DPT_OK;
    if (s->env.resident && !memory)
        DPT_TRY(dpt_device_alloc(s->device, block_sums_bytes(s), &memory, err));
    s->resident_sums = memory;
    DPT_TRY(dpt_device_alloc_host(s->device, block_sums_bytes(s), &block_sums, err));
    s->block_sums = block_sums;
    return DPT_OK;
}

void sharded_memory_destroy(struct sharded *s)
{
    for (int i = 0; i < SHARDED_SUMS_MAX; i++)
        dpt_buffer_free(&s->env, &s->sums[i]);
    dpt_buffer_free(&s->env, &s->added);
    dpt_buffer_free(&s->env, &s->applied);
    dpt_buffer_free(&s->env, &s->shadowed);
    for (int i = 0; i < SHARDED_GRADIENTS_MAX; i++) {
        dpt_buffer_free(&s->env, &s->gradient[i]);
        dpt_buffer_free(&s->env, &s->narrow_gradient[i]);
    }
    dpt_buffer_free(&s->env, &s->narrow_sum);
    dpt_device_free(s->device, s->resident_sums, block_sums_bytes(s));
    dpt_device_free_host(s->device, s->block_sums, block_sums_bytes(s));
}
