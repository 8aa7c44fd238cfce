/* Rotary embeddings: the table of angles, and the rotation of rows. Elements meet their other half
 * alone, so rows may be cut anywhere. */
#include "kernels/rope.h"

#include "kernels/cpu/stream.h"

enum {
    TABLE_CHUNK = 1 << 10, /* angles */
    CHUNK = 1 << 15        /* elements that are rotated */
};

/* Rows of `width` elements that make a chunk of about `chunk`. */
static int64_t rows_of(int64_t chunk, int64_t width)
{
    return width < chunk ? chunk / width : 1;
}

static void table_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_rope_table *a = ctx;
    const int64_t rows = rows_of(TABLE_CHUNK, a->half);
    (void)thread;
    for (int64_t r = item * rows; r < dpt_min64(a->t, (item + 1) * rows); r++)
        for (int64_t i = 0; i < a->half; i++)
            dpt_rope_cos_sin((float)(a->first + r) * a->inv_freq[i], &a->cos[r * a->half + i],
                             &a->sin[r * a->half + i]);
}

void dpt_cpu_rope_table(struct dpt_stream *stream, const struct dpt_rope_table *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct dpt_rope_table table = *a;
    DPT_ASSERT(a->half > 0 && a->half <= DPT_ROPE_HALF_MAX);
    if (dpt_cpu_begin(s, DPT_F32, "rope table") && !s->preparing)
        dpt_pool_run(s->pool, dpt_ceil_div(a->t, rows_of(TABLE_CHUNK, a->half)), table_item,
                     &table);
}

struct rope_job {
    const struct dpt_elem_kernels *kernels;
    const struct dpt_rope *a;
};

static void rope_item(void *ctx, int64_t item, int thread)
{
    const struct rope_job *j = ctx;
    const struct dpt_rope *a = j->a;
    const int64_t rows = rows_of(CHUNK, a->heads * a->head_size), first = item * rows;
    (void)thread;
    j->kernels->rope(&(struct dpt_rope_rows){.rows = dpt_min64(rows, a->n - first),
                                             .heads = a->heads,
                                             .half = a->head_size / 2,
                                             .stride = a->stride,
                                             .t = a->t,
                                             .first = first,
                                             .inverse = a->inverse,
                                             .cos = a->cos,
                                             .sin = a->sin,
                                             .x = dpt_at_out(a->x, a->dtype, first * a->stride)});
}

void dpt_cpu_rope(struct dpt_stream *stream, const struct dpt_rope *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct rope_job job = {.a = a};
    DPT_ASSERT(a->t > 0 && a->heads > 0 && a->head_size % 2 == 0 &&
               a->heads * a->head_size <= a->stride);
    if (!dpt_cpu_begin(s, a->dtype, "rope") || s->preparing)
        return;
    job.kernels = s->kernels->of[a->dtype];
    dpt_pool_run(s->pool, dpt_ceil_div(a->n, rows_of(CHUNK, a->heads * a->head_size)), rope_item,
                 &job);
}
