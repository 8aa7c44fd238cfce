/* The sum steps of a wave, chunk by chunk (wave_sum.h). */
#include "worker/strategy/reduce/wave_sum.h"

#include "base/err.h"

struct chunk {
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    int64_t at, n;
};

/* sum (+)= the contribution of a member. */
static void add_contribution(const struct chunk *c, const struct dpt_wave_sum *w,
                             const struct dpt_sum_step *f, float *sum)
{
    const float *term = w->contributions[f->member];
    if (w->narrow && w->narrow[f->member]) {
        const uint16_t *narrow = w->contributions[f->member];
        c->ops->widen(c->stream, c->n, w->wire, narrow + c->at, w->wide);
        term = w->wide;
    } else {
        term += c->at;
    }
    if (f->kind == DPT_SUM_SET)
        c->ops->copy(c->stream, (size_t)c->n * sizeof *sum, term, sum);
    else
        c->ops->add(c->stream, c->n, sum, term, sum);
}

void dpt_wave_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_wave_sum *w)
{
    for (int64_t at = 0; at < w->numel; at += w->chunk) {
        const struct chunk c = {ops, stream, at,
                                w->numel - at < w->chunk ? w->numel - at : w->chunk};
        for (int i = 0; i < w->n; i++) {
            const struct dpt_sum_step *f = &w->steps[i];
            float *sum = w->sums[f->sum] + at;
            if (f->kind != DPT_SUM_JOIN) {
                add_contribution(&c, w, f, sum);
                continue;
            }
            ops->add(stream, c.n, sum, w->sums[f->sum + 1] + at, sum);
            ops->round_to(stream, c.n, w->wire, sum);
        }
        if (w->last)
            ops->round_to(stream, c.n, w->wire, w->sums[0] + at);
    }
}
