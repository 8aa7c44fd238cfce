/* Ops of decoding, one row at a time and in f32. Work is cut by columns and heads, and so by shape
 * alone. */
#include "kernels/cpu/stream.h"

#include <math.h>

enum { COLUMNS = 64 }; /* columns of a linear layer in one item */

static void linear_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_linear_row *a = op->a;
    const int64_t at = item * COLUMNS, cols = dpt_min64(COLUMNS, a->out - at);
    const float *bias = a->bias ? a->bias + at : NULL;
    float *y = a->y + at;
    (void)thread;
    if (a->out_in) {
        op->kernels->dots(&(struct dpt_row_dots){.rows = cols,
                                                 .n = a->in,
                                                 .x = a->x,
                                                 .w = a->w + at * a->in,
                                                 .ld = a->in,
                                                 .scale = 1.0f,
                                                 .y = y});
        if (bias)
            op->kernels->of[DPT_F32]->add(cols, y, bias, y);
        return;
    }
    op->kernels->row_times(&(struct dpt_row_times){
        .k = a->in, .cols = cols, .x = a->x, .w = a->w + at, .ld = a->out, .bias = bias, .y = y});
}

void dpt_cpu_linear_row(struct dpt_stream *stream, const struct dpt_linear_row *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_cpu_posts(s, DPT_F32, "linear row"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->out, COLUMNS), linear_item, a);
}

/* Item: one head of one row. Computes its scores with all rows up to itself, their softmax, and the
 * weighted mean of the values. */
static void attention_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_attention_rows *a = op->a;
    const int64_t hd = a->head_size, c = a->heads * hd, ld = c + 2 * a->kv_heads * hd;
    const int64_t row = a->first + item / a->heads, t = row + 1, head = item % a->heads;
    const float *k = a->qkv + c + head / (a->heads / a->kv_heads) * hd;
    float *scores = dpt_workspace_of(&op->w, thread);
    op->kernels->dots(&(struct dpt_row_dots){.rows = t,
                                             .n = hd,
                                             .x = a->qkv + row * ld + head * hd,
                                             .w = k,
                                             .ld = ld,
                                             .scale = 1.0f / sqrtf((float)hd),
                                             .y = scores});
    op->kernels->softmax(t, scores);
    op->kernels->row_times(&(struct dpt_row_times){.k = t,
                                                   .cols = hd,
                                                   .x = scores,
                                                   .w = k + a->kv_heads * hd,
                                                   .ld = ld,
                                                   .y = a->y + (row - a->first) * c + head * hd});
}

void dpt_cpu_attention_rows(struct dpt_stream *stream, const struct dpt_attention_rows *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct dpt_cpu_op op = {.kernels = s->kernels, .a = a};
    DPT_ASSERT(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->first < a->end);
    if (dpt_stream_begin(&s->base, DPT_F32, "attention rows") &&
        dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, (size_t)a->end * sizeof(float), &op.w))
        dpt_pool_run(s->pool, (a->end - a->first) * a->heads, attention_item, &op);
}
