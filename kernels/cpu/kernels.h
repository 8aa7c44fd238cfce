/* The own vectorised kernels as one table per instruction set (kernels/cpu/simd, compiled once for
 * each), and in it one per element type of the activations.
 *
 * All tables give the same bits: lanes, partial sums and their joining are fixed (16 lanes), fused
 * multiply-adds are written where they are meant, exp is our own polynomial, and a row's tail is
 * computed by the same code with masked loads. Kernels compute in f32, whatever they read and
 * write: elements (void pointers) are widened and rounded as kernels/half.h says. Everything is
 * single-threaded over the range given; ops cut by shape. */
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
    void *c; /* row stride ldc */
    int64_t ldc;
    const void *bias; /* (cols) or NULL */
    void *gelu;       /* row stride ldc, or NULL */
    bool accumulate;
    bool stream; /* c, in f32, is not read again soon */
};

struct dpt_norm_rows {
    int64_t rows, c;
    float eps;
    const void *x, *gamma, *beta;
    void *y;
    float *mean, *rstd; /* beta and mean NULL: RMS norm */
};

struct dpt_norm_grad_rows {
    int64_t rows, c;
    const void *x, *gamma, *dy;
    const float *mean, *rstd;
    void *dx;
    bool add_dx;
    float *dgamma, *dbeta; /* (c) each: sums over these rows, overwritten; no dbeta of RMS norm */
};

/* Rows of channels; mean and rstd are per channel. */
struct dpt_batchnorm_rows {
    int64_t rows, c;
    const void *x, *gamma, *beta;
    const void *residual; /* or NULL */
    const float *mean, *rstd;
    bool relu;
    void *y;
};

struct dpt_batchnorm_grad_rows {
    int64_t rows, c;
    const void *x, *gamma, *dy;
    const void *y; /* or NULL: no relu */
    const float *mean, *rstd;
    const float *mean_dgamma, *mean_dbeta; /* (c): this micro-batch's gradients over its n */
    void *dx;
    void *dresidual; /* or NULL */
};

/* The pixels of one window that are in the image, by their numbers in it, ascending. */
enum { DPT_WINDOW_PIXELS_MAX = DPT_WINDOW_MAX * DPT_WINDOW_MAX };
struct dpt_maxpool_pixel {
    int64_t c;
    int count;                            /* 1 or more */
    const void *x[DPT_WINDOW_PIXELS_MAX]; /* (c) each */
    int number[DPT_WINDOW_PIXELS_MAX];
    void *y;
    uint8_t *taken;
};

/* The windows that one pixel is in, and its number in each. */
struct dpt_maxpool_grad_pixel {
    int64_t c;
    int count;
    const uint8_t *taken[DPT_WINDOW_PIXELS_MAX]; /* (c) each */
    const void *dy[DPT_WINDOW_PIXELS_MAX];
    int number[DPT_WINDOW_PIXELS_MAX];
    void *dx;
};

/* One head of one sample; backward, the `group` query heads beside each other that share a key and
 * value head, from the first on. Rows of q, k, v are `ld` elements apart, those of y and dy `ldy`.
 * `work` as attention_work says. */
struct dpt_head_rows {
    int64_t t, hd, ld, ldy;
    const void *q, *k, *v;
    void *y;
    float *lse;
    const struct dpt_dropout *dropout;
    uint64_t drop_first; /* index of this head's element (0,0) in the mask */
    int64_t group;       /* backward, and what follows */
    const void *y_in, *dy;
    const float *lse_in;
    void *dq, *dk, *dv; /* rows `ld` apart */
    float *work;
};

/* The first `heads` heads of rows that are `stride` elements apart (dpt_rope). */
struct dpt_rope_rows {
    int64_t rows, heads, half, stride;
    int64_t t, first; /* the rows' positions are (first + row) % t of the table */
    bool inverse;
    const float *cos, *sin; /* (t, half) */
    void *x;
};

/* y (cols) = bias + x (k) times w (k, cols) with row stride ld. */
struct dpt_row_times {
    int64_t k, cols;
    const float *x, *w;
    int64_t ld;
    const float *bias; /* (cols) or NULL: 0 */
    float *y;
};

/* c (rows, cols) = a (rows, k) times b (k, cols), all f32, a and c dense, b in panels (below). k is
 * cut into blocks of DPT_PANEL_DEPTH: each result is a chain of fma over each block, and the chains
 * are added in their order, whatever the result's place among rows and columns. */
enum { DPT_PANEL_DEPTH = 256 };
struct dpt_panel_product {
    int64_t rows, cols, k;
    const float *a, *b;
    float *c;
};

/* Panels of b (k, cols): for every 16 columns one of (k, 16) dense, the last with zeros behind
 * cols. */
enum { DPT_PANEL_COLUMNS = 16 };

/* Element (i,j) of b is b[i*row + j*col]; row or col is 1. */
struct dpt_panels {
    int64_t k, cols;
    const void *b;
    int64_t row, col;
    float *to;
};

/* Over elements of one type. */
struct dpt_elem_kernels {
    void (*tile_store)(const struct dpt_tile *t);
    void (*panels)(const struct dpt_panels *a);
    /* dst (cols, rows) dense = transpose of src (rows, cols) with row stride ld, widened */
    void (*transpose)(int64_t rows, int64_t cols, const void *src, int64_t ld, float *dst,
                      int64_t ld_dst);
    /* ret[j] (+)= sum over rows of x[r*ld + j], rows in order */
    void (*column_sums)(int64_t rows, int64_t cols, const void *x, int64_t ld, bool accumulate,
                        float *ret);
    void (*widen)(int64_t n, const void *x, float *y);
    void (*narrow)(int64_t n, const float *x, void *y);
    void (*norm)(const struct dpt_norm_rows *a);
    void (*norm_grad)(const struct dpt_norm_grad_rows *a);
    /* Of each channel the rows' sum, and the squares of their distances to the rows' own mean. */
    void (*batchnorm_sums)(const struct dpt_batchnorm_rows *a, float *sums, float *squares);
    void (*batchnorm)(const struct dpt_batchnorm_rows *a);
    /* The rows' parts of the gradients of gamma and beta, overwritten; and dx and dresidual. */
    void (*batchnorm_grad_sums)(const struct dpt_batchnorm_grad_rows *a, float *dgamma,
                                float *dbeta);
    void (*batchnorm_grad)(const struct dpt_batchnorm_grad_rows *a);
    void (*maxpool)(const struct dpt_maxpool_pixel *a);
    void (*maxpool_grad)(const struct dpt_maxpool_grad_pixel *a);
    void (*gelu)(int64_t n, const void *x, void *y);
    void (*gelu_grad)(int64_t n, const void *x, const void *dy, void *dx);
    /* y (n) = silu(gate) * up, and from dy (n) the gradients of both. */
    void (*swiglu)(int64_t n, const void *gate, const void *up, void *y);
    void (*swiglu_grad)(int64_t n, const void *gate, const void *up, const void *dy, void *dgate,
                        void *dup);
    void (*scale)(int64_t n, float factor, void *x); /* x *= factor */
    void (*add)(int64_t n, const void *a, const void *b, void *dst);
    /* y = a + mask(b) and dx = mask(dy) for elements first … first+n-1 of the mask; a NULL: without
     * it */
    void (*drop_add)(int64_t n, const struct dpt_dropout *d, uint64_t first, const void *a,
                     const void *b, void *y);
    size_t (*attention_work)(int64_t t, int64_t hd, bool backward); /* floats */
    void (*attention)(const struct dpt_head_rows *a);
    void (*attention_grad)(const struct dpt_head_rows *a);
    void (*rope)(const struct dpt_rope_rows *a);
    /* ret[j] = scale * exp(x[j] - lse); ret may be x */
    void (*softmax_grad)(int64_t n, const float *x, float lse, float scale, void *ret);
};

struct dpt_cpu_kernels {
    const char *name;
    const struct dpt_elem_kernels *of[DPT_DTYPE_COUNT];
    /* dst (cols, rows) = transpose of src (rows, cols), both with row strides, elements of 16 bits
     */
    void (*transpose16)(int64_t rows, int64_t cols, const uint16_t *src, int64_t ld, uint16_t *dst,
                        int64_t ld_dst);
    void (*fill)(int64_t n, float value, float *dst);
    void (*adamw)(const struct dpt_adamw *a); /* the range is a->n elements from its pointers; no
                                                 copy */
    void (*sgd)(const struct dpt_sgd *a);     /* likewise */
    double (*sumsq)(int64_t n, const float *x);
    /* Online softmax over a row given in parts: max and sum of exp(x - max) so far. */
    void (*softmax_part)(int64_t n, const float *x, float *max, float *sum);
    void (*row_times)(const struct dpt_row_times *a);
    /* y[r] = scale * the dot product of x (n) and row r of w, rows ld apart */
    void (*dots)(int64_t rows, int64_t n, const float *x, const float *w, int64_t ld, float scale,
                 float *y);
    void (*softmax)(int64_t n, float *x); /* in place */
    void (*panel_product)(const struct dpt_panel_product *p);
};

extern const struct dpt_cpu_kernels dpt_cpu_kernels_plain;
#ifdef DPT_HAVE_X86_KERNELS
extern const struct dpt_cpu_kernels dpt_cpu_kernels_avx2;
extern const struct dpt_cpu_kernels dpt_cpu_kernels_avx512;
#endif

/* The instruction sets that DPT_TEST_ISA names, each with all before it. AVX512_BF16 has the table
 * of AVX512; the library multiplies bf16 there. */
enum dpt_cpu_isa {
    DPT_CPU_ISA_PLAIN,
    DPT_CPU_ISA_AVX2,
    DPT_CPU_ISA_AVX512,
    DPT_CPU_ISA_AVX512_BF16,
    DPT_CPU_ISA_COUNT /* as a limit: none */
};
const char *dpt_cpu_isa_name(enum dpt_cpu_isa isa);

/* What the environment's DPT_TEST_ISA limits the own kernels and the library to, so that one
 * machine can test the paths of weaker ones. DPT_EINVAL, with the names there are, for any other.
 */
DPT_MUST_USE enum dpt_status dpt_cpu_isa_limit(enum dpt_cpu_isa *ret, struct dpt_err *err);

/* The best table this machine can run within the limit. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_best(enum dpt_cpu_isa limit);

/* Table i of those that this machine can run, best last; NULL past the end. For tests. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_at(int i);

/* dpt_device_cpu_create with this table of own kernels, whatever the limit; products as the limit
 * says. For tests. */
DPT_MUST_USE enum dpt_status dpt_device_cpu_create_with(const struct dpt_cpu_kernels *kernels,
                                                        struct dpt_device **ret,
                                                        struct dpt_err *err);

/* Natural logarithm, plain double arithmetic in fixed order, the same bits everywhere; relative
 * error below 1e-14. x > 0 and normal, else NaN or infinity as usual. */
double dpt_cpu_log(double x);

#endif
