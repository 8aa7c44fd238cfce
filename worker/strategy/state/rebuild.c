/* Copies shadows while training goes on (strategy_internal.h).
 *
 * When training continues after a loss, every rank has its own shard. Shadows are copied in the
 * steps that follow. Each step copies some units beside its other transfers: the source's masters
 * and moments as they are before the step. The holder receives the step's gradient of every unit.
 * When the step is committed all of its copies have arrived, and the holder also applies the step
 * to them. So a unit that was copied once stays equal to its source. All ranks copy the same units
 * in the same steps, and have their shadows after the same step. */
#include "worker/strategy/strategy_internal.h"

static const struct dpt_shard no_shard = {0, 0};

/* Bytes of a unit's copy for the largest shard; equal on all ranks. */
static double unit_bytes(const struct dpt_strategy *s, int unit)
{
    const struct dpt_shard largest = {0, s->part.world->size};
    return (double)strategy_numel(dpt_shard_piece(s->env.grid, largest, unit)) *
           dpt_strategy_vectors(s->env.config) * sizeof(float);
}

static double portion_bytes(const struct dpt_strategy *s)
{
    return s->env.config->strategy.rebuild_mib * 1024 * 1024;
}

const struct dpt_state_part *strategy_shadow(const struct dpt_strategy *s)
{
    return dpt_shard_is_none(s->rebuild.late.shard) ? &s->state.held.shadow : &s->rebuild.late;
}

bool strategy_has_shadow_of(const struct dpt_strategy *s, int holder, int position)
{
    const struct dpt_partition *p = &s->part;
    const bool holder_has = !(s->rebuild.active && s->rebuild.holder_late);
    return (position == p->position && holder == p->shadow_holder && holder_has) ||
           (holder == p->position && position == p->shadow_source &&
            dpt_shard_is_none(s->rebuild.late.shard));
}

struct dpt_shard dpt_strategy_defer_shadow(struct dpt_strategy *s)
{
    struct strategy_state *state = &s->state;
    const struct dpt_shard wanted = state->wanted.shadow.shard;
    double bytes = 0;
    for (int u = 0; u < s->n_units; u++)
        bytes += unit_bytes(s, u);
    if (!state->moves || dpt_shard_is_none(wanted) ||
        dpt_shard_equal(wanted, state->held.shadow.shard) || bytes <= portion_bytes(s))
        return no_shard;
    s->rebuild.late = state->wanted.shadow;
    state->wanted.shadow = (struct dpt_state_part){.shard = no_shard};
    return wanted;
}

void dpt_strategy_rebuild(struct dpt_strategy *s, const bool *late)
{
    const int holder = s->part.shadow_holder;
    s->rebuild.active = true;
    s->rebuild.holder_late = holder >= 0 && late[s->part.world->rank_of_position[holder]];
    s->rebuild.units = s->rebuild.end = 0;
}

void strategy_rebuild_step(struct dpt_strategy *s)
{
    struct strategy_rebuild *r = &s->rebuild;
    double bytes = 0;
    if (r->active) {
        r->end = r->units;
        while (r->end < s->n_units &&
               (r->end == r->units || bytes + unit_bytes(s, r->end) <= portion_bytes(s)))
            bytes += unit_bytes(s, r->end++);
    }
    dpt_task_runner_copy(s->runner, r->units, r->active ? r->end : r->units);
}

void strategy_rebuild_applied(struct dpt_strategy *s)
{
    struct strategy_rebuild *r = &s->rebuild;
    if (!r->active)
        return;
    r->units = r->end;
    if (r->units < s->n_units)
        return;
    r->active = false;
    if (dpt_shard_is_none(r->late.shard))
        return;
    s->state.held.shadow = r->late;
    r->late = (struct dpt_state_part){.shard = no_shard};
}

void strategy_rebuild_drop(struct dpt_strategy *s)
{
    s->rebuild.active = false;
    strategy_part_free(s, false, &s->rebuild.late, NULL);
}

static void post_copy(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const size_t width = sizeof(float);
    const enum dpt_vector vector = (enum dpt_vector)task->part;
    const struct dpt_state_part *own = &s->state.held.own, *late = &s->rebuild.late;
    const struct dpt_interval give = dpt_shard_piece(s->env.grid, own->shard, task->unit),
                              take = dpt_shard_piece(s->env.grid, late->shard, task->unit);
    if (s->rebuild.holder_late) {
        const struct dpt_buffer from = strategy_vector(s, own, vector);
        strategy_send(s, x, s->part.shadow_holder, &from,
                      (size_t)strategy_vector_offset(s, own, vector, task->unit) * width,
                      (size_t)strategy_numel(give) * width);
    }
    if (!strategy_is_empty(take)) /* the piece is empty if no shadow is late */
        strategy_receive(s, x, s->part.shadow_source,
                         strategy_vector_at(s, late, vector, task->unit),
                         (size_t)strategy_numel(take) * width);
}

const struct dpt_task_handler strategy_copy = {.post = post_copy};
