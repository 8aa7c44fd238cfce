/* Ops of decoding, one row at a time and in f32. Work is cut by shape: columns, vocabulary and
 * heads, whatever the number of threads. */
#include "kernels/cpu/stream.h"

#include <math.h>

enum { COLUMNS = 64, LOGITS = 256 };

struct linear_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_linear_row *a;
};

static void linear_item(void *ctx, int64_t item, int thread)
{
    const struct linear_job *j = ctx;
    const struct dpt_linear_row *a = j->a;
    const int64_t at = item * COLUMNS, cols = dpt_min64(COLUMNS, a->out - at);
    const float *bias = a->bias ? a->bias + at : NULL;
    float *y = a->y + at;
    (void)thread;
    if (a->out_in) {
        j->kernels->dots(cols, a->in, a->x, a->w + at * a->in, a->in, 1.0f, y);
        if (bias)
            j->kernels->of[DPT_F32]->add(cols, y, bias, y);
        return;
    }
    j->kernels->row_times(&(struct dpt_row_times){
        .k = a->in, .cols = cols, .x = a->x, .w = a->w + at, .ld = a->out, .bias = bias, .y = y});
}

void dpt_cpu_linear_row(struct dpt_stream *stream, const struct dpt_linear_row *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct linear_job job = {.kernels = s->kernels, .a = a};
    if (dpt_cpu_begin(s, DPT_F32, "linear row") && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->out, COLUMNS), linear_item, &job);
}

struct logits_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_logits *a;
};

static void logits_item(void *ctx, int64_t item, int thread)
{
    const struct logits_job *j = ctx;
    const int64_t at = item * LOGITS;
    (void)thread;
    j->kernels->dots(dpt_min64(LOGITS, j->a->v - at), j->a->c, j->a->x, j->a->w + at * j->a->c,
                     j->a->c, 1.0f, j->a->y + at);
}

void dpt_cpu_logits(struct dpt_stream *stream, const struct dpt_logits *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct logits_job job = {.kernels = s->kernels, .a = a};
    if (dpt_cpu_begin(s, DPT_F32, "logits") && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->v, LOGITS), logits_item, &job);
}

struct attention_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_attention_rows *a;
    struct dpt_workspace w;
};

/* One head of one row: its scores with all rows up to itself, their softmax, the mean of values. */
static void attention_item(void *ctx, int64_t item, int thread)
{
    const struct attention_job *j = ctx;
    const struct dpt_attention_rows *a = j->a;
    const int64_t hd = a->head_size, c = a->heads * hd, ld = c + 2 * a->kv_heads * hd;
    const int64_t row = a->first + item / a->heads, t = row + 1, head = item % a->heads;
    const float *k = a->qkv + c + head / (a->heads / a->kv_heads) * hd;
    float *scores = dpt_workspace_of(&j->w, thread);
    j->kernels->dots(t, hd, a->qkv + row * ld + head * hd, k, ld, 1.0f / sqrtf((float)hd), scores);
    j->kernels->softmax(t, scores);
    j->kernels->row_times(&(struct dpt_row_times){.k = t,
                                                  .cols = hd,
                                                  .x = scores,
                                                  .w = k + a->kv_heads * hd,
                                                  .ld = ld,
                                                  .y = a->y + (row - a->first) * c + head * hd});
}

void dpt_cpu_attention_rows(struct dpt_stream *stream, const struct dpt_attention_rows *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct attention_job job = {.kernels = s->kernels, .a = a};
    DPT_ASSERT(a->kv_heads > 0 && a->heads % a->kv_heads == 0 && a->first < a->end);
    if (dpt_cpu_begin(s, DPT_F32, "attention rows") &&
        dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, (size_t)a->end * sizeof(float), &job.w))
        dpt_pool_run(s->pool, (a->end - a->first) * a->heads, attention_item, &job);
}
