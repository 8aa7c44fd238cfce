/* Weights from their owners to the ranks that compute with them: tasks of kind GATHER (core.h). */
#include "worker/strategy/core.h"

/* Position i places after the own one among those that share a state. */
static int other_of_group(const struct dpt_strategy *s, int i)
{
    const struct dpt_range group = s->part.group;
    return group.first + (s->part.position - group.first + i) % (group.end - group.first);
}

static int group_size(const struct dpt_strategy *s)
{
    return s->part.group.end - s->part.group.first;
}

static char *gather_place(const struct dpt_strategy *s, const struct dpt_task *task,
                          int64_t element)
{
    if (task->buffer < 0)
        return (char *)s->state.whole.data + (size_t)element * s->width;
    return (char *)s->state.gathered[task->buffer] +
           (size_t)(element - s->env.grid->offset[task->unit]) * s->width;
}

/* Puts the own piece where the unit is gathered. */
static void place_own(const struct dpt_strategy *s, const struct dpt_task *task)
{
    const struct dpt_interval own = strategy_held_piece(s, s->part.position, task->unit);
    if (!task->idle && task->buffer >= 0 && !strategy_is_empty(own))
        s->ops->copy(s->comm_stream, (size_t)strategy_numel(own) * s->width,
                     strategy_own_weights(s, task->unit), gather_place(s, task, own.first));
}

static void post_gather(void *ctx, const struct dpt_task *task, int turn,
                        struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const int me = s->part.position, computing = strategy_active(s, task);
    const size_t own_bytes =
        (size_t)strategy_numel(strategy_held_piece(s, me, task->unit)) * s->width;
    size_t offset;
    const struct dpt_buffer weights = strategy_weights(s, task->unit, &offset);
    (void)turn;
    if (!s->env.resident) /* where the device has let the place go only when others' pieces come */
        place_own(s, task);
    for (int i = 1; i < group_size(s); i++) {
        const int position = other_of_group(s, i), peer = s->part.world->rank_of_position[position];
        const struct dpt_interval theirs = strategy_held_piece(s, position, task->unit);
        if (own_bytes > 0 && position < computing && !strategy_has_shadow_of(s, position, me))
            x->out[x->n_out++] = dpt_buffer_send(&weights, peer, offset, own_bytes);
        if (!task->idle && !strategy_is_empty(theirs) && !strategy_has_shadow_of(s, me, position))
            x->in[x->n_in++] =
                (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                       .peer = peer,
                                       .buf = gather_place(s, task, theirs.first),
                                       .bytes = (size_t)strategy_numel(theirs) * s->width};
    }
}

/* Puts what comes from the shadow beside what others have sent. */
static void place_shadow(const struct dpt_strategy *s, const struct dpt_task *task)
{
    const int source = s->part.shadow_source;
    if (task->idle || source < 0 || !strategy_has_shadow_of(s, s->part.position, source))
        return;
    const struct dpt_interval piece = strategy_held_piece(s, source, task->unit);
    if (strategy_is_empty(piece))
        return;
    const float *masters =
        strategy_vector_at(s, &s->state.held.shadow, DPT_VECTOR_PARAM, task->unit);
    char *place = gather_place(s, task, piece.first);
    if (s->dtype == DPT_F32)
        s->ops->copy(s->comm_stream, (size_t)strategy_numel(piece) * sizeof(float), masters, place);
    else
        s->ops->cast(s->comm_stream, strategy_numel(piece), masters, s->dtype, place);
}

static enum dpt_status gathered(void *ctx, const struct dpt_task *task, int turn,
                                const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    (void)turn;
    (void)x;
    if (s->env.resident)
        place_own(s, task);
    place_shadow(s, task);
    return dpt_stream_sync(s->comm_stream, err);
}

static int64_t gather_bytes(const void *ctx, const struct dpt_task *task)
{
    const struct dpt_strategy *s = ctx;
    const int me = s->part.position;
    int64_t bytes = 0;
    for (int i = 1; i < group_size(s); i++)
        if (other_of_group(s, i) < strategy_active(s, task) &&
            !strategy_has_shadow_of(s, other_of_group(s, i), me))
            bytes += strategy_numel(strategy_held_piece(s, me, task->unit)) * (int64_t)s->width;
    return bytes;
}

const struct dpt_task_handler strategy_gather = {post_gather, gathered, gather_bytes};
