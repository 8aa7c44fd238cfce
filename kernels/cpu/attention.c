/* Attention. In forward, one item of work is one query head of one sample. In backward it is one
 * key and value head together with its query heads. The items do not depend on the number of
 * threads. simd/attention.c has the kernels. */
#include "kernels/cpu/stream.h"

/* The rows of query head `head`, counted over the heads of all samples, and of its key and value
 * head. */
static struct dpt_head_rows head_rows(const struct dpt_cpu_op *op, int64_t head, int thread)
{
    const struct dpt_attention *a = op->a;
    const int64_t hd = a->head_size, c = a->heads * hd, ld = c + 2 * a->kv_heads * hd;
    const int64_t group = a->heads / a->kv_heads, b = head / a->heads, h = head % a->heads;
    const int64_t q = b * a->t * ld + h * hd, y = b * a->t * c + h * hd;
    const int64_t k = b * a->t * ld + c + h / group * hd, v = k + a->kv_heads * hd;
    return (struct dpt_head_rows){.t = a->t,
                                  .hd = hd,
                                  .ld = ld,
                                  .ldy = c,
                                  .q = dpt_at(a->qkv, a->dtype, q),
                                  .k = dpt_at(a->qkv, a->dtype, k),
                                  .v = dpt_at(a->qkv, a->dtype, v),
                                  .y = dpt_at_out(a->y, a->dtype, y),
                                  .lse = a->lse + head * a->t,
                                  .dropout = &a->dropout,
                                  .drop_first =
                                      a->dropout.first + (uint64_t)head * (uint64_t)(a->t * a->t),
                                  .group = group,
                                  .dy = dpt_at(a->dy, a->dtype, y),
                                  .dq = dpt_at_out(a->dqkv, a->dtype, q),
                                  .dk = dpt_at_out(a->dqkv, a->dtype, k),
                                  .dv = dpt_at_out(a->dqkv, a->dtype, v),
                                  .work = dpt_workspace_of(&op->w, thread)};
}

static void attention_forward_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_attention *a = op->a;
    const struct dpt_head_rows rows = head_rows(op, item, thread);
    op->kernels->of[a->dtype]->attention(&rows);
}

static void attention_backward_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_attention *a = op->a;
    const struct dpt_head_rows rows = head_rows(op, item * (a->heads / a->kv_heads), thread);
    op->kernels->of[a->dtype]->attention_grad(&rows);
}

static void run_attention(struct dpt_cpu_stream *s, const struct dpt_attention *a, bool backward)
{
    struct dpt_cpu_op op = {.kernels = s->kernels, .a = a};
    DPT_ASSERT(a->kv_heads > 0 && a->heads % a->kv_heads == 0);
    const size_t work = s->kernels->of[a->dtype]->attention_work(a->t, a->head_size, backward);
    if (dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, work * sizeof(float), &op.w))
        dpt_pool_run(s->pool, a->b * (backward ? a->kv_heads : a->heads),
                     backward ? attention_backward_item : attention_forward_item, &op);
}

void dpt_cpu_attention_forward(struct dpt_stream *stream, const struct dpt_attention *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_stream_begin(&s->base, a->dtype, "attention"))
        run_attention(s, a, false);
}

void dpt_cpu_attention_backward(struct dpt_stream *stream, const struct dpt_attention *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (dpt_stream_begin(&s->base, a->dtype, "attention backward"))
        run_attention(s, a, true);
}
