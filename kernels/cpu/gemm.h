/* Products of matrices on a CPU stream, c (m,n) = a (m,k) b (k,n), fp32, from oneDNN (onednn.c, the
 * only file that sees it).
 *
 * A product is cut by shape into tiles of the result, each one single-threaded oneDNN primitive
 * over the whole of k, so its bits depend neither on the number of threads nor on how the library
 * would share the work. Operands are copied tile by tile into the dense or blocked forms that the
 * library is fastest on, and each finished tile is handed to `store` while it is still in the
 * cache: bias, activation and accumulation happen there. */
#ifndef DPT_KERNELS_CPU_GEMM_H
#define DPT_KERNELS_CPU_GEMM_H

#include "kernels/cpu/stream.h"

struct dpt_gemm_engine;

/* How a finished tile reaches the result; see dpt_cpu_kernels.tile_store. */
struct dpt_gemm_store {
    float *c; /* (m, n), row stride ldc */
    int64_t ldc;
    const float *bias; /* (n) or NULL */
    float *gelu;       /* (m, n), row stride ldc, or NULL */
    bool accumulate;   /* c += product instead of c = product */
};

struct dpt_gemm {
    int64_t m, n, k;
    const float *a;
    int64_t a_row, a_col; /* element (i,j) of a is a[i*a_row + j*a_col] */
    const float *b;
    int64_t b_row, b_col;
    struct dpt_gemm_store store;
};

/* One engine per stream of `threads` threads. */
DPT_MUST_USE enum dpt_status dpt_gemm_engine_create(int threads, struct dpt_gemm_engine **ret,
                                                    struct dpt_err *err);
void dpt_gemm_engine_destroy(struct dpt_gemm_engine **engine);

/* Readies a thread for products: from then on OpenMP counts one thread when this thread asks.
 * Products do it themselves when it was not done, at the price of a small allocation. */
void dpt_gemm_thread_begin(void);

/* "onednn-2.6.3 isa-…" */
void dpt_gemm_library(char *ret_text, size_t bytes);

/* Runs (or, while the stream prepares, only prepares) a product. Errors stick to the stream. */
void dpt_cpu_gemm(struct dpt_cpu_stream *s, const struct dpt_gemm *g);

#endif
