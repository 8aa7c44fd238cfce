/* Batch norm. Rows are cut into chunks of CHUNK. Each chunk's sums are computed for every channel,
 * and then the chunks' sums are added in order. The squares of a chunk are taken around the chunk's
 * own mean; the distance of this mean from the mean of all rows is added afterwards (Chan et al.
 * 1983). */
#include "kernels/cpu/stream.h"
#include "kernels/cpu_sizes.h"

#include <math.h>

enum { CHUNK = DPT_BATCHNORM_ROWS };

static int64_t chunk_end(int64_t n, int64_t chunk)
{
    return dpt_min64(n, (chunk + 1) * CHUNK);
}

/* --- forward --- */

struct forward_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_batchnorm_forward *a;
    int64_t chunks;
    float *sums;              /* (chunks, 2, c): sums, and squares */
    const float *mean, *rstd; /* (c): the normalisation uses these */
};

static void sums_item(void *ctx, int64_t chunk, int thread)
{
    const struct forward_job *j = ctx;
    float *sums = j->sums + chunk * 2 * j->a->c;
    (void)thread;
    j->kernels->of[j->a->dtype]->batchnorm_sums(j->a, chunk * CHUNK, chunk_end(j->a->n, chunk),
                                                sums, sums + j->a->c);
}

static void normal_item(void *ctx, int64_t chunk, int thread)
{
    const struct forward_job *j = ctx;
    (void)thread;
    j->kernels->of[j->a->dtype]->batchnorm(j->a, chunk * CHUNK, chunk_end(j->a->n, chunk), j->mean,
                                           j->rstd);
}

/* Computes the statistics of one channel from the chunks' sums. */
static void statistics_of(const struct forward_job *j, int64_t channel)
{
    const struct dpt_batchnorm_forward *a = j->a;
    const float *sums = j->sums + channel, n = (float)a->n;
    float sum = 0.0f, squares = 0.0f;
    for (int64_t chunk = 0; chunk < j->chunks; chunk++)
        sum += sums[chunk * 2 * a->c];
    const float mean = sum / n;
    for (int64_t chunk = 0; chunk < j->chunks; chunk++) {
        const float rows = (float)(chunk_end(a->n, chunk) - chunk * CHUNK);
        const float away = sums[chunk * 2 * a->c] / rows - mean;
        squares += sums[(chunk * 2 + 1) * a->c] + rows * (away * away);
    }
    a->mean[channel] = mean;
    a->rstd[channel] = 1.0f / sqrtf(squares / n + a->eps);
    a->var[channel] = squares / (n - 1.0f);
}

enum { CHANNELS = 16 };

/* Item: a few channels. */
static void statistics_item(void *ctx, int64_t item, int thread)
{
    const struct forward_job *j = ctx;
    const int64_t end = dpt_min64(j->a->c, (item + 1) * CHANNELS);
    (void)thread;
    for (int64_t channel = item * CHANNELS; channel < end; channel++)
        statistics_of(j, channel);
}

/* Computes mean and rstd (c) from the running statistics, for evaluation. */
static void running_statistics(const struct dpt_cpu_stream *s,
                               const struct dpt_batchnorm_forward *a, float *mean, float *rstd)
{
    s->kernels->of[a->dtype]->widen(a->c, a->running_mean, mean);
    s->kernels->of[a->dtype]->widen(a->c, a->running_var, rstd);
    for (int64_t i = 0; i < a->c; i++)
        rstd[i] = 1.0f / sqrtf(rstd[i] + a->eps);
}

void dpt_cpu_batchnorm_forward(struct dpt_stream *stream, const struct dpt_batchnorm_forward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct forward_job job = {.kernels = s->kernels,
                              .a = a,
                              .chunks = dpt_ceil_div(a->n, CHUNK),
                              .mean = a->mean,
                              .rstd = a->rstd};
    struct dpt_workspace w;
    DPT_ASSERT(s->base.preparing || !a->running_mean == !a->running_var);
    DPT_ASSERT(s->base.preparing || a->running_mean || a->n >= 2);
    const int64_t floats = (job.chunks > 1 ? job.chunks : 1) * 2 * a->c;
    if (!dpt_stream_begin(&s->base, a->dtype, "batch norm") ||
        !dpt_cpu_workspace(s, DPT_WORKSPACE_OP, (size_t)floats * sizeof(float), 0, &w))
        return;
    job.sums = (float *)(void *)w.shared;
    if (a->running_mean) {
        running_statistics(s, a, job.sums, job.sums + a->c);
        job.mean = job.sums;
        job.rstd = job.sums + a->c;
    } else {
        dpt_pool_run(s->pool, job.chunks, sums_item, &job);
        dpt_pool_run(s->pool, dpt_ceil_div(a->c, CHANNELS), statistics_item, &job);
    }
    dpt_pool_run(s->pool, job.chunks, normal_item, &job);
}

/* --- backward --- */

struct backward_job {
    const struct dpt_cpu_kernels *kernels;
    const struct dpt_batchnorm_backward *a;
    int64_t chunks;
    float *sums;  /* (chunks, 2, c): sums for gamma's gradient, for beta's */
    float *means; /* (2, c): both sums over all rows, divided by n */
};

static void grad_sums_item(void *ctx, int64_t chunk, int thread)
{
    const struct backward_job *j = ctx;
    float *sums = j->sums + chunk * 2 * j->a->c;
    (void)thread;
    j->kernels->of[j->a->dtype]->batchnorm_grad_sums(j->a, chunk * CHUNK, chunk_end(j->a->n, chunk),
                                                     sums, sums + j->a->c);
}

static void grad_item(void *ctx, int64_t chunk, int thread)
{
    const struct backward_job *j = ctx;
    (void)thread;
    j->kernels->of[j->a->dtype]->batchnorm_grad(j->a, chunk * CHUNK, chunk_end(j->a->n, chunk),
                                                j->means, j->means + j->a->c);
}

static void give_gradient(const struct dpt_batchnorm_backward *a, float *to, int64_t channel,
                          float x)
{
    if (to)
        to[channel] = a->accumulate ? to[channel] + x : x;
}

/* Item: a few channels. */
static void join_item(void *ctx, int64_t item, int thread)
{
    const struct backward_job *j = ctx;
    const struct dpt_batchnorm_backward *a = j->a;
    const int64_t end = dpt_min64(a->c, (item + 1) * CHANNELS);
    (void)thread;
    for (int64_t i = item * CHANNELS; i < end; i++) {
        float dgamma = 0.0f, dbeta = 0.0f;
        for (int64_t chunk = 0; chunk < j->chunks; chunk++) {
            dgamma += j->sums[chunk * 2 * a->c + i];
            dbeta += j->sums[(chunk * 2 + 1) * a->c + i];
        }
        j->means[i] = dgamma / (float)a->n;
        j->means[a->c + i] = dbeta / (float)a->n;
        give_gradient(a, a->dgamma, i, dgamma);
        give_gradient(a, a->dbeta, i, dbeta);
        give_gradient(a, a->dmean, i, a->share * a->mean[i]);
        give_gradient(a, a->dvar, i, a->share * a->var[i]);
    }
}

void dpt_cpu_batchnorm_backward(struct dpt_stream *stream, const struct dpt_batchnorm_backward *a)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    struct backward_job job = {.kernels = s->kernels, .a = a, .chunks = dpt_ceil_div(a->n, CHUNK)};
    struct dpt_workspace w;
    DPT_ASSERT(s->base.preparing || (!a->dmean == !a->dvar && !a->dgamma == !a->dbeta));
    if (!dpt_stream_begin(&s->base, a->dtype, "batch norm backward") ||
        !dpt_cpu_workspace(s, DPT_WORKSPACE_OP,
                           (size_t)((job.chunks + 1) * 2 * a->c) * sizeof(float), 0, &w))
        return;
    job.means = (float *)(void *)w.shared;
    job.sums = job.means + 2 * a->c;
    dpt_pool_run(s->pool, job.chunks, grad_sums_item, &job);
    dpt_pool_run(s->pool, dpt_ceil_div(a->c, CHANNELS), join_item, &job);
    dpt_pool_run(s->pool, job.chunks, grad_item, &job);
}
