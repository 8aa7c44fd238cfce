/* Attention: one item of work is one head of one sample (simd/attention.c), backward one key and
 * value head with its query heads, whatever the number of threads. */
#include "kernels/cpu/stream.h"

struct job {
    const struct dpt_elem_kernels *kernels;
    enum dpt_dtype dtype;
    int64_t t, heads, kv_heads, hd;
    const struct dpt_dropout *dropout;
    const void *qkv, *y, *dy;
    const float *lse;
    void *ret_y, *dqkv;
    float *ret_lse;
    struct dpt_workspace w;
};

static void head_item(void *ctx, int64_t item, int thread)
{
    const struct job *j = ctx;
    const int64_t hd = j->hd, c = j->heads * hd, ld = c + 2 * j->kv_heads * hd;
    const int64_t group = j->heads / j->kv_heads, head = j->dqkv ? item * group : item;
    const int64_t b = head / j->heads, h = head % j->heads;
    const int64_t q = b * j->t * ld + h * hd, y = b * j->t * c + h * hd;
    const int64_t k = b * j->t * ld + c + h / group * hd, v = k + j->kv_heads * hd;
    struct dpt_head_rows a = {.t = j->t,
                              .hd = hd,
                              .ld = ld,
                              .ldy = c,
                              .q = dpt_at(j->qkv, j->dtype, q),
                              .k = dpt_at(j->qkv, j->dtype, k),
                              .v = dpt_at(j->qkv, j->dtype, v),
                              .dropout = j->dropout,
                              .drop_first =
                                  j->dropout->first + (uint64_t)head * (uint64_t)(j->t * j->t),
                              .work = dpt_workspace_of(&j->w, thread)};
    if (j->dqkv) {
        a.group = group;
        a.y_in = dpt_at(j->y, j->dtype, y);
        a.lse_in = j->lse + head * j->t;
        a.dy = dpt_at(j->dy, j->dtype, y);
        a.dq = dpt_at_out(j->dqkv, j->dtype, q);
        a.dk = dpt_at_out(j->dqkv, j->dtype, k);
        a.dv = dpt_at_out(j->dqkv, j->dtype, v);
        j->kernels->attention_grad(&a);
    } else {
        a.y = dpt_at_out(j->ret_y, j->dtype, y);
        a.lse = j->ret_lse + head * j->t;
        j->kernels->attention(&a);
    }
}

static void run(struct dpt_cpu_stream *s, struct job *job, int64_t b, bool backward)
{
    DPT_ASSERT(job->kv_heads > 0 && job->heads % job->kv_heads == 0);
    job->kernels = s->kernels->of[job->dtype];
    size_t work = job->kernels->attention_work(job->t, job->hd, backward);
    if (dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, work * sizeof(float), &job->w))
        dpt_pool_run(s->pool, b * (backward ? job->kv_heads : job->heads), head_item, job);
}

void dpt_cpu_attention_forward(struct dpt_stream *stream, const struct dpt_attention_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.dtype = a->dtype,
                      .t = a->t,
                      .heads = a->heads,
                      .kv_heads = a->kv_heads,
                      .hd = a->head_size,
                      .dropout = &a->dropout,
                      .qkv = a->qkv,
                      .ret_y = a->y,
                      .ret_lse = a->lse};
    if (dpt_cpu_begin(s, a->dtype, "attention"))
        run(s, &job, a->b, false);
}

void dpt_cpu_attention_backward(struct dpt_stream *stream, const struct dpt_attention_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.dtype = a->dtype,
                      .t = a->t,
                      .heads = a->heads,
                      .kv_heads = a->kv_heads,
                      .hd = a->head_size,
                      .dropout = &a->dropout,
                      .qkv = a->qkv,
                      .y = a->y,
                      .lse = a->lse,
                      .dy = a->dy,
                      .dqkv = a->dqkv};
    if (dpt_cpu_begin(s, a->dtype, "attention backward"))
        run(s, &job, a->b, true);
}
