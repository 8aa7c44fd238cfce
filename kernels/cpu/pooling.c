/* Max pooling over windows, average pooling over an image, and their gradients. One thread computes
 * each pixel of a result. The gradient of a pixel is a sum over windows in their order. */
#include "kernels/cpu/stream.h"

#include <string.h>

/* --- max pooling: an item is a row of pixels --- */

/* Item: a row of windows. */
static void max_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_maxpool *a = op->a;
    const struct dpt_windows *of = &a->of;
    const int64_t out_h = dpt_windows_along(of->h, of->stride),
                  out_w = dpt_windows_along(of->w, of->stride);
    const int64_t n = item / out_h, margin = (of->kernel - 1) / 2;
    const int64_t top = item % out_h * of->stride - margin;
    struct dpt_maxpool_pixel pixel = {.c = a->c};
    (void)thread;
    for (int64_t column = 0; column < out_w; column++) {
        const int64_t left = column * of->stride - margin, to = (item * out_w + column) * a->c;
        pixel.count = 0;
        for (int64_t tap = 0; tap < of->kernel * of->kernel; tap++) {
            const int64_t y = top + tap / of->kernel, x = left + tap % of->kernel;
            if (y < 0 || y >= of->h || x < 0 || x >= of->w)
                continue;
            pixel.x[pixel.count] = dpt_at(a->x, a->dtype, ((n * of->h + y) * of->w + x) * a->c);
            pixel.number[pixel.count++] = (int)tap;
        }
        pixel.y = dpt_at_out(a->y, a->dtype, to);
        pixel.taken = a->taken + to;
        op->kernels->of[a->dtype]->maxpool(&pixel);
    }
}

/* Item: a row of pixels. Along one side, tap `tap` of window number `at` lies on the pixel
 * at*stride - margin + tap. */
static void max_grad_item(void *ctx, int64_t item, int thread)
{
    const struct dpt_cpu_op *op = ctx;
    const struct dpt_maxpool *a = op->a;
    const struct dpt_windows *of = &a->of;
    const int64_t out_h = dpt_windows_along(of->h, of->stride),
                  out_w = dpt_windows_along(of->w, of->stride);
    const int64_t n = item / of->h, margin = (of->kernel - 1) / 2;
    const int64_t y = item % of->h + margin;
    struct dpt_maxpool_grad_pixel pixel = {.c = a->c};
    (void)thread;
    for (int64_t column = 0; column < of->w; column++) {
        const int64_t x = column + margin;
        pixel.count = 0;
        for (int64_t tap = of->kernel * of->kernel - 1; tap >= 0; tap--) {
            const int64_t up = y - tap / of->kernel, left = x - tap % of->kernel;
            if (up < 0 || up % of->stride != 0 || up / of->stride >= out_h || left < 0 ||
                left % of->stride != 0 || left / of->stride >= out_w)
                continue;
            const int64_t at = ((n * out_h + up / of->stride) * out_w + left / of->stride) * a->c;
            pixel.taken[pixel.count] = a->taken + at;
            pixel.dy[pixel.count] = dpt_at(a->dy, a->dtype, at);
            pixel.number[pixel.count++] = (int)tap;
        }
        pixel.dx = dpt_at_out(a->dx, a->dtype, (item * of->w + column) * a->c);
        op->kernels->of[a->dtype]->maxpool_grad(&pixel);
    }
}

void dpt_cpu_maxpool_forward(struct dpt_stream *stream, const struct dpt_maxpool *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    DPT_ASSERT(dpt_windows_are_valid(&a->of));
    if (dpt_cpu_posts(s, a->dtype, "max pool"))
        dpt_cpu_run_op(s, a->of.b * dpt_windows_along(a->of.h, a->of.stride), max_item, a);
}

void dpt_cpu_maxpool_backward(struct dpt_stream *stream, const struct dpt_maxpool *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    DPT_ASSERT(dpt_windows_are_valid(&a->of));
    if (dpt_cpu_posts(s, a->dtype, "max pool backward"))
        dpt_cpu_run_op(s, a->of.b * a->of.h, max_grad_item, a);
}

/* --- average pooling: an item is an image --- */

struct mean_job {
    const struct dpt_elem_kernels *kernels;
    const struct dpt_avgpool *a;
    struct dpt_workspace w; /* (c) f32 for each thread */
};

static void mean_item(void *ctx, int64_t item, int thread)
{
    const struct mean_job *j = ctx;
    const struct dpt_avgpool *a = j->a;
    float *sum = dpt_workspace_of(&j->w, thread);
    j->kernels->column_sums(a->pixels, a->c, dpt_at(a->in, a->dtype, item * a->pixels * a->c), a->c,
                            false, sum);
    for (int64_t i = 0; i < a->c; i++)
        sum[i] /= (float)a->pixels;
    j->kernels->narrow(a->c, sum, dpt_at_out(a->out, a->dtype, item * a->c));
}

static void mean_grad_item(void *ctx, int64_t item, int thread)
{
    const struct mean_job *j = ctx;
    const struct dpt_avgpool *a = j->a;
    float *row = dpt_workspace_of(&j->w, thread);
    char *dx = dpt_at_out(a->out, a->dtype, item * a->pixels * a->c);
    const size_t bytes = (size_t)a->c * dpt_dtype_bytes(a->dtype);
    j->kernels->widen(a->c, dpt_at(a->in, a->dtype, item * a->c), row);
    for (int64_t i = 0; i < a->c; i++)
        row[i] /= (float)a->pixels;
    j->kernels->narrow(a->c, row, dx);
    for (int64_t pixel = 1; pixel < a->pixels; pixel++)
        memcpy(dx + (size_t)pixel * bytes, dx, bytes);
}

static void run_mean(struct dpt_cpu_stream *s, const struct dpt_avgpool *a, const char *name,
                     dpt_pool_fn *item)
{
    struct mean_job job = {.a = a};
    if (!dpt_stream_begin(&s->base, a->dtype, name) ||
        !dpt_cpu_workspace(s, DPT_WORKSPACE_OP, 0, (size_t)a->c * sizeof(float), &job.w))
        return;
    job.kernels = s->kernels->of[a->dtype];
    dpt_pool_run(s->pool, a->b, item, &job);
}

void dpt_cpu_avgpool_forward(struct dpt_stream *stream, const struct dpt_avgpool *a)
{
    run_mean(dpt_cpu_stream(stream), a, "average pool", mean_item);
}

void dpt_cpu_avgpool_backward(struct dpt_stream *stream, const struct dpt_avgpool *a)
{
    run_mean(dpt_cpu_stream(stream), a, "average pool backward", mean_grad_item);
}
