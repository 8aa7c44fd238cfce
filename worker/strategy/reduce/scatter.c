/* Tasks of kind SCATTER (strategy_internal.h): ranks send gradients to the owners of the pieces,
 * and the owners add them. */
#include "worker/strategy/reduce/wave_sum.h"
#include "worker/strategy/strategy_internal.h"
#include "worker/trace/span.h"

/* Elements that are added at a time in a world of one rank, where all threads of the main stream
 * add. */
enum { ALONE_CHUNK_NUMEL = 1 << 18 };

enum dpt_status strategy_round_gradient(struct dpt_strategy *s, int unit, struct dpt_err *err)
{
    const struct strategy_waves *w = &s->waves;
    (void)err;
    if (s->wire == DPT_F32) /* always, where ranges are buckets */
        return DPT_OK;
    const int64_t numel = dpt_model_unit(s->env.model, unit)->numel;
    float *grad = s->step.grads[unit];
    s->ops->round_to(s->stream, numel, s->wire, grad);
    for (int i = 0; i < w->n_gradients; i++)
        if (w->narrow_gradient[i].data && w->gradient[i].data == grad)
            s->ops->cast(s->stream, numel, grad, s->wire, w->narrow_gradient[i].data);
    return DPT_OK;
}

/* The element of the flat vector at which a gradient buffer begins. */
static int64_t origin_of(const struct dpt_strategy *s, const struct dpt_task *task)
{
    return s->step.flat_gradient ? 0 : s->env.grid->offset[task->unit];
}

static struct dpt_interval task_piece(const struct dpt_strategy *s, const struct dpt_task *task,
                                      int position)
{
    return dpt_part_of(strategy_added_piece(s, position, task->unit), DPT_BLOCK, task->part,
                       task->n_parts);
}

static bool is_member(const struct dpt_strategy *s, int position)
{
    return position >= s->part.members.first && position < s->part.members.end;
}

static int64_t scatter_bytes_to(const void *ctx, const struct dpt_task *task, int position)
{
    const struct dpt_strategy *s = ctx;
    if (task->idle || !is_member(s, position))
        return 0;
    return strategy_numel(task_piece(s, task, position)) * (int64_t)strategy_width(s, position);
}

static void post_scatter(void *ctx, const struct dpt_task *task, struct dpt_task_transfers *x)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_waves *w = &s->waves;
    const struct dpt_range members = s->part.members;
    const int64_t own = strategy_numel(task_piece(s, task, s->part.position));
    char *staging = strategy_staging(&w->staging, x->turn);
    for (int i = 1; i < members.end - members.first; i++) {
        const int position = strategy_next_of(s, members, i);
        const int64_t first = task_piece(s, task, position).first - origin_of(s, task);
        const size_t width = strategy_width(s, position);
        if (!task->idle)
            strategy_send(s, x, position,
                          strategy_is_narrow(s, position) ? &w->narrow_gradient[task->buffer]
                                                          : &w->gradient[task->buffer],
                          (size_t)first * width, (size_t)scatter_bytes_to(s, task, position));
        if (strategy_computes(s, task, position) && own > 0)
            strategy_borrow(s, x, position, &staging, (size_t)own * width);
    }
}

/* Adds a wave's contributions to elements [first, first + numel) of this rank's piece of a
 * range. */
static void add_wave(const struct dpt_strategy *s, const struct dpt_task *task, int64_t first,
                     int64_t numel, struct dpt_stream *stream)
{
    const struct strategy_waves *w = &s->waves;
    const int at = w->first_step[task->wave];
    float *sums[STRATEGY_SUMS_MAX], wide[DPT_WAVE_SUM_CHUNK];
    for (int i = 0; i < w->n_sums; i++)
        sums[i] = strategy_sum(s, i, task->unit) + first;
    const struct dpt_wave_sum wave = {.steps = w->steps + at,
                                      .n = w->first_step[task->wave + 1] - at,
                                      .sums = sums,
                                      .contributions = w->contributions,
                                      .narrow = w->narrow_from,
                                      .wire = s->wire,
                                      .last = task->wave == dpt_waves_count(&s->part.waves) - 1,
                                      .numel = numel,
                                      .wide = w->scratch.data ? w->scratch.data : wide,
                                      .chunk = s->traits.on_device        ? numel
                                               : s->part.world->size == 1 ? ALONE_CHUNK_NUMEL
                                                                          : DPT_WAVE_SUM_CHUNK};
    if (wave.chunk != DPT_WAVE_SUM_CHUNK) {
        dpt_wave_sum_add(s->ops, stream, &wave);
        return;
    }
    const struct dpt_trace_whole whole = dpt_trace_begin_whole(); /* as in tree_sum.c */
    dpt_wave_sum_add(s->ops, stream, &wave);
    dpt_trace_end_whole(&whole, &(struct dpt_trace_span){.name = "ordered_sum",
                                                         .kind = DPT_TRACE_OP,
                                                         .key = {"numel", "additions"},
                                                         .value = {numel, wave.n}});
}

static enum dpt_status scatter_done(void *ctx, const struct dpt_task *task,
                                    const struct dpt_task_transfers *x, struct dpt_err *err)
{
    const struct dpt_strategy *s = ctx;
    const struct strategy_waves *w = &s->waves;
    const struct dpt_range members = s->part.members;
    const int me = s->part.position;
    const struct dpt_interval own = task_piece(s, task, me);
    int n = 0;
    if (strategy_is_empty(own))
        return DPT_OK;
    if (!task->idle)
        w->contributions[me - members.first] =
            (const float *)w->gradient[task->buffer].data + (own.first - origin_of(s, task));
    for (int i = 1; i < members.end - members.first; i++) {
        const int position = strategy_next_of(s, members, i);
        if (strategy_computes(s, task, position))
            w->contributions[position - members.first] = x->in[n++].lent;
    }
    DPT_ASSERT(n == x->n_in);
    const bool alone = s->part.world->size == 1;
    struct dpt_stream *stream = alone ? s->stream : s->comm_stream;
    const int64_t first = own.first - strategy_added_piece(s, me, task->unit).first;
    add_wave(s, task, first, strategy_numel(own), stream);
    if (w->narrow_sum.data)
        s->ops->cast(stream, strategy_numel(own), strategy_sum(s, 0, task->unit) + first, s->wire,
                     (char *)w->narrow_sum.data + strategy_narrow_offset(s, task->unit, first));
    return alone ? DPT_OK : dpt_stream_sync(stream, err);
}

const struct dpt_task_handler strategy_scatter = {post_scatter, scatter_done, scatter_bytes_to};
