/* The project's own vectorised kernels: one table per instruction set (kernels/cpu/simd, compiled
 * once for each), and in it one table per element type of the activations.
 *
 * All tables give the same bits. The lanes (16), the partial sums and the order in which they are
 * joined are fixed. A fused multiply-add is used only where the source has one. exp is our own
 * polynomial. The same code with masked loads computes a row's tail. Kernels compute in f32,
 * whatever they read and write: elements (void pointers) are widened and rounded as kernels/half.h
 * says. Each call is single-threaded over the given range; ops cut their work by shape. */
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

/* The pixels of one window that are in the image, in ascending order of `number`, their index in
 * the window. */
enum { DPT_WINDOW_PIXELS_MAX = DPT_WINDOW_MAX * DPT_WINDOW_MAX };
struct dpt_maxpool_pixel {
    int64_t c;
    int count;                            /* 1 or more */
    const void *x[DPT_WINDOW_PIXELS_MAX]; /* (c) each */
    int number[DPT_WINDOW_PIXELS_MAX];
    void *y;
    uint8_t *taken;
};

/* The windows that contain one pixel, and the pixel's index in each window. */
struct dpt_maxpool_grad_pixel {
    int64_t c;
    int count;
    const uint8_t *taken[DPT_WINDOW_PIXELS_MAX]; /* (c) each */
    const void *dy[DPT_WINDOW_PIXELS_MAX];
    int number[DPT_WINDOW_PIXELS_MAX];
    void *dx;
};

/* One head of one sample. In backward: the `group` adjacent query heads that share a key and value
 * head, beginning with the first. Rows of q, k, v are `ld` elements apart, rows of y and dy `ldy`.
 * `work` has attention_work floats. */
struct dpt_head_rows {
    int64_t t, hd, ld, ldy;
    const void *q, *k, *v;
    void *y;    /* backward reads y and lse */
    float *lse; /* (t) */
    const struct dpt_dropout *dropout;
    uint64_t drop_first; /* index of this head's element (0,0) in the mask */
    float *work;
    int64_t group; /* backward only, as all members below */
    const void *dy;
    void *dq, *dk, *dv; /* rows `ld` apart */
};

/* y[r] = scale * dot product of x (n) and row r of w. Rows of w are `ld` apart. */
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
 * cut into blocks of DPT_PANEL_DEPTH. Each result is one chain of fma per block, and the chains are
 * added in order. A result's bits do not depend on its place among rows and columns. */
enum { DPT_PANEL_DEPTH = 256 };
struct dpt_panel_product {
    int64_t rows, cols, k;
    const float *a, *b;
    float *c;
};

/* Panels of b (k, cols): one panel (k, 16), dense, for every 16 columns. The last panel has zeros
 * after column cols. */
enum { DPT_PANEL_COLUMNS = 16 };

/* What `panels` reads. Element (i,j) of b is b[i*row + j*col]; row or col is 1. */
struct dpt_panels {
    int64_t k, cols;
    const void *b;
    int64_t row, col;
    float *to;
};

/* Kernels over elements of one type. */
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

/* The instruction sets that DPT_TEST_ISA names. Each includes all before it. AVX512_BF16 uses the
 * table of AVX512; the difference is that the library multiplies bf16 there. */
enum dpt_cpu_isa {
    DPT_CPU_ISA_PLAIN,
    DPT_CPU_ISA_AVX2,
    DPT_CPU_ISA_AVX512,
    DPT_CPU_ISA_AVX512_BF16,
    DPT_CPU_ISA_COUNT /* as a limit: no limit */
};
const char *dpt_cpu_isa_name(enum dpt_cpu_isa isa);

/* Returns the limit that the environment variable DPT_TEST_ISA sets for our kernels and the
 * library, so that one machine can test the paths of weaker machines. DPT_EINVAL for an unknown
 * name; the error's text lists all names. */
DPT_MUST_USE enum dpt_status dpt_cpu_isa_limit(enum dpt_cpu_isa *ret, struct dpt_err *err);

/* Returns the best table that this machine can run within the limit. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_best(enum dpt_cpu_isa limit);

/* Returns table i of the tables that this machine can run, the best one last, or NULL past the end.
 * For tests. */
const struct dpt_cpu_kernels *dpt_cpu_kernels_at(int i);

/* As dpt_device_cpu_create, but with this table of kernels, whatever the limit. Products still obey
 * the limit. For tests. */
DPT_MUST_USE enum dpt_status dpt_device_cpu_create_with(const struct dpt_cpu_kernels *kernels,
                                                        struct dpt_device **ret,
                                                        struct dpt_err *err);

#endif
