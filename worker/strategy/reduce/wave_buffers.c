/* The route of gradients in waves (strategy_internal.h): the memory of slots' gradients, sums and
 * staging, whose sizes the generation's memory list gives. Tasks carry out the rest (scatter.c,
 * cross.c, share_sums.c). */
#include "worker/strategy/strategy_internal.h"

#include <stdlib.h>

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail_nomem(err, "gradients in waves");
}

static enum dpt_status make_item(const struct dpt_strategy *s, enum dpt_memory_item item,
                                 struct dpt_buffer *buffer, struct dpt_err *err)
{
    return strategy_buffer_make(s, item, true, buffer, err);
}

/* Makes the buffers of a slot's gradients: one for the tied unit and two that the other units use
 * in turn, or one flat vector. */
static enum dpt_status make_gradients(struct dpt_strategy *s, const struct dpt_step_spec *spec,
                                      struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    int own;
    w->n_gradients = dpt_step_list_gradient_buffers(spec, &own);
    DPT_ASSERT(w->n_gradients <= STRATEGY_GRADIENTS_MAX &&
               w->n_gradients == own + s->memory.item[DPT_ITEM_GRADIENT].n);
    for (int i = 0; i < w->n_gradients; i++) {
        DPT_TRY(make_item(s, i < own ? DPT_ITEM_GRADIENT_TIED : DPT_ITEM_GRADIENT, &w->gradient[i],
                          err));
        DPT_TRY(make_item(s, i < own ? DPT_ITEM_NARROW_TIED : DPT_ITEM_NARROW,
                          &w->narrow_gradient[i], err));
    }
    if (spec->n_buckets == 0)
        return DPT_OK;
    s->step.flat_gradient = w->gradient[0].data;
    for (int u = 0; u < s->n_units; u++)
        s->step.grads[u] = s->step.flat_gradient + s->env.grid->offset[u];
    return DPT_OK;
}

static enum dpt_status make_sums(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    w->n_sums = dpt_waves_sums(&s->part.waves);
    DPT_ASSERT(w->n_sums <= STRATEGY_SUMS_MAX);
    for (int i = w->n_sums; i < STRATEGY_SUMS_MAX; i++)
        dpt_buffer_free(&w->sums[i]);
    for (int i = 0; i < w->n_sums; i++)
        DPT_TRY(make_item(s, i == 0 ? DPT_ITEM_SUM_FIRST : DPT_ITEM_SUMS, &w->sums[i], err));
    DPT_TRY(make_item(s, DPT_ITEM_NARROW_SUM, &w->narrow_sum, err));
    DPT_TRY(make_item(s, DPT_ITEM_ADDED, &w->added, err));
    DPT_TRY(make_item(s, DPT_ITEM_APPLIED, &w->applied, err));
    return make_item(s, DPT_ITEM_SHADOWED, &w->shadowed, err);
}

static enum dpt_status make_steps(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const struct dpt_waves *waves = &s->part.waves;
    const size_t members = (size_t)waves->members;
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

/* Makes memory of a device for 16-bit values before they are widened to f32. It has room for a
 * staged part of one rank in f32, and for the shared values of a unit in 16 bits. */
static enum dpt_status make_scratch(struct dpt_strategy *s, struct dpt_err *err)
{
    /* A device stages the contributions of all others. */
    const int others = s->part.waves.members - 1;
    size_t bytes = s->memory.item[DPT_ITEM_STAGING].bytes / (size_t)others;
    for (int u = 0; u < s->n_units; u++) {
        const size_t unit = (size_t)dpt_model_unit(s->env.model, u)->numel * sizeof(uint16_t);
        bytes = unit > bytes ? unit : bytes;
    }
    return dpt_buffer_make(NULL, s->device, DPT_MEMORY_COMM, bytes, &s->waves.scratch, err);
}

/* Cuts pieces into parts, and makes staging memory. */
static enum dpt_status make_parts(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_waves *w = &s->waves;
    const struct dpt_grid *ranges = &s->buckets.ranges;
    const size_t n = (size_t)ranges->n_units;
    int64_t own_at = 0;
    w->parts = calloc(n, sizeof *w->parts);
    w->own_at = calloc(n, sizeof *w->own_at);
    if (!w->parts || !w->own_at)
        return no_memory(err);
    for (int r = 0; r < ranges->n_units; r++) {
        w->parts[r] = dpt_partition_parts(&s->part, ranges, r);
        w->own_at[r] = own_at;
        own_at += strategy_numel(strategy_added_piece(s, s->part.position, r));
    }
    if (s->traits.on_device && s->memory.item[DPT_ITEM_NARROW_SUM].n > 0)
        DPT_TRY(make_scratch(s, err));
    return strategy_staging_make(s, DPT_ITEM_STAGING, &w->staging, err);
}

static enum dpt_status waves_begin(struct dpt_strategy *s, struct dpt_step_spec *spec,
                                   struct dpt_err *err)
{
    const struct dpt_strategy_traits *t = &s->traits;
    const bool others_apply = t->state == DPT_STATE_REPLICATED ||
                              (t->state == DPT_STATE_PER_NODE && !t->by_node) || s->part.crosses ||
                              s->part.shadow_shift > 0;
    spec->waves = &s->part.waves;
    if (s->part.crosses)
        DPT_TRY(strategy_cross_begin(s, err));
    DPT_TRY(make_parts(s, err));
    DPT_TRY(make_gradients(s, spec, err));
    DPT_TRY(make_sums(s, err));
    DPT_TRY(make_steps(s, err));
    spec->parts = s->waves.parts;
    spec->cross_parts = s->waves.cross_parts;
    spec->share = spec->n_buckets > 0 || (s->part.world->size > 1 && others_apply);
    spec->copies = s->part.shadow_shift > 0 ? dpt_strategy_vectors(s->env.config) : 0;
    return DPT_OK;
}

static void waves_cost(const struct dpt_strategy *s, struct dpt_strategy_cost *cost)
{
    const struct strategy_waves *w = &s->waves;
    cost->gradient_buffers += w->n_gradients + w->n_sums;
    for (int i = 0; i < w->n_gradients; i++)
        cost->gradient_bytes += (int64_t)(w->gradient[i].bytes + w->narrow_gradient[i].bytes);
    for (int i = 0; i < w->n_sums; i++)
        cost->gradient_bytes += (int64_t)w->sums[i].bytes;
    cost->gradient_bytes +=
        (int64_t)(w->added.bytes + w->applied.bytes + w->shadowed.bytes + w->narrow_sum.bytes);
}

void strategy_waves_end(struct dpt_strategy *s)
{
    struct strategy_waves *w = &s->waves;
    free(w->steps);
    free(w->first_step);
    free(w->contributions);
    free(w->narrow_from);
    free(w->parts);
    free(w->own_at);
    dpt_buffer_free(&w->staging);
    dpt_buffer_free(&w->scratch);
    w->steps = NULL;
    w->first_step = w->parts = NULL;
    w->contributions = NULL;
    w->narrow_from = NULL;
    w->own_at = NULL;
}

void strategy_waves_destroy(struct dpt_strategy *s)
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

/* The tasks of a range do the rest of its reduction. */
const struct strategy_route strategy_by_waves = {
    .begin_generation = waves_begin, .reduce = strategy_round_gradient, .cost = waves_cost};
