/* Head fused with softmax cross-entropy: rows go in chunks, so that the logits exist
 * once and only for one chunk. A chunk's gradient of the weights is added to those of the chunks
 * before it; where the op accumulates over several chunks they gather apart, so that what is added
 * to the old value has the bits it would have been stored with. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

enum {
    CHUNK_ROWS_MAX = 4096,
    CHUNK_LOGITS_MAX = 1 << 28, /* 1 GiB of f32 */
    CHUNK_ROWS_UNIT = 64,
    LOGITS_UNIT = 64 /* logits of a row are padded to it, so that products read whole vectors */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* By shape alone. */
static int64_t chunk_rows(int64_t v)
{
    int64_t rows = CHUNK_LOGITS_MAX / round_up(v, LOGITS_UNIT) / CHUNK_ROWS_UNIT * CHUNK_ROWS_UNIT;
    rows = rows > CHUNK_ROWS_UNIT ? rows : CHUNK_ROWS_UNIT;
    return rows < CHUNK_ROWS_MAX ? rows : CHUNK_ROWS_MAX;
}

struct job {
    struct dpt_cuda_stream *s;
    const struct dpt_head_loss *a;
    const void *w;
    int64_t row, rows; /* the chunk */
    int64_t ld, dlogits_ld;
    float *logits; /* and, row by row in their place, of the operands' dtype, their gradients */
    float *dw;     /* (V, C): where the chunks' contributions gather */
    bool add_dw;   /* the first chunk adds to it, too */
    bool grad;
};

static void gradients(const struct job *j, const void *x)
{
    const struct dpt_head_loss *a = j->a;
    const bool preparing = j->s->preparing;
    const struct dpt_cuda_gemm dx = {.m = j->rows,
                                     .n = a->c,
                                     .k = a->v,
                                     .dtype = a->dtype,
                                     .a = j->logits,
                                     .lda = j->dlogits_ld,
                                     .b = j->w,
                                     .ldb = a->c,
                                     .out = a->dtype,
                                     .c = dpt_cuda_at_out(a->dx, a->dtype, j->row * a->c),
                                     .ldc = a->c};
    const struct dpt_cuda_gemm dw = {.m = a->v,
                                     .n = a->c,
                                     .k = j->rows,
                                     .dtype = a->dtype,
                                     .a = j->logits,
                                     .lda = j->dlogits_ld,
                                     .a_transposed = true,
                                     .b = x,
                                     .ldb = a->c,
                                     .out = DPT_F32,
                                     .c = j->dw,
                                     .ldc = a->c,
                                     .accumulate = j->add_dw || j->row > 0};
    if (a->dx || preparing)
        dpt_cuda_gemm(j->s, &dx);
    if (a->dw || preparing)
        dpt_cuda_gemm(j->s, &dw);
}

static void chunk(const struct job *j)
{
    const struct dpt_head_loss *a = j->a;
    const void *x = dpt_cuda_at(a->x, a->dtype, j->row * a->c);
    const struct dpt_cuda_gemm logits = {.m = j->rows,
                                         .n = a->v,
                                         .k = a->c,
                                         .dtype = a->dtype,
                                         .a = x,
                                         .lda = a->c,
                                         .b = j->w,
                                         .ldb = a->c,
                                         .b_transposed = true,
                                         .out = DPT_F32,
                                         .c = j->logits,
                                         .ldc = j->ld};
    dpt_cuda_gemm(j->s, &logits);
    if (!j->s->preparing && j->s->error.status == DPT_OK) {
        const struct dpt_launch_softmax softmax = {.rows = j->rows,
                                                   .v = a->v,
                                                   .ld = j->ld,
                                                   .dtype = a->dtype,
                                                   .logits = j->logits,
                                                   .targets = a->targets + j->row,
                                                   .loss = a->loss + j->row,
                                                   .right = a->right ? a->right + j->row : NULL,
                                                   .dloss = a->dloss,
                                                   .dlogits = j->grad ? j->logits : NULL,
                                                   .dlogits_ld = j->dlogits_ld};
        (void)dpt_cuda_posted(j->s, dpt_launch_softmax_loss(j->s->queue, &softmax), "head");
    }
    if (j->grad)
        gradients(j, x);
}

/* False when memory is short. */
static bool lay_out(struct job *j, bool apart)
{
    const struct dpt_head_loss *a = j->a;
    const int64_t rows = chunk_rows(a->v) < a->n ? chunk_rows(a->v) : a->n;
    const size_t logits = (size_t)(rows * j->ld) * sizeof(float);
    const size_t dw = apart ? (size_t)(a->v * a->c) * sizeof(float) : 0;
    void *work = NULL;
    if (!dpt_cuda_workspace(j->s, logits + dw, &work))
        return j->s->preparing && j->s->error.status == DPT_OK;
    j->logits = work;
    if (apart)
        j->dw = (float *)(void *)((char *)work + logits);
    return true;
}

void dpt_cuda_head_loss(struct dpt_stream *stream, const struct dpt_head_loss *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    struct job job = {.s = s,
                      .a = a,
                      .w = a->packed ? a->packed : a->w,
                      .ld = round_up(a->v, LOGITS_UNIT),
                      .dw = a->dw,
                      .grad = s->preparing || a->dx || a->dw};
    if (!dpt_cuda_begin(s, a->dtype, "head") || a->n == 0)
        return;
    job.dlogits_ld = job.ld * (int64_t)(sizeof(float) / dpt_dtype_bytes(a->dtype));
    const int64_t rows = chunk_rows(a->v);
    const bool apart = a->n > rows && (s->preparing || (a->accumulate && a->dw));
    if (!lay_out(&job, apart))
        return;
    job.add_dw = a->accumulate && !apart;
    for (job.row = 0; job.row < a->n; job.row += rows) {
        job.rows = a->n - job.row < rows ? a->n - job.row : rows;
        chunk(&job);
    }
    if (apart && !s->preparing)
        dpt_cuda_add(stream, a->v * a->c, a->dw, job.dw, a->dw);
}
