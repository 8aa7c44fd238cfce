/* A wrapper of oneDNN's primitives: single-threaded products of one tile, and the repacking
 * of a tile of b. Made once for each size and kept in the stream's engine, the most recently used
 * of many; running one allocates nothing (cells.c). gemm.c cuts products into these. */
#ifndef DPT_KERNELS_CPU_ONEDNN_H
#define DPT_KERNELS_CPU_ONEDNN_H

#include "base/err.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu_sizes.h"
#include "kernels/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dpt_primitive;
struct dpt_gemm_engine;

/* One engine per stream of `threads` threads. */
DPT_MUST_USE enum dpt_status dpt_gemm_engine_create(int threads, struct dpt_gemm_engine **ret,
                                                    struct dpt_err *err);
void dpt_gemm_engine_destroy(struct dpt_gemm_engine **engine);

/* Readies a thread for products: from then on OpenMP counts one thread when this thread asks.
 * Products do it themselves when it was not done, at the price of a small allocation. */
void dpt_gemm_thread_begin(void);

/* Readies the library for this process, from its main thread and before any engine, and names it
 * with the instruction set it uses: "onednn-2.6.3 isa-e7". The first call limits it for the life of
 * the process: DPT_EUNSUPPORTED when the machine or a call before does not give what `limit` says.
 */
DPT_MUST_USE enum dpt_status dpt_onednn_open(enum dpt_cpu_isa limit, char *ret_text, size_t bytes,
                                             struct dpt_err *err);

/* Whether the library multiplies tiles as gemm.h promises: from AVX-512 on. Else it is asked for no
 * primitive. */
bool dpt_onednn_multiplies(const struct dpt_gemm_engine *e);

/* The type of operands of a product of tensors of `dtype`: bf16 where the machine multiplies
 * it (AVX512_BF16 or AMX), else f32. */
enum dpt_dtype dpt_onednn_operands(const struct dpt_gemm_engine *e, enum dpt_dtype dtype);

/* m > 0: a matmul, c (m,n) f32 = a (m,k) b (k,n); a and c are dense, b is in blocked form.
 * m == 0: a reorder, which makes the blocked form of b (k,n) from memory in which element (i,j) is
 * b[i*b_row + j*b_col]. Operands are as dpt_onednn_operands said. */
struct dpt_primitive_shape {
    enum dpt_dtype operands;
    int64_t m, n, k;
    int64_t b_row, b_col; /* of a reorder */
};

/* Owned by the engine, and there until some hundred others were asked for; NULL with *err filled on
 * failure. */
struct dpt_primitive *dpt_onednn_primitive(struct dpt_gemm_engine *e,
                                           const struct dpt_primitive_shape *shape,
                                           struct dpt_err *err);

/* Bytes of b's blocked form, and of scratch memory for a run; runs want both aligned to 64. */
size_t dpt_onednn_b_bytes(const struct dpt_primitive *p);
size_t dpt_onednn_scratch_bytes(const struct dpt_primitive *p);

/* Runs it as thread `thread` of the stream. Arguments of a matmul: a, b, c, scratch memory; of a
 * reorder: b plain, b blocked, scratch memory. Returns the library's status, 0 when well. */
int dpt_onednn_run(struct dpt_gemm_engine *e, const struct dpt_primitive *p, int thread,
                   const void *const arguments[]);

/* A failed run's status as an error. */
enum dpt_status dpt_onednn_error(int status, const char *what, struct dpt_err *err);

#endif
