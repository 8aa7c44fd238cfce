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
    void *y;    /* read by backward, as lse is */
    float *lse; /* (t) */
    const struct dpt_dropout *dropout;
    uint64_t drop_first; /* index of this head's element (0,0) in the mask */
    float *work;
    int64_t group; /* from here on: backward only */
    const void *dy;
    void *dq, *dk, *dv; /* rows `ld` apart */
};

/* y[r] = scale * the dot product of x (n) and row r of w; rows of w are `ld` apart. */
struct dpt_row_dots {
    int64_t rows, n;
    const float *x, *w;
    int64_t ld;
    float scale;
    float *y;
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
#define DPT_ELEM_KERNEL(result, name, parameters) result(*name) parameters;
#include "kernels/cpu/kernels.def"
};

struct dpt_cpu_kernels {
    const char *name;
    const struct dpt_elem_kernels *of[DPT_DTYPE_COUNT];
#define DPT_CPU_KERNEL(result, name, parameters) result(*name) parameters;
#include "kernels/cpu/kernels.def"
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

/* The limit that the environment's DPT_TEST_ISA sets for the own kernels and the library, so that
 * one machine can test the paths of weaker ones. DPT_EINVAL, with all names, for any other. */
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

#endif
