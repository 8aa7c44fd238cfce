/* Gram-Schmidt on the columns of a tall, narrow matrix, in double, in the order of its rows. There
 * are few columns, so one thread is enough, and the bits do not depend on the number of threads. */
#include "kernels/cpu/stream.h"

#include <math.h>

/* A column that the columns before it span keeps, by f32's rounding, at most this relative
 * length. */
static const double VANISHED = 1e-6;

static double column_dot(int64_t n, int64_t r, const float *a, const float *b)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i * r] * (double)b[i * r];
    return sum;
}

static void scale_column(int64_t n, int64_t r, double factor, float *x)
{
    for (int64_t i = 0; i < n; i++)
        x[i * r] = (float)((double)x[i * r] * factor);
}

/* x -= (x . q) q */
static void project_out(int64_t n, int64_t r, const float *q, float *x)
{
    const double part = column_dot(n, r, q, x);
    for (int64_t i = 0; i < n; i++)
        x[i * r] = (float)((double)x[i * r] - part * (double)q[i * r]);
}

void dpt_cpu_orthonormalise(struct dpt_stream *stream, int64_t n, int64_t r, float *x)
{
    struct dpt_cpu_stream *s = dpt_cpu_stream(stream);
    if (!dpt_cpu_posts(s, DPT_F32, "orthonormalise"))
        return;
    for (int64_t j = 0; j < r; j++) {
        const double before = sqrt(column_dot(n, r, x + j, x + j));
        if (before > 0) /* keeps squares in range */
            scale_column(n, r, 1 / before, x + j);
        /* The second pass removes the rounding error of the first. */
        for (int pass = 0; pass < 2; pass++)
            for (int64_t k = 0; k < j; k++)
                project_out(n, r, x + k, x + j);
        const double left = sqrt(column_dot(n, r, x + j, x + j));
        scale_column(n, r, left <= VANISHED ? 0 : 1 / left, x + j); /* a NaN stays a NaN */
    }
}
