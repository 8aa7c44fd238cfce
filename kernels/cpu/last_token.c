/* Forward copies the row of each sample's last token. Backward writes it back among rows of
 * zeros. */
#include "kernels/cpu/stream.h"

#include <string.h>

enum { ROWS = 64 /* rows per item of backward */ };

struct last_token_job {
    const struct dpt_last_token *a;
    size_t row_bytes;
};

static int64_t last_row(const struct dpt_last_token *a, int64_t sample)
{
    return sample * a->t + a->lengths[sample] - 1;
}

static const char *row_in(const struct last_token_job *j, int64_t row)
{
    return (const char *)j->a->x + (size_t)row * j->row_bytes;
}

static char *row_out(const struct last_token_job *j, int64_t row)
{
    return (char *)j->a->y + (size_t)row * j->row_bytes;
}

static void last_token_forward_item(void *ctx, int64_t sample, int thread)
{
    const struct last_token_job *j = ctx;
    (void)thread;
    memcpy(row_out(j, sample), row_in(j, last_row(j->a, sample)), j->row_bytes);
}

static void last_token_backward_item(void *ctx, int64_t item, int thread)
{
    const struct last_token_job *j = ctx;
    const int64_t end = dpt_min64((item + 1) * ROWS, j->a->b * j->a->t);
    (void)thread;
    for (int64_t row = item * ROWS; row < end; row++) {
        const int64_t sample = row / j->a->t;
        if (row == last_row(j->a, sample))
            memcpy(row_out(j, row), row_in(j, sample), j->row_bytes);
        else
            memset(row_out(j, row), 0, j->row_bytes); /* zero in every dtype */
    }
}

static void post_rows(struct dpt_stream *stream, const struct dpt_last_token *a, const char *op,
                      dpt_pool_fn *item, int64_t items)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct last_token_job job = {a, (size_t)a->c * dpt_dtype_bytes(a->dtype)};
    if (dpt_cpu_posts(s, a->dtype, op))
        dpt_pool_run(s->pool, items, item, &job);
}

void dpt_cpu_last_token_forward(struct dpt_stream *stream, const struct dpt_last_token *a)
{
    post_rows(stream, a, "last token", last_token_forward_item, a->b);
}

void dpt_cpu_last_token_backward(struct dpt_stream *stream, const struct dpt_last_token *a)
{
    post_rows(stream, a, "last token backward", last_token_backward_item,
              dpt_ceil_div(a->b * a->t, ROWS));
}
