/* The own vectorised kernels as one table per instruction set (kernels/cpu/simd, compiled once for
 * each).
 *
 * All tables give the same bits: lanes, partial sums and their joining are fixed (16 lanes), fused
 * multiply-adds are written where they are meant, exp is our own polynomial, and a row's tail is
 * computed by the same code with masked loads. Everything is single-threaded over the range given;
 * ops cut by shape. */
#ifndef DPT_KERNELS_CPU_KERNELS_H
#define DPT_KERNELS_CPU_KERNELS_H

#include "base/rng.h"
#include "kernels/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpt_tile {
    const float *tile; /* (rows, cols) dense */
    int64_t rows, cols;
    float *c; /* row stride ldc */
    int64_t ldc;
    const float *bias; /* (cols) or NULL */
    float *gelu;       /* row stride ldc, or NULL */
    bool accumulate;
    bool stream; /* c is not read again soon */
};

struct dpt_norm_rows {
    int64_t rows, c;
    float eps;
    const float *x, *gamma, *beta;
    float *y, *mean, *rstd;
};

struct dpt_norm_grad_rows {
    int64_t rows, c;
    const float *x, *gamma, *mean, *rstd, *dy;
    float *dx;
    bool add_dx;
    float *dgamma, *dbeta; /* (c) each: sums over these rows, overwritten */
};

/* One head of one sample. Rows of q, k, v are `ld` floats apart, those of y and dy `ldy`. `work` as
 * attention_work says. */
struct dpt_head_rows {
    int64_t t, hd, ld, ldy;
    const float *q, *k, *v;
    float *y, *lse;
    const struct dpt_dropout *dropout;
    uint64_t drop_first;             /* index of this head's element (0,0) in the mask */
    const float *y_in, *lse_in, *dy; /* backward */
    float *dq, *dk, *dv;             /* rows `ld` apart */
    float *work;
};

struct dpt_cpu_kernels {
    const char *name;
    void (*tile_store)(const struct dpt_tile *t);
    /* dst (cols, rows) dense = transpose of src (rows, cols) with row stride ld */
    void (*transpose)(int64_t rows, int64_t cols, const float *src, int64_t ld, float *dst,
                      int64_t ld_dst);
    /* ret[j] (+)= sum over rows of x[r*ld + j], rows in order */
    void (*column_sums)(int64_t rows, int64_t cols, const float *x, int64_t ld, bool accumulate,
                        float *ret);
    void (*norm)(const struct dpt_norm_rows *a);
    void (*norm_grad)(const struct dpt_norm_grad_rows *a);
    void (*gelu)(int64_t n, const float *x, float *y);
    void (*gelu_grad)(int64_t n, const float *x, const float *dy, float *dx);
    void (*add)(int64_t n, const float *a, const float *b, float *dst);
    void (*fill)(int64_t n, float value, float *dst);
    /* y = a + mask(b) and dx = mask(dy) for elements first … first+n-1 of the mask; a NULL: without
     * it */
    void (*drop_add)(int64_t n, const struct dpt_dropout *d, uint64_t first, const float *a,
                     const float *b, float *y);
    void (*adamw)(const struct dpt_adamw *a); /* the range is a->n elements from its pointers */
    double (*sumsq)(int64_t n, const float *x);
    size_t (*attention_work)(int64_t t, int64_t hd, bool backward); /* floats */
    void (*attention)(const struct dpt_head_rows *a);
    void (*attention_grad)(const struct dpt_head_rows *a);
    /* Online softmax over a row given in parts: max and sum of exp(x - max) so far. */
    void (*softmax_part)(int64_t n, const float *x, float *max, float *sum);
    /* x[j] = scale * exp(x[j] - lse) */
    void (*softmax_grad)(int64_t n, float *x, float lse, float scale);
};

extern const struct dpt_cpu_kernels dpt_cpu_kernels_plain;
#ifdef DPT_HAVE_X86_KERNELS
extern const struct dpt_cpu_kernels dpt_cpu_kernels_avx2;
extern const struct dpt_cpu_kernels dpt_cpu_kernels_avx512;
#endif

/* The best table this machine can run. The environment's DPT_ISA=plain|avx2|avx512 asks for less;
 * what cannot run is not chosen. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_best(void);

/* Table i of those that this machine can run, best last; NULL past the end. For tests. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_at(int i);

/* Natural logarithm, plain double arithmetic in fixed order, the same bits everywhere; relative
 * error below 1e-14. x > 0 and normal, else NaN or infinity as usual. */
double dpt_cpu_log(double x);

#endif
