/* The greatest of windows, the mean of an image, and their gradients. A pixel of the result is one
 * thread's, and each gradient of a pixel is a sum over windows in their order. */
#include "kernels/cpu/stream.h"

#include <string.h>

/* --- the greatest: items are rows of pixels --- */

struct max_job {
    const struct dpt_cpu_kernels *kernels;
    struct dpt_windows of;
    int64_t c, out_h, out_w;
    enum dpt_dtype dtype;
    const void *x, *dy;
    const uint8_t *taken_in;
    void *y, *dx;
    uint8_t *taken;
};

/* A row of windows. */
static void max_item(void *ctx, int64_t item, int thread)
{
    const struct max_job *j = ctx;
    const struct dpt_windows *of = &j->of;
    const int64_t n = item / j->out_h, margin = (of->kernel - 1) / 2;
    const int64_t top = item % j->out_h * of->stride - margin;
    struct dpt_maxpool_pixel pixel = {.c = j->c};
    (void)thread;
    for (int64_t column = 0; column < j->out_w; column++) {
        const int64_t left = column * of->stride - margin, to = (item * j->out_w + column) * j->c;
        pixel.count = 0;
        for (int64_t tap = 0; tap < of->kernel * of->kernel; tap++) {
            const int64_t y = top + tap / of->kernel, x = left + tap % of->kernel;
            if (y < 0 || y >= of->h || x < 0 || x >= of->w)
                continue;
            pixel.x[pixel.count] = dpt_at(j->x, j->dtype, ((n * of->h + y) * of->w + x) * j->c);
            pixel.number[pixel.count++] = (int)tap;
        }
        pixel.y = dpt_at_out(j->y, j->dtype, to);
        pixel.taken = j->taken + to;
        j->kernels->of[j->dtype]->maxpool(&pixel);
    }
}

/* A row of pixels. Tap `tap` of a window at `at` is the pixel when at*stride - margin + tap is its
 * place. */
static void max_grad_item(void *ctx, int64_t item, int thread)
{
    const struct max_job *j = ctx;
    const struct dpt_windows *of = &j->of;
    const int64_t n = item / of->h, margin = (of->kernel - 1) / 2;
    const int64_t y = item % of->h + margin;
    struct dpt_maxpool_grad_pixel pixel = {.c = j->c};
    (void)thread;
    for (int64_t column = 0; column < of->w; column++) {
        const int64_t x = column + margin;
        pixel.count = 0;
        for (int64_t tap = of->kernel * of->kernel - 1; tap >= 0; tap--) {
            const int64_t up = y - tap / of->kernel, left = x - tap % of->kernel;
            if (up < 0 || up % of->stride != 0 || up / of->stride >= j->out_h || left < 0 ||
                left % of->stride != 0 || left / of->stride >= j->out_w)
                continue;
            const int64_t at =
                ((n * j->out_h + up / of->stride) * j->out_w + left / of->stride) * j->c;
            pixel.taken[pixel.count] = j->taken_in + at;
            pixel.dy[pixel.count] = dpt_at(j->dy, j->dtype, at);
            pixel.number[pixel.count++] = (int)tap;
        }
        pixel.dx = dpt_at_out(j->dx, j->dtype, (item * of->w + column) * j->c);
        j->kernels->of[j->dtype]->maxpool_grad(&pixel);
    }
}

static struct max_job max_job_of(const struct dpt_cpu_stream *s, const struct dpt_windows *of,
                                 int64_t c, enum dpt_dtype dtype)
{
    DPT_ASSERT(of->kernel % 2 == 1 && of->kernel <= DPT_WINDOW_MAX && of->stride > 0);
    return (struct max_job){.kernels = s->kernels,
                            .of = *of,
                            .c = c,
                            .out_h = dpt_windows_along(of->h, of->stride),
                            .out_w = dpt_windows_along(of->w, of->stride),
                            .dtype = dtype};
}

void dpt_cpu_maxpool_forward(struct dpt_stream *stream, const struct dpt_maxpool_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct max_job job = max_job_of(s, &a->of, a->c, a->dtype);
    job.x = a->x;
    job.y = a->y;
    job.taken = a->taken;
    if (dpt_cpu_begin(s, a->dtype, "max pool") && !s->preparing)
        dpt_pool_run(s->pool, a->of.b * job.out_h, max_item, &job);
}

void dpt_cpu_maxpool_backward(struct dpt_stream *stream, const struct dpt_maxpool_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct max_job job = max_job_of(s, &a->of, a->c, a->dtype);
    job.taken_in = a->taken;
    job.dy = a->dy;
    job.dx = a->dx;
    if (dpt_cpu_begin(s, a->dtype, "max pool backward") && !s->preparing)
        dpt_pool_run(s->pool, a->of.b * a->of.h, max_grad_item, &job);
}

/* --- the mean: items are images --- */

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
    if (!dpt_cpu_begin(s, a->dtype, name) ||
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
