/* Computes a rank's share of the gradient's norm, and applies the step to the rank's parts of the
 * state (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

/* Applies the step to a part's piece of a unit. `copy`, if not NULL, gets the new weights in the
 * compute dtype. */
static void apply_piece(const struct dpt_strategy *s, const struct dpt_optim_step *step,
                        const struct dpt_state_part *part, int unit, const float *grad, void *copy)
{
    const struct dpt_interval piece = dpt_shard_piece(s->env.grid, part->shard, unit);
    const struct dpt_optim_vectors vectors = {
        .span = {piece.first, piece.end},
        .origin = piece.first,
        .param = strategy_vector_at(s, part, DPT_VECTOR_PARAM, unit),
        .m = strategy_vector_at(s, part, DPT_VECTOR_M, unit),
        .v =
            part->vector[DPT_VECTOR_V].mem ? strategy_vector_at(s, part, DPT_VECTOR_V, unit) : NULL,
        .grad = grad,
        .copy = copy};
    if (!strategy_is_empty(piece))
        dpt_optim_update(s->env.config, s->env.model, s->ops, s->stream, step, &vectors);
}

enum dpt_status dpt_strategy_apply(struct dpt_strategy *s, const struct dpt_optim_step *step,
                                   struct dpt_err *err)
{
    const struct strategy_gradient own = strategy_own_gradient(s),
                                   shadowed = strategy_shadow_gradient(s);
    const struct dpt_state_part *shadow = strategy_shadow(s);
    DPT_ASSERT(s->step.reduced_step == step->step);
    if (s->packed)
        dpt_packed_weights_forget(s->packed);
    if (s->route->applied)
        s->route->applied(s, step->step);
    strategy_state_refresh(s);
    for (int u = 0; u < s->n_units; u++) {
        apply_piece(s, step, &s->state.held.own, u, strategy_gradient_at(s, &own, u),
                    s->dtype == DPT_F32 ? NULL : strategy_own_weights(s, u));
        if (!dpt_shard_is_none(shadow->shard) && (shadow != &s->rebuild.late || u < s->rebuild.end))
            apply_piece(s, step, shadow, u, strategy_gradient_at(s, &shadowed, u), NULL);
    }
    strategy_rebuild_applied(s);
    s->state.stale = true;
    s->state.newest = s->traits.on_device ? STRATEGY_ON_DEVICE : STRATEGY_BOTH;
    return dpt_stream_sync(s->stream, err);
}

enum dpt_status dpt_strategy_norm_share(struct dpt_strategy *s, struct dpt_accum *ret,
                                        struct dpt_err *err)
{
    const struct strategy_gradient whole = strategy_whole_gradient(s);
    double *sums = s->device_sums ? s->device_sums : s->block_sums;
    int64_t n = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, whole.shard, u);
        if (!strategy_is_empty(piece))
            n += dpt_optim_squares(s->env.model, s->ops, s->stream,
                                   (struct dpt_span){piece.first, piece.end},
                                   strategy_gradient_at(s, &whole, u), sums + n);
    }
    if (s->device_sums && n > 0)
        s->ops->copy(s->stream, (size_t)n * sizeof *sums, sums, s->block_sums);
    DPT_TRY(dpt_stream_sync(s->stream, err));
    dpt_accum_init(ret);
    n = 0;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, whole.shard, u);
        if (!strategy_is_empty(piece))
            n += dpt_optim_squares_add(s->env.model, (struct dpt_span){piece.first, piece.end},
                                       s->block_sums + n, ret);
    }
    dpt_accum_normalise(ret);
    return DPT_OK;
}
