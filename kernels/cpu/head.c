/* Language-model head fused with softmax cross-entropy.
 *
 * Rows go in chunks of CHUNK, so that the logits exist once and only for one chunk. A chunk's
 * logits are kept in blocks of BLOCK columns of the vocabulary, each block dense: dx is then a sum
 * over blocks of products with a short k, and every operand of the three products is small enough
 * to pack. */
#include "kernels/cpu/gemm.h"

enum { CHUNK = 256, BLOCK = 3072 };

struct job {
    struct dpt_cpu_stream *s;
    const struct dpt_head_loss *a;
    int64_t row, rows; /* the chunk */
    float *logits;     /* blocks of (rows, width of the block) */
    float *dw;         /* (v, c): where the chunks' contributions gather */
    bool add_dw;       /* the first chunk adds to it, too */
    bool grad;
};

static int64_t block_width(const struct job *j, int64_t at)
{
    return dpt_min64(BLOCK, j->a->v - at);
}

static float *block_logits(const struct job *j, int64_t at)
{
    return j->logits + at * j->rows;
}

static void logits_block(const struct job *j, int64_t at)
{
    const struct dpt_head_loss *a = j->a;
    int64_t width = block_width(j, at);
    const struct dpt_gemm g = {.m = j->rows,
                               .n = width,
                               .k = a->c,
                               .a = dpt_at(a->x, j->row * a->c),
                               .a_row = a->c,
                               .a_col = 1,
                               .b = dpt_at(a->w, at * a->c),
                               .b_row = 1,
                               .b_col = a->c,
                               .store = {.c = block_logits(j, at), .ldc = width}};
    dpt_cpu_gemm(j->s, &g);
}

static void gradient_block(const struct job *j, int64_t at)
{
    const struct dpt_head_loss *a = j->a;
    int64_t width = block_width(j, at);
    const float *dlogits = block_logits(j, at);
    const struct dpt_gemm dx = {
        .m = j->rows,
        .n = a->c,
        .k = width,
        .a = dlogits,
        .a_row = width,
        .a_col = 1,
        .b = dpt_at(a->w, at * a->c),
        .b_row = a->c,
        .b_col = 1,
        .store = {.c = dpt_at_out(a->dx, j->row * a->c), .ldc = a->c, .accumulate = at > 0}};
    const struct dpt_gemm dw = {.m = width,
                                .n = a->c,
                                .k = j->rows,
                                .a = dlogits,
                                .a_row = 1,
                                .a_col = width,
                                .b = dpt_at(a->x, j->row * a->c),
                                .b_row = a->c,
                                .b_col = 1,
                                .store = {.c = dpt_at_out(j->dw, at * a->c),
                                          .ldc = a->c,
                                          .accumulate = j->add_dw || j->row > 0,
                                          .stream = true}};
    if (a->dx || j->s->preparing)
        dpt_cpu_gemm(j->s, &dx);
    if (j->dw || j->s->preparing)
        dpt_cpu_gemm(j->s, &dw);
}

/* One row: its loss, and its logits turned into their gradient. */
static void row_item(void *ctx, int64_t r, int thread)
{
    const struct job *j = ctx;
    const struct dpt_head_loss *a = j->a;
    const struct dpt_cpu_kernels *k = j->s->kernels;
    const int32_t target = a->targets[j->row + r];
    float max = -3.0e38f, sum = 0.0f, picked = 0.0f;
    (void)thread;
    for (int64_t at = 0; at < a->v; at += BLOCK) {
        int64_t width = block_width(j, at);
        const float *row = block_logits(j, at) + r * width;
        k->softmax_part(width, row, &max, &sum);
        if (target >= at && target < at + width)
            picked = row[target - at];
    }
    const float lse = max + (float)dpt_cpu_log((double)sum);
    a->loss[j->row + r] = lse - picked;
    if (!j->grad)
        return;
    for (int64_t at = 0; at < a->v; at += BLOCK) {
        int64_t width = block_width(j, at);
        float *row = block_logits(j, at) + r * width;
        k->softmax_grad(width, row, lse, a->dloss);
        if (target >= at && target < at + width)
            row[target - at] -= a->dloss;
    }
}

static void chunk(struct job *j)
{
    for (int64_t at = 0; at < j->a->v; at += BLOCK)
        logits_block(j, at);
    if (!j->s->preparing && j->s->error.status == DPT_OK)
        dpt_pool_run(j->s->pool, j->rows, row_item, j);
    for (int64_t at = 0; j->grad && at < j->a->v; at += BLOCK)
        gradient_block(j, at);
}

void dpt_cpu_head_loss(struct dpt_stream *stream, const struct dpt_head_loss *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.s = s, .a = a, .dw = a->dw, .grad = s->preparing || a->dx || a->dw};
    struct dpt_workspace w;
    if (!dpt_cpu_begin(s, a->dtype, "head"))
        return;
    /* With one chunk its contribution is added to dw at once. With more, their sum must exist
     * before it meets the old dw, or the bits would not be those of adding a stored contribution:
     * it gathers in a workspace of dw's size. */
    bool apart = a->accumulate && a->n > CHUNK && (a->dw || s->preparing);
    size_t logits = dpt_round64((size_t)(dpt_min64(CHUNK, a->n) * a->v) * sizeof(float));
    size_t apart_bytes = apart ? (size_t)(a->v * a->c) * sizeof(float) : 0;
    if (!dpt_cpu_workspace(s, DPT_WORKSPACE_OP, logits + apart_bytes, 0, &w) && !s->preparing)
        return;
    job.logits = (float *)(void *)w.shared;
    if (apart)
        job.dw = (float *)(void *)(w.shared + logits);
    job.add_dw = a->accumulate && !apart;
    for (job.row = 0; job.row < a->n; job.row += CHUNK) {
        job.rows = dpt_min64(CHUNK, a->n - job.row);
        chunk(&job);
    }
    if (apart)
        dpt_cpu_add(stream, a->v * a->c, a->dw, job.dw, a->dw);
}
