/* A shadow that is made anew while training goes on (sharded.h).
 *
 * After a loss every rank has its own shard when training goes on; what it shall keep for another,
 * its source, comes in the steps that follow: of some units a step, the source's masters and
 * moments as the step finds them, beside the step's other transfers. The step's gradient of every
 * unit comes as ever. When the step is committed all of its copies are there, so it is applied to
 * them too: a unit that has been copied once stays as its owner's. Ranks copy the same units in the
 * same steps, and so all of them hold their shadows after the same one. */
#include "worker/strategy/sharded.h"

static const struct dpt_shard no_shard = {0, 0};

/* Bytes that a step copies of a unit, at most: all ranks say the same. */
static double unit_bytes(const struct sharded *s, int unit)
{
    const struct dpt_shard largest = {0, s->world->size};
    const struct dpt_interval piece = dpt_shard_piece(s->env.grid, largest, unit);
    return (double)(piece.end - piece.first) * dpt_vectors(s->env.config) * sizeof(float);
}

static double portion_bytes(const struct sharded *s)
{
    return s->env.config->strategy.rebuild_mib * 1024 * 1024;
}

const struct dpt_state_part *sharded_shadow(const struct sharded *s)
{
    return dpt_shard_is_none(s->late.shard) ? &s->held.shadow : &s->late;
}

struct dpt_shard sharded_defer_shadow(struct sharded *s)
{
    const struct dpt_shard wanted = s->wanted.shadow.shard;
    double bytes = 0;
    for (int u = 0; u < s->n_units; u++)
        bytes += unit_bytes(s, u);
    if (!s->moves || dpt_shard_is_none(wanted) || dpt_shard_equal(wanted, s->held.shadow.shard) ||
        bytes <= portion_bytes(s))
        return no_shard;
    s->late = s->wanted.shadow;
    s->wanted.shadow = (struct dpt_state_part){.shard = no_shard};
    return wanted;
}

void sharded_rebuild_begin(struct sharded *s, const bool *late)
{
    s->rebuilds = true;
    s->holder_late = s->shadow_holder >= 0 && late[s->world->rank_of_position[s->shadow_holder]];
    s->late_units = s->late_end = 0;
}

void sharded_rebuild_step(struct sharded *s)
{
    double bytes = 0;
    if (s->rebuilds) {
        s->late_end = s->late_units;
        while (s->late_end < s->n_units && (s->late_end == s->late_units ||
                                            bytes + unit_bytes(s, s->late_end) <= portion_bytes(s)))
            bytes += unit_bytes(s, s->late_end++);
    }
    dpt_task_runner_copy(s->runner, s->late_units, s->rebuilds ? s->late_end : s->late_units);
}

void sharded_rebuild_applied(struct sharded *s)
{
    if (!s->rebuilds)
        return;
    s->late_units = s->late_end;
    if (s->late_units < s->n_units)
        return;
    s->rebuilds = false;
    if (dpt_shard_is_none(s->late.shard))
        return;
    s->held.shadow = s->late;
    s->late = (struct dpt_state_part){.shard = no_shard};
}

void sharded_rebuild_drop(struct sharded *s)
{
    s->rebuilds = false;
    sharded_part_free(s, false, &s->late);
}

void sharded_post_copy(void *ctx, const struct dpt_task *task, int turn,
                       struct dpt_task_transfers *x)
{
    const struct sharded *s = ctx;
    const struct dpt_grid *grid = s->env.grid;
    const size_t width = sizeof(float);
    const enum dpt_vector vector = (enum dpt_vector)task->part;
    const struct dpt_state_part *own = &s->held.own;
    const struct dpt_interval give = dpt_shard_piece(grid, own->shard, task->unit);
    struct dpt_interval take = {0, 0};
    (void)turn;
    if (!dpt_shard_is_none(s->late.shard))
        take = dpt_shard_piece(grid, s->late.shard, task->unit);
    if (s->holder_late && give.end > give.first) {
        const struct dpt_buffer from = sharded_vector(s, own, vector);
        x->out[x->n_out++] =
            dpt_buffer_send(&from, s->world->rank_of_position[s->shadow_holder],
                            (size_t)sharded_vector_offset(s, own, vector, task->unit) * width,
                            (size_t)(give.end - give.first) * width);
    }
    if (take.end > take.first)
        x->in[x->n_in++] =
            (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                   .peer = s->world->rank_of_position[s->shadow_source],
                                   .buf = sharded_vector_at(s, &s->late, vector, task->unit),
                                   .bytes = (size_t)(take.end - take.first) * width};
}
