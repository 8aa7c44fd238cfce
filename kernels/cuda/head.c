/* The head fused with softmax cross-entropy. The op processes rows in chunks, so the logits exist
 * only once and only for one chunk. Each chunk adds its gradient of the weights to the gradient of
 * the chunks before it. If the op accumulates over several chunks, it first sums them separately
 * and then adds the sum to the old value, which gives the bits of one stored contribution.
 *
 * The products' vocabulary is a multiple of LOGITS_UNIT. With an odd number of rows of the weights,
 * such as GPT-2's 50,257, cuBLASLt uses kernels that read one element at a time, and on an H200 the
 * head took 59 % of a step. Therefore the weights are copied to the workspace with rows of zeros
 * behind them, the padding of dlogits is zero, and the gradient of the padded weights is summed in
 * the workspace.
 *
 * A bias is first written into the rows of logits. The product is then added to them. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"

enum {
    CHUNK_ROWS_MAX = 4096,
    CHUNK_LOGITS_MAX = 1 << 28, /* 1 GiB of f32 */
    CHUNK_ROWS_UNIT = 64,
    LOGITS_UNIT = 64 /* the unit of the products' vocabulary */
};

static int64_t head_round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The rows of a chunk, which the shape alone decides. */
static int64_t chunk_rows(int64_t v)
{
    int64_t rows =
        CHUNK_LOGITS_MAX / head_round_up(v, LOGITS_UNIT) / CHUNK_ROWS_UNIT * CHUNK_ROWS_UNIT;
    rows = rows > CHUNK_ROWS_UNIT ? rows : CHUNK_ROWS_UNIT;
    return rows < CHUNK_ROWS_MAX ? rows : CHUNK_ROWS_MAX;
}

struct job {
    struct dpt_cuda_stream *s;
    const struct dpt_head_loss *a;
    const void *w;
    int64_t row, rows;      /* the chunk */
    int64_t ld, dlogits_ld; /* row lengths; ld is also the products' vocabulary */
    /* The logits. Their gradients, of the operands' dtype, replace them row by row. */
    float *logits;
    /* (ld, C) in the workspace, or the op's (V, C): the sum over the chunks. */
    float *dw;
    bool add_dw; /* the first chunk also adds to it */
    bool grad;
    /* Only with a bias. bias: in f32, as long as a row of logits. dbias: the chunks' sum of its
     * gradient, as long as a row of dlogits. sums: the memory that this sum needs. */
    float *bias, *dbias, *sums;
};

/* Whether our kernels are posted. False while the stream prepares and after an error. */
static bool posts_head(const struct job *j)
{
    return !j->s->base.preparing && j->s->base.error.status == DPT_OK;
}

/* Widens the bias to f32 and sets its padding to zero. */
static void widen_bias(const struct job *j)
{
    const struct dpt_head_loss *a = j->a;
    if (!a->bias)
        return;
    DPT_CUDA_LAUNCH(j->s, "head", fill, j->ld, 0.0f, j->bias);
    DPT_CUDA_LAUNCH(j->s, "head", widen, a->v, a->dtype, a->bias, j->bias);
}

/* Adds the chunk's gradient of the bias. Columns from V on are padding; their sums are never
 * read. */
static void bias_gradient(const struct job *j)
{
    const struct dpt_launch_column_sums sums = {.rows = j->rows,
                                                .cols = j->dlogits_ld,
                                                .dtype = j->a->dtype,
                                                .x = j->logits,
                                                .accumulate = j->row > 0,
                                                .work = j->sums,
                                                .ret = j->dbias};
    if (j->a->dbias)
        DPT_CUDA_LAUNCH(j->s, "head", column_sums, &sums);
}

/* to (n) = or += the sum that was made in the workspace. */
static void give_gathered(const struct job *j, int64_t n, const float *gathered, float *to)
{
    if (!posts_head(j))
        return;
    if (j->a->accumulate)
        dpt_cuda_add(&j->s->base, n, to, gathered, to);
    else
        dpt_cuda_copy(&j->s->base, (size_t)n * sizeof(float), gathered, to);
}

static void chunk_gradients(const struct job *j, const void *x)
{
    const struct dpt_head_loss *a = j->a;
    const bool preparing = j->s->base.preparing;
    const struct dpt_cuda_gemm dx = {.of.m = j->rows,
                                     .of.n = a->c,
                                     .of.k = j->ld,
                                     .of.dtype = a->dtype,
                                     .a = j->logits,
                                     .of.lda = j->dlogits_ld,
                                     .b = j->w,
                                     .of.ldb = a->c,
                                     .of.out = a->dtype,
                                     .c = dpt_at_out(a->dx, a->dtype, j->row * a->c),
                                     .of.ldc = a->c};
    const struct dpt_cuda_gemm dw = {.of.m = j->ld,
                                     .of.n = a->c,
                                     .of.k = j->rows,
                                     .of.dtype = a->dtype,
                                     .a = j->logits,
                                     .of.lda = j->dlogits_ld,
                                     .of.a_transposed = true,
                                     .b = x,
                                     .of.ldb = a->c,
                                     .of.out = DPT_F32,
                                     .c = j->dw,
                                     .of.ldc = a->c,
                                     .accumulate = j->add_dw || j->row > 0};
    if (a->dx || preparing)
        dpt_cuda_gemm(j->s, &dx);
    if (a->dw || preparing)
        dpt_cuda_gemm(j->s, &dw);
}

static void run_chunk(const struct job *j)
{
    const struct dpt_head_loss *a = j->a;
    const void *x = dpt_at(a->x, a->dtype, j->row * a->c);
    const struct dpt_cuda_gemm logits = {.of.m = j->rows,
                                         .of.n = j->ld,
                                         .of.k = a->c,
                                         .of.dtype = a->dtype,
                                         .a = x,
                                         .of.lda = a->c,
                                         .b = j->w,
                                         .of.ldb = a->c,
                                         .of.b_transposed = true,
                                         .of.out = DPT_F32,
                                         .c = j->logits,
                                         .of.ldc = j->ld,
                                         .accumulate = a->bias != NULL};
    if (a->bias)
        DPT_CUDA_LAUNCH(j->s, "head", repeat_row, DPT_F32, j->rows, j->ld, j->bias, j->logits);
    dpt_cuda_gemm(j->s, &logits);
    if (posts_head(j)) {
        const struct dpt_cuda_device *device = dpt_cuda_device_of(j->s);
        const struct dpt_launch_softmax softmax = {.multiprocessors = device->multiprocessors,
                                                   .shared_bytes = device->shared_bytes,
                                                   .rows = j->rows,
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
        chunk_gradients(j, x);
    bias_gradient(j);
}

/* Copies the weights to `to` and adds rows of zeros behind them. The cleared part begins at a whole
 * float. */
static void pad_weights(struct job *j, char *to)
{
    const struct dpt_head_loss *a = j->a;
    const size_t row = (size_t)a->c * dpt_dtype_bytes(a->dtype), bytes = (size_t)a->v * row;
    const size_t clear_from = bytes / sizeof(float) * sizeof(float);
    const int64_t floats = (int64_t)(((size_t)j->ld * row - clear_from) / sizeof(float));
    if (!posts_head(j))
        return;
    DPT_CUDA_LAUNCH(j->s, "head", fill, floats, 0.0f, (float *)(void *)(to + clear_from));
    dpt_cuda_copy(&j->s->base, bytes, a->w, to);
    j->w = to;
}

/* Lays out the workspace; with `apart` it also has dw. False when memory is short. */
static bool head_lay_out(struct job *j, bool apart)
{
    const struct dpt_head_loss *a = j->a;
    const int64_t rows = chunk_rows(a->v) < a->n ? chunk_rows(a->v) : a->n;
    const size_t logits = (size_t)(rows * j->ld) * sizeof(float);
    const size_t w = j->ld == a->v ? 0 : (size_t)(j->ld * a->c) * dpt_dtype_bytes(a->dtype);
    const size_t dw = apart ? (size_t)(j->ld * a->c) * sizeof(float) : 0;
    const int64_t sums = a->bias ? dpt_launch_column_sums_floats(rows, j->dlogits_ld) : 0;
    const size_t bias = a->bias ? (size_t)(j->ld + j->dlogits_ld + sums) * sizeof(float) : 0;
    void *work = NULL;
    if (!dpt_cuda_workspace(j->s, logits + w + dw + bias, &work))
        return j->s->base.preparing && j->s->base.error.status == DPT_OK;
    char *at = work;
    j->logits = work;
    if (w > 0)
        pad_weights(j, at + logits);
    if (apart)
        j->dw = (float *)(void *)(at + logits + w);
    if (a->bias) {
        j->bias = (float *)(void *)(at + logits + w + dw);
        j->dbias = j->bias + j->ld;
        j->sums = j->dbias + j->dlogits_ld;
    }
    return true;
}

void dpt_cuda_head_loss(struct dpt_stream *stream, const struct dpt_head_loss *a)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    struct job job = {.s = s,
                      .a = a,
                      .w = a->w,
                      .ld = head_round_up(a->v, LOGITS_UNIT),
                      .dw = a->dw,
                      .grad = s->base.preparing || a->dx || a->dw};
    DPT_ASSERT(!a->packed && (s->base.preparing || !a->dbias || (a->dw && a->bias)));
    if (!dpt_cuda_begin(s, a->dtype, "head") || a->n == 0)
        return;
    job.dlogits_ld = job.ld * (int64_t)(sizeof(float) / dpt_dtype_bytes(a->dtype));
    const int64_t rows = chunk_rows(a->v);
    const bool padded = job.ld != a->v;
    const bool chunks_add = a->n > rows && (s->base.preparing || a->accumulate);
    const bool apart = (s->base.preparing || a->dw) && (padded || chunks_add);
    if (!head_lay_out(&job, apart))
        return;
    job.add_dw = a->accumulate && !apart;
    widen_bias(&job);
    for (job.row = 0; job.row < a->n; job.row += rows) {
        job.rows = a->n - job.row < rows ? a->n - job.row : rows;
        run_chunk(&job);
    }
    if (apart)
        give_gathered(&job, a->v * a->c, job.dw, a->dw);
    if (a->dbias)
        give_gathered(&job, a->v, job.dbias, a->dbias);
}
