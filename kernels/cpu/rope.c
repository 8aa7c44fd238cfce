/* Rotary embeddings: the table of angles, and the rotation of rows. An element meets only one
 * element of the other half of its head, so work may be cut between any two rows. */
#include "kernels/rope.h"

#include "kernels/cpu/stream.h"

enum {
    TABLE_CHUNK = 1 << 10, /* angles */
    CHUNK = 1 << 15        /* elements */
};

/* The rows of `width` elements in a chunk of about `chunk` elements. */
static int64_t rows_of(int64_t chunk, int64_t width)
{
    return width < chunk ? chunk / width : 1;
}

static void table_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_rope_table *a = op->a;
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
    DPT_ASSERT(a->half > 0 && a->half <= DPT_ROPE_HALF_MAX);
    if (dpt_cpu_posts(s, DPT_F32, "rope table"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->t, rows_of(TABLE_CHUNK, a->half)), table_item, a);
}

static void rope_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_rope *a = op->a;
    const int64_t rows = rows_of(CHUNK, a->heads * a->head_size), first = item * rows;
    (void)thread;
    op->kernels->of[a->dtype]->rope(a, first, dpt_min64(a->n, first + rows));
}

void dpt_cpu_rope(struct dpt_stream *stream, const struct dpt_rope *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    DPT_ASSERT(a->t > 0 && a->heads > 0 && a->head_size % 2 == 0 &&
               a->heads * a->head_size <= a->stride);
    if (dpt_cpu_posts(s, a->dtype, "rope"))
        dpt_cpu_run_op(s, dpt_ceil_div(a->n, rows_of(CHUNK, a->heads * a->head_size)), rope_item,
                       a);
}
