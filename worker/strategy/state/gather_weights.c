/* Tasks of kind GATHER (strategy_internal.h): owners send weights to the ranks that compute with
 * them. */
#include "worker/strategy/strategy_internal.h"

static char *gather_place(const struct dpt_strategy *s, const struct dpt_task *task,
                          int64_t element)
{
    if (task->buffer < 0)
        return (char *)s->state.whole.data + (size_t)element * s->width;
    return (char *)s->state.gathered[task->buffer].data +
           (size_t)(element - s->env.grid->offset[task->unit]) * s->width;
}

/* Copies this rank's piece to the buffer of the gathered unit. */
static void place_own(const struct dpt_strategy *s, const struct dpt_task *task)
{
    const struct dpt_interval own = strategy_held_piece(s, s->part.position, task->unit);
    if (!task->idle && task->buffer >= 0 && !strategy_is_empty(own))
        s->ops->copy(s->comm_stream, (size_t)strategy_numel(own) * s->width,
                     strategy_own_weights(s, task->unit), gather_place(s, task, own.first));
}

static int64_t gather_bytes_to(const void *ctx, const struct dpt_task *task, int position)
{
    const struct dpt_strategy *s = ctx;
    const int me = s->part.position;
    const bool sends = position >= s->part.group.first && position < s->part.group.end &&
                       strategy_computes(s, task, position) &&
                       !strategy_has_shadow_of(s, position, me);
    return sends ? strategy_numel(strategy_held_piece(s, me, task->unit)) * (int64_t)s->width : 0;
}

static void post_gather(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const struct dpt_range group = s->part.group;
    size_t offset;
    const struct dpt_buffer weights = strategy_weights(s, task->unit, &offset);
    /* A device may still read the buffer. The transfers wait for the device, so gather_done()
     * copies this rank's piece after them. */
    if (!s->traits.on_device)
        place_own(s, task);
    for (int i = 1; i < group.end - group.first; i++) {
        const int position = strategy_next_of(s, group, i);
        const struct dpt_interval theirs = strategy_held_piece(s, position, task->unit);
        strategy_send(s, x, position, &weights, offset, (size_t)gather_bytes_to(s, task, position));
        if (!task->idle && !strategy_is_empty(theirs) &&
            !strategy_has_shadow_of(s, s->part.position, position))
            strategy_receive(s, x, position, gather_place(s, task, theirs.first),
                             (size_t)strategy_numel(theirs) * s->width);
    }
}

/* Computes the weights of the piece whose shadow this rank holds, in the buffer of the gathered
 * unit. */
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

static enum dpt_status gather_done(void *ctx, const struct dpt_task *task,
                                   const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    (void)x;
    if (s->traits.on_device)
        place_own(s, task);
    place_shadow(s, task);
    return dpt_stream_sync(s->comm_stream, err);
}

const struct dpt_task_handler strategy_gather = {post_gather, gather_done, gather_bytes_to};
