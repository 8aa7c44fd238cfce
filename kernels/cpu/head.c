/* The head fused with softmax cross-entropy.
 *
 * The op processes rows in chunks, so the logits exist only once and only for one chunk. The logits
 * of a chunk are stored in blocks of BLOCK columns of the vocabulary, each block dense. dx is then
 * a sum of one product per block with a short k, and every operand of the three products is small
 * enough to pack.
 *
 * With 16-bit elements the logits are still f32. Their gradient is rounded for the products and
 * stored in separate blocks. dx is summed in f32 before it is rounded.
 *
 * The packed form of the weights has two parts for each block: the form for the logits, then the
 * form for dx. */
#include "base/exact_math.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu_sizes.h"

enum { BLOCK = DPT_HEAD_COLUMNS };
/* Columns of the bias's gradient in one item. BLOCK is a multiple of it. */
enum { COLUMNS = 128 };

static int64_t chunk_rows(enum dpt_dtype dtype)
{
    return dtype == DPT_F32 ? DPT_HEAD_ROWS_F32 : DPT_HEAD_ROWS_HALF;
}

/* A block of the weights: `width` rows of w (V, C) from row `at`. */
struct block {
    enum dpt_dtype dtype;
    int64_t c, width, at;
    const void *w;
};

/* The block's part of the product logits = x w^T, or with `back` of dx = dlogits w. The caller sets
 * rows, x and results. */
static struct dpt_gemm block_product(const struct block *b, bool back)
{
    return (struct dpt_gemm){.n = back ? b->c : b->width,
                             .k = back ? b->width : b->c,
                             .dtype = b->dtype,
                             .a_row = back ? b->width : b->c,
                             .a_col = 1,
                             .b = dpt_at(b->w, b->dtype, b->at * b->c),
                             .b_row = back ? b->c : 1,
                             .b_col = back ? 1 : b->c};
}

/* Bytes of one block's packed form: of both parts, and of the first part alone. */
struct packed_block {
    size_t bytes, logits_bytes;
};

static struct packed_block packed_block(struct dpt_cpu_stream *s, enum dpt_dtype dtype, int64_t c,
                                        int64_t width)
{
    const struct block b = {dtype, c, width, 0, NULL};
    const struct dpt_gemm logits = block_product(&b, false), dx = block_product(&b, true);
    const size_t first = dpt_cpu_gemm_packed_bytes(s, &logits);
    return (struct packed_block){first + dpt_cpu_gemm_packed_bytes(s, &dx), first};
}

size_t dpt_cpu_head_packed_bytes(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    const int64_t last = a->rows % BLOCK;
    size_t bytes = 0;
    if (a->rows >= BLOCK)
        bytes = (size_t)(a->rows / BLOCK) * packed_block(s, a->dtype, a->cols, BLOCK).bytes;
    return last ? bytes + packed_block(s, a->dtype, a->cols, last).bytes : bytes;
}

void dpt_cpu_head_pack(struct dpt_cpu_stream *s, const struct dpt_pack *a)
{
    char *to = a->packed;
    for (int64_t at = 0; at < a->rows; at += BLOCK) {
        const int64_t width = dpt_min64(BLOCK, a->rows - at);
        const struct packed_block packed = packed_block(s, a->dtype, a->cols, width);
        const struct block b = {a->dtype, a->cols, width, at, a->w};
        const struct dpt_gemm logits = block_product(&b, false), dx = block_product(&b, true);
        dpt_cpu_gemm_pack(s, &logits, to);
        dpt_cpu_gemm_pack(s, &dx, to ? to + packed.logits_bytes : NULL);
        to = to ? to + packed.bytes : NULL;
    }
}

struct job {
    struct dpt_cpu_stream *s;
    const struct dpt_head_loss *a;
    int64_t row, rows; /* the chunk */
    float *logits;     /* blocks of (rows, width of the block) */
    void *dlogits;     /* blocks of the same shape; with f32 the memory of the logits */
    float *dx;         /* (rows, c) of the chunk; with f32 rows of a->dx */
    const float *bias; /* (v) in f32, or NULL */
    float *dw, *dbias; /* (v, c), (v) or NULL: sums over the chunks */
    bool add_dw;       /* the first chunk also adds to them */
    bool grad;
    struct packed_block packed; /* bytes of a whole block, if w is packed */
};

static int64_t block_width(const struct job *j, int64_t at)
{
    return dpt_min64(BLOCK, j->a->v - at);
}

static float *block_logits(const struct job *j, int64_t at)
{
    return j->logits + at * j->rows;
}

static void *block_dlogits(const struct job *j, int64_t at)
{
    return dpt_at_out(j->dlogits, j->a->dtype, at * j->rows);
}

/* Where the packed form of the block from row `at` begins; NULL when w is not packed. */
static const char *block_packed(const struct job *j, int64_t at)
{
    return j->a->packed ? (const char *)j->a->packed + (size_t)(at / BLOCK) * j->packed.bytes
                        : NULL;
}

static void logits_block(const struct job *j, int64_t at)
{
    const struct dpt_head_loss *a = j->a;
    const int64_t width = block_width(j, at);
    struct dpt_gemm g = block_product(&(struct block){a->dtype, a->c, width, at, a->w}, false);
    g.m = j->rows;
    g.a = dpt_at(a->x, a->dtype, j->row * a->c);
    g.b_packed = block_packed(j, at);
    g.store = (struct dpt_gemm_store){
        .c = block_logits(j, at), .ldc = width, .bias = j->bias ? j->bias + at : NULL};
    dpt_cpu_gemm(j->s, &g);
}

static void gradient_block(const struct job *j, int64_t at)
{
    const struct dpt_head_loss *a = j->a;
    int64_t width = block_width(j, at);
    const void *dlogits = block_dlogits(j, at);
    struct dpt_gemm dx = block_product(&(struct block){a->dtype, a->c, width, at, a->w}, true);
    dx.m = j->rows;
    dx.a = dlogits;
    if (a->packed)
        dx.b_packed = block_packed(j, at) + packed_block(j->s, a->dtype, a->c, width).logits_bytes;
    dx.store = (struct dpt_gemm_store){.c = j->dx, .ldc = a->c, .accumulate = at > 0};
    const struct dpt_gemm dw = {.m = width,
                                .n = a->c,
                                .k = j->rows,
                                .dtype = a->dtype,
                                .a = dlogits,
                                .a_row = 1,
                                .a_col = width,
                                .b = dpt_at(a->x, a->dtype, j->row * a->c),
                                .b_row = a->c,
                                .b_col = 1,
                                .store = {.c = dpt_at_out(j->dw, DPT_F32, at * a->c),
                                          .ldc = a->c,
                                          .accumulate = j->add_dw || j->row > 0,
                                          .stream = true}};
    if (a->dx || j->s->base.preparing)
        dpt_cpu_gemm(j->s, &dx);
    if (j->dw || j->s->base.preparing)
        dpt_cpu_gemm(j->s, &dw);
}

/* ret (n) = the gradient of the n logits at `row`. `target` is the target's index; it is outside of
 * [0, n) if another block has the target. */
static void grad_part(const struct job *j, int64_t n, const float *row, float lse, int64_t target,
                      void *ret)
{
    const enum dpt_dtype dtype = j->a->dtype;
    const struct dpt_cpu_kernels *k = j->s->kernels;
    const bool has_target = target >= 0 && target < n;
    float at_target = 0.0f;
    if (has_target)
        k->of[DPT_F32]->softmax_grad(1, row + target, lse, j->a->dloss, &at_target);
    k->of[dtype]->softmax_grad(n, row, lse, j->a->dloss, ret);
    at_target -= j->a->dloss;
    if (has_target)
        k->of[dtype]->narrow(1, &at_target, dpt_at_out(ret, dtype, target));
}

/* Whether the target is the first of the row's greatest logits. */
static bool predicts_target(const struct job *j, int64_t r, int64_t target, float at_target)
{
    bool right = true;
    for (int64_t at = 0; at < j->a->v; at += BLOCK) {
        const int64_t width = block_width(j, at);
        const float *row = block_logits(j, at) + r * width;
        for (int64_t i = 0; i < width; i++)
            right = right && (at + i < target ? row[i] < at_target : row[i] <= at_target);
    }
    return right;
}

/* Item: one row. Computes its loss and the gradient of its logits. */
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
    const float lse = max + (float)dpt_natural_log((double)sum);
    a->loss[j->row + r] = lse - picked;
    if (a->right)
        a->right[j->row + r] = predicts_target(j, r, target, picked) ? 1.0f : 0.0f;
    if (!j->grad)
        return;
    for (int64_t at = 0; at < a->v; at += BLOCK) {
        int64_t width = block_width(j, at);
        grad_part(j, width, block_logits(j, at) + r * width, lse, target - at,
                  dpt_at_out(block_dlogits(j, at), a->dtype, r * width));
    }
}

static void dx_item(void *ctx, int64_t r, int thread)
{
    const struct job *j = ctx;
    const struct dpt_head_loss *a = j->a;
    (void)thread;
    j->s->kernels->of[a->dtype]->narrow(a->c, j->dx + r * a->c,
                                        dpt_at_out(a->dx, a->dtype, (j->row + r) * a->c));
}

/* Item: a few columns of the bias's gradient. */
static void bias_item(void *ctx, int64_t item, int thread)
{
    const struct job *j = ctx;
    const enum dpt_dtype dtype = j->a->dtype;
    const int64_t first = item * COLUMNS, at = first / BLOCK * BLOCK, width = block_width(j, at);
    (void)thread;
    j->s->kernels->of[dtype]->column_sums(j->rows, dpt_min64(COLUMNS, at + width - first),
                                          dpt_at(block_dlogits(j, at), dtype, first - at), width,
                                          j->add_dw || j->row > 0, j->dbias + first);
}

/* Whether the steps between the products are to run. */
static bool head_goes_on(const struct job *j)
{
    return !j->s->base.preparing && j->s->base.error.status == DPT_OK;
}

static void run_chunk(struct job *j)
{
    for (int64_t at = 0; at < j->a->v; at += BLOCK)
        logits_block(j, at);
    if (head_goes_on(j))
        dpt_pool_run(j->s->pool, j->rows, row_item, j);
    for (int64_t at = 0; j->grad && at < j->a->v; at += BLOCK)
        gradient_block(j, at);
    if (j->dbias && head_goes_on(j))
        dpt_pool_run(j->s->pool, dpt_ceil_div(j->a->v, COLUMNS), bias_item, j);
    if (j->a->dx && j->a->dtype != DPT_F32 && head_goes_on(j))
        dpt_pool_run(j->s->pool, j->rows, dx_item, j);
}

/* Gives the job its memory: the logits of a chunk; with 16-bit elements also their gradient, dx of
 * a chunk and the bias in f32; with `apart` also a separate dw and dbias. False when memory is
 * short. */
static bool head_lay_out(struct job *j, bool apart)
{
    const struct dpt_head_loss *a = j->a;
    const bool half = a->dtype != DPT_F32;
    const int64_t rows = dpt_min64(chunk_rows(a->dtype), a->n);
    const size_t logits = dpt_round64((size_t)(rows * a->v) * sizeof(float));
    const size_t dlogits =
        half ? dpt_round64((size_t)(rows * a->v) * dpt_dtype_bytes(a->dtype)) : 0;
    const size_t dx = half ? dpt_round64((size_t)(rows * a->c) * sizeof(float)) : 0;
    const size_t bias = half && a->bias ? dpt_round64((size_t)a->v * sizeof(float)) : 0;
    const size_t dw = apart ? dpt_round64((size_t)(a->v * a->c) * sizeof(float)) : 0;
    const size_t dbias = apart && a->dbias ? (size_t)a->v * sizeof(float) : 0;
    const size_t shared = logits + dlogits + dx + bias + dw + dbias;
    struct dpt_workspace w;
    if (!dpt_cpu_workspace(j->s, DPT_WORKSPACE_OP, shared, 0, &w) && !j->s->base.preparing)
        return false;
    j->logits = (float *)(void *)w.shared;
    j->dlogits = half ? w.shared + logits : w.shared;
    j->dx = half ? (float *)(void *)(w.shared + logits + dlogits) : NULL;
    if (bias > 0 && head_goes_on(j)) {
        float *wide = (float *)(void *)(w.shared + logits + dlogits + dx);
        j->s->kernels->of[a->dtype]->widen(a->v, a->bias, wide);
        j->bias = wide;
    }
    if (apart)
        j->dw = (float *)(void *)(w.shared + logits + dlogits + dx + bias);
    if (dbias > 0)
        j->dbias = (float *)(void *)(w.shared + logits + dlogits + dx + bias + dw);
    return true;
}

void dpt_cpu_head_loss(struct dpt_stream *stream, const struct dpt_head_loss *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct job job = {.s = s,
                      .a = a,
                      .bias = a->dtype == DPT_F32 ? a->bias : NULL,
                      .dw = a->dw,
                      .dbias = a->dbias,
                      .grad = s->base.preparing || a->dx || a->dw};
    DPT_ASSERT(s->base.preparing || !a->dbias || (a->dw && a->bias));
    if (!dpt_stream_begin(&s->base, a->dtype, "head"))
        return;
    const int64_t rows = chunk_rows(a->dtype);
    /* A single chunk adds its contribution to dw directly. Several chunks must first be summed and
     * then added to the old dw, to give the bits of one stored contribution. Their sum is kept in a
     * workspace of dw's size. */
    bool apart = a->accumulate && a->n > rows && a->dw;
    if (!head_lay_out(&job, apart))
        return;
    if (a->packed && a->v > BLOCK)
        job.packed = packed_block(s, a->dtype, a->c, BLOCK);
    job.add_dw = a->accumulate && !apart;
    for (job.row = 0; job.row < a->n; job.row += rows) {
        job.rows = dpt_min64(rows, a->n - job.row);
        if (a->dtype == DPT_F32)
            job.dx = dpt_at_out(a->dx, DPT_F32, job.row * a->c);
        run_chunk(&job);
    }
    if (apart)
        dpt_cpu_add(stream, a->v * a->c, a->dw, job.dw, a->dw);
    if (apart && a->dbias)
        dpt_cpu_add(stream, a->v, a->dbias, job.dbias, a->dbias);
}
