/* The held and the wanted state, and the weights made from the masters (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

/* Sets the wanted part: the held part if the shard is the same, else new memory. */
static enum dpt_status want_part(struct dpt_strategy *s, struct dpt_shard shard, bool own,
                                 const struct dpt_state_part *held, struct dpt_state_part *wanted,
                                 struct dpt_err *err)
{
    *wanted = *held;
    if (dpt_shard_equal(held->shard, shard))
        return DPT_OK;
    s->state.moves = true;
    return strategy_part_create(s, shard, own, wanted, err);
}

static void drop_wanted(struct dpt_strategy *s)
{
    struct strategy_state *state = &s->state;
    if (state->moves) {
        strategy_part_free(s, true, &state->wanted.own, &state->held.own);
        strategy_part_free(s, false, &state->wanted.shadow, &state->held.shadow);
    }
    state->moves = false;
}

/* Makes the memory of all weights. It is registered where ranks send weights, and where the weights
 * are the masters. */
static enum dpt_status make_whole(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_state *state = &s->state;
    const bool sent = s->traits.weights != DPT_WEIGHTS_HELD || s->dtype == DPT_F32;
    DPT_TRY(strategy_buffer_make(s, DPT_ITEM_WHOLE, sent, &state->whole, err));
    for (int u = 0; u < s->n_units; u++)
        state->weights[u] = (char *)state->whole.data + (size_t)s->env.grid->offset[u] * s->width;
    return DPT_OK;
}

enum dpt_status strategy_state_create(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_state *state = &s->state;
    state->newest = STRATEGY_REGISTERED;
    state->stale = true;
    if (strategy_has_whole(s))
        DPT_TRY(make_whole(s, err));
    /* A replicated state is the same in every world. */
    if (s->traits.state != DPT_STATE_REPLICATED)
        return DPT_OK;
    DPT_TRY(strategy_part_create(s, (struct dpt_shard){0, 1}, true, &state->held.own, err));
    return s->traits.on_device ? strategy_part_enter_device(s, true, &state->held.own, err)
                               : DPT_OK;
}

void strategy_state_destroy(struct dpt_strategy *s)
{
    struct strategy_state *state = &s->state;
    drop_wanted(s);
    strategy_rebuild_drop(s);
    strategy_part_free(s, true, &state->held.own, NULL);
    strategy_part_free(s, false, &state->held.shadow, NULL);
    dpt_buffer_free(&state->whole);
    dpt_buffer_free(&state->copy);
    for (int i = 0; i < state->n_gathered; i++)
        dpt_buffer_free(&state->gathered[i]);
}

/* Makes the buffers of gathered units, the tied unit's buffer first. They are the same in every
 * world. */
static enum dpt_status make_gathered(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_state *state = &s->state;
    const int tied = s->memory.item[DPT_ITEM_GATHERED_TIED].n,
              all = tied + s->memory.item[DPT_ITEM_GATHERED].n;
    for (int i = state->n_gathered; i < all; i++, state->n_gathered++)
        DPT_TRY(strategy_buffer_make(s, i < tied ? DPT_ITEM_GATHERED_TIED : DPT_ITEM_GATHERED,
                                     false, &state->gathered[i], err));
    return DPT_OK;
}

/* Gives the wanted part memory on the device: the held part's memory if the shard is the same, else
 * new memory after the held part's is freed. */
static enum dpt_status move_on_device(struct dpt_strategy *s, bool own, struct dpt_state_part *held,
                                      struct dpt_state_part *wanted, struct dpt_err *err)
{
    const bool same = dpt_shard_equal(held->shard, wanted->shard);
    if (!same)
        strategy_part_leave_device(s, own, held, NULL);
    const enum dpt_status status = strategy_part_enter_device(s, own, wanted, err);
    if (same)
        *held = *wanted;
    return status;
}

/* Moves from the held to the wanted state on the device. The held state is copied to registered
 * memory first, because the device has room for one state. */
static enum dpt_status move_to_wanted(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_state *state = &s->state;
    if (state->moves) {
        DPT_TRY(dpt_strategy_fetch_state(s, err));
        state->newest = STRATEGY_REGISTERED;
    }
    DPT_TRY(move_on_device(s, true, &state->held.own, &state->wanted.own, err));
    return move_on_device(s, false, &state->held.shadow, &state->wanted.shadow, err);
}

enum dpt_status strategy_state_begin(struct dpt_strategy *s, struct dpt_err *err)
{
    struct strategy_state *state = &s->state;
    const int source = s->part.shadow_source;
    const struct dpt_shard none = {0, 0}, own = dpt_partition_held(&s->part, s->part.position),
                           shadow = source < 0 ? none : dpt_partition_held(&s->part, source);
    drop_wanted(s);
    strategy_rebuild_drop(s);
    state->wanted = state->held;
    DPT_TRY(want_part(s, own, true, &state->held.own, &state->wanted.own, err));
    DPT_TRY(want_part(s, shadow, false, &state->held.shadow, &state->wanted.shadow, err));
    if (s->traits.on_device)
        DPT_TRY(move_to_wanted(s, err));
    DPT_TRY(strategy_buffer_make(s, DPT_ITEM_COPY, true, &state->copy, err));
    return make_gathered(s, err);
}

struct dpt_buffer strategy_weights(const struct dpt_strategy *s, int unit, size_t *ret_offset)
{
    const struct dpt_state_part *own = &s->state.held.own;
    if (strategy_has_whole(s)) {
        *ret_offset = (size_t)dpt_shard_piece(s->env.grid, own->shard, unit).first * s->width;
        return s->state.whole;
    }
    *ret_offset = (size_t)dpt_shard_offset(s->env.grid, own->shard, unit) * s->width;
    return s->dtype == DPT_F32 ? strategy_vector(s, own, DPT_VECTOR_PARAM) : s->state.copy;
}

void *strategy_own_weights(const struct dpt_strategy *s, int unit)
{
    size_t offset;
    char *data = strategy_weights(s, unit, &offset).data;
    return data + offset;
}

void dpt_strategy_state_changed(struct dpt_strategy *s)
{
    struct strategy_state *state = &s->state;
    /* The caller fetched the state before it wrote to it. */
    DPT_ASSERT(state->newest != STRATEGY_ON_DEVICE);
    if (state->moves) {
        strategy_part_free(s, true, &state->held.own, &state->wanted.own);
        strategy_part_free(s, false, &state->held.shadow, &state->wanted.shadow);
        state->held = state->wanted;
        state->moves = false;
    }
    state->stale = true;
    state->newest = STRATEGY_REGISTERED;
    if (s->packed)
        dpt_packed_weights_forget(s->packed);
}

/* Copies a part between registered memory and the device's memory, piece by piece. */
static void copy_part(const struct dpt_strategy *s, const struct dpt_state_part *part,
                      bool to_device)
{
    for (int v = 0; v < DPT_VECTOR_COUNT && !dpt_shard_is_none(part->shard); v++)
        for (int u = 0; part->vector[v].mem && u < s->n_units; u++) {
            const struct dpt_interval piece = dpt_shard_piece(s->env.grid, part->shard, u);
            if (strategy_is_empty(piece))
                continue;
            float *registered = dpt_strategy_state_at(part, s->env.grid, (enum dpt_vector)v, u),
                  *on_device = strategy_vector_at(s, part, (enum dpt_vector)v, u);
            const size_t bytes = (size_t)strategy_numel(piece) * sizeof(float);
            if (to_device)
                dpt_stager_to_device(s->env.stager, bytes, registered, on_device);
            else
                dpt_stager_to_host(s->env.stager, bytes, on_device, registered);
        }
}

enum dpt_status dpt_strategy_fetch_state(struct dpt_strategy *s, struct dpt_err *err)
{
    if (s->state.newest != STRATEGY_ON_DEVICE)
        return DPT_OK;
    copy_part(s, &s->state.held.own, false);
    copy_part(s, &s->state.held.shadow, false);
    DPT_TRY(dpt_stager_finish(s->env.stager, err));
    s->state.newest = STRATEGY_BOTH;
    return DPT_OK;
}

void strategy_state_refresh(struct dpt_strategy *s)
{
    const struct dpt_state_part *own = &s->state.held.own;
    if (s->state.newest != STRATEGY_REGISTERED)
        return;
    if (s->traits.on_device) {
        copy_part(s, own, true);
        copy_part(s, &s->state.held.shadow, true);
    }
    s->state.newest = STRATEGY_BOTH;
    if (dpt_shard_is_none(own->shard))
        return;
    for (int u = 0; u < s->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(s->env.grid, own->shard, u);
        if (s->dtype != DPT_F32 && !strategy_is_empty(piece))
            s->ops->cast(s->stream, strategy_numel(piece),
                         strategy_vector_at(s, own, DPT_VECTOR_PARAM, u), s->dtype,
                         strategy_own_weights(s, u));
        if (own->shard.of == 1 && !strategy_has_whole(s))
            s->state.weights[u] = strategy_own_weights(s, u);
    }
}
