/* The reference of the ops on images (ref.h). */
#include "tests/kernels/ref.h"

#include <math.h>
#include <string.h>

/* Pixel `tap` of window (i, j) of image n: its index, or -1 outside of the image. */
static int64_t pixel_of(const struct dpt_windows *a, int64_t n, int64_t i, int64_t j, int64_t tap)
{
    const int64_t y = i * a->stride - a->kernel / 2 + tap / a->kernel,
                  x = j * a->stride - a->kernel / 2 + tap % a->kernel;
    const bool inside = y >= 0 && y < a->h && x >= 0 && x < a->w;
    return inside ? (n * a->h + y) * a->w + x : -1;
}

struct window {
    int64_t n, i, j;
};

static int64_t windows_count(const struct dpt_windows *a)
{
    return a->b * dpt_windows_along(a->h, a->stride) * dpt_windows_along(a->w, a->stride);
}

static struct window window_at(const struct dpt_windows *a, int64_t p)
{
    const int64_t h = dpt_windows_along(a->h, a->stride), w = dpt_windows_along(a->w, a->stride);
    return (struct window){p / w / h, p / w % h, p % w};
}

void ref_conv(const struct dpt_windows *a, int64_t in, int64_t out, const double *x,
              const double *weight, double *y)
{
    const int64_t taps = a->kernel * a->kernel;
    for (int64_t p = 0; p < windows_count(a); p++) {
        const struct window at = window_at(a, p);
        for (int64_t o = 0; o < out; o++)
            y[p * out + o] = 0.0;
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t pixel = pixel_of(a, at.n, at.i, at.j, tap);
            for (int64_t o = 0; pixel >= 0 && o < out; o++)
                for (int64_t i = 0; i < in; i++)
                    y[p * out + o] += x[pixel * in + i] * weight[(o * in + i) * taps + tap];
        }
    }
}

void ref_conv_grad(const struct dpt_windows *a, int64_t in, int64_t out, const double *x,
                   const double *weight, const double *dy, double *dx, double *dw)
{
    const int64_t taps = a->kernel * a->kernel;
    memset(dx, 0, (size_t)(a->b * a->h * a->w * in) * sizeof *dx);
    memset(dw, 0, (size_t)(out * in * taps) * sizeof *dw);
    for (int64_t p = 0; p < windows_count(a); p++) {
        const struct window at = window_at(a, p);
        for (int64_t tap = 0; tap < taps; tap++) {
            const int64_t pixel = pixel_of(a, at.n, at.i, at.j, tap);
            for (int64_t o = 0; pixel >= 0 && o < out; o++)
                for (int64_t i = 0; i < in; i++) {
                    const int64_t w = (o * in + i) * taps + tap;
                    dx[pixel * in + i] += dy[p * out + o] * weight[w];
                    dw[w] += dy[p * out + o] * x[pixel * in + i];
                }
        }
    }
}

static void normalise(const struct ref_batchnorm *a, int64_t i, const double *x, double mean,
                      double rstd, double *y)
{
    for (int64_t r = 0; r < a->n; r++) {
        const int64_t at = r * a->c + i;
        y[at] = (x[at] - mean) * rstd * a->gamma[i] + a->beta[i];
        if (a->residual)
            y[at] += a->residual[at];
        if (a->relu && y[at] < 0.0)
            y[at] = 0.0;
    }
}

void ref_batchnorm(const struct ref_batchnorm *a, const double *x, double *y, double *mean,
                   double *rstd, double *var)
{
    for (int64_t i = 0; i < a->c; i++) {
        double sum = 0.0, squares = 0.0;
        for (int64_t r = 0; r < a->n; r++)
            sum += x[r * a->c + i];
        mean[i] = sum / (double)a->n;
        for (int64_t r = 0; r < a->n; r++)
            squares += (x[r * a->c + i] - mean[i]) * (x[r * a->c + i] - mean[i]);
        rstd[i] = 1.0 / sqrt(squares / (double)a->n + a->eps);
        var[i] = squares / (double)(a->n - 1);
        normalise(a, i, x, mean[i], rstd[i], y);
    }
}

void ref_batchnorm_eval(const struct ref_batchnorm *a, const double *x, const double *mean,
                        const double *var, double *y)
{
    for (int64_t i = 0; i < a->c; i++)
        normalise(a, i, x, mean[i], 1.0 / sqrt(var[i] + a->eps), y);
}

void ref_batchnorm_grad(const struct ref_batchnorm *a, const double *x, const double *y,
                        const double *mean, const double *rstd, const double *dy, double *dx,
                        double *dresidual, double *dgamma, double *dbeta)
{
    for (int64_t i = 0; i < a->c; i++) {
        dgamma[i] = dbeta[i] = 0.0;
        for (int64_t r = 0; r < a->n; r++) {
            const int64_t at = r * a->c + i;
            const double g = a->relu && y[at] <= 0.0 ? 0.0 : dy[at];
            dgamma[i] += g * (x[at] - mean[i]) * rstd[i];
            dbeta[i] += g;
            if (dresidual)
                dresidual[at] = g;
        }
        for (int64_t r = 0; r < a->n; r++) {
            const int64_t at = r * a->c + i;
            const double g = a->relu && y[at] <= 0.0 ? 0.0 : dy[at];
            const double hat = (x[at] - mean[i]) * rstd[i];
            dx[at] = a->gamma[i] * rstd[i] * (g - (dbeta[i] + hat * dgamma[i]) / (double)a->n);
        }
    }
}

void ref_maxpool(const struct dpt_windows *a, int64_t c, const double *x, const double *dy,
                 double *y, double *dx)
{
    memset(dx, 0, (size_t)(a->b * a->h * a->w * c) * sizeof *dx);
    for (int64_t p = 0; p < windows_count(a); p++) {
        const struct window at = window_at(a, p);
        for (int64_t i = 0; i < c; i++) {
            int64_t most = -1;
            for (int64_t tap = 0; tap < a->kernel * a->kernel; tap++) {
                const int64_t pixel = pixel_of(a, at.n, at.i, at.j, tap);
                if (pixel >= 0 && (most < 0 || x[pixel * c + i] > x[most * c + i]))
                    most = pixel;
            }
            y[p * c + i] = x[most * c + i];
            dx[most * c + i] += dy[p * c + i];
        }
    }
}

void ref_avgpool(int64_t b, int64_t pixels, int64_t c, const double *x, const double *dy, double *y,
                 double *dx)
{
    for (int64_t n = 0; n < b; n++)
        for (int64_t i = 0; i < c; i++) {
            y[n * c + i] = 0.0;
            for (int64_t p = 0; p < pixels; p++) {
                y[n * c + i] += x[(n * pixels + p) * c + i] / (double)pixels;
                dx[(n * pixels + p) * c + i] = dy[n * c + i] / (double)pixels;
            }
        }
}
