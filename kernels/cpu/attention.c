/* Attention: one item of work is one head of one sample (simd/attention.c), whatever the number of
 * threads. */
#include "kernels/cpu/stream.h"

struct job {
    const struct dpt_elem_kernels *kernels;
    enum dpt_dtype dtype;
    int64_t t, heads, c;
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
    int64_t b = item / j->heads, h = item % j->heads, hd = j->c / j->heads;
    int64_t at3 = b * j->t * 3 * j->c + h * hd, at1 = b * j->t * j->c + h * hd;
    struct dpt_head_rows a = {.t = j->t,
                              .hd = hd,
                              .ld = 3 * j->c,
                              .ldy = j->c,
                              .q = dpt_at(j->qkv, j->dtype, at3),
                              .k = dpt_at(j->qkv, j->dtype, at3 + j->c),
                              .v = dpt_at(j->qkv, j->dtype, at3 + 2 * j->c),
                              .dropout = j->dropout,
                              .drop_first =
                                  j->dropout->first + (uint64_t)item * (uint64_t)(j->t * j->t),
                              .work = dpt_workspace_of(&j->w, thread)};
    if (j->dqkv) {
        a.y_in = dpt_at(j->y, j->dtype, at1);
        a.lse_in = j->lse + item * j->t;
        a.dy = dpt_at(j->dy, j->dtype, at1);
        a.dq = dpt_at_out(j->dqkv, j->dtype, at3);
        a.dk = dpt_at_out(j->dqkv, j->dtype, at3 + j->c);
        a.dv = dpt_at_out(j->dqkv, j->dtype, at3 + 2 * j->c);
        j->kernels->attention_grad(&a);
    } else {
        a.y = dpt_at_out(j->ret_y, j->dtype, at1);
        a.lse = j->ret_lse + item * j->t;
        j->kernels->attention(&a);
    }
}

static void run(struct dpt_cpu_stream *s, struct job *job, int64_t b, bool backward)
{
    DPT_ASSERT(job->heads > 0 && job->c % job->heads == 0);
    job->kernels = s->kernels->of[job->dtype];
    size_t work = job->kernels->attention_work(job->t, job->c / job->heads, backward);
    if (dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, work * sizeof(float), &job->w))
        dpt_pool_run(s->pool, b * job->heads, head_item, job);
}

void dpt_cpu_attention_forward(struct dpt_stream *stream, const struct dpt_attention_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.dtype = a->dtype,
                      .t = a->t,
                      .heads = a->heads,
                      .c = a->c,
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
                      .c = a->c,
                      .dropout = &a->dropout,
                      .qkv = a->qkv,
                      .y = a->y,
                      .lse = a->lse,
                      .dy = a->dy,
                      .dqkv = a->dqkv};
    if (dpt_cpu_begin(s, a->dtype, "attention backward"))
        run(s, &job, a->b, true);
}
