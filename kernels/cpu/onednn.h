/* A wrapper of oneDNN's primitives: the single-threaded product of one tile, and the repacking of a
 * tile of b. A primitive is made once for each size. The stream's engine keeps the most recently
 * used ones. Running a primitive allocates nothing (cells.c). gemm.c cuts products into these. */
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

/* Creates the engine of a stream of `threads` threads. */
DPT_MUST_USE enum dpt_status dpt_gemm_engine_create(int threads, struct dpt_gemm_engine **ret,
                                                    struct dpt_err *err);
void dpt_gemm_engine_destroy(struct dpt_gemm_engine **engine);

/* Prepares the calling thread for products: from now on OpenMP reports one thread to it. A product
 * calls it as well, at the cost of a small allocation if the thread did not call it before. */
void dpt_gemm_thread_begin(void);

/* Prepares the library for this process and returns its name with the instruction set in use:
 * "onednn-2.6.3 isa-e7". Called by the main thread before any engine is created. The first call
 * limits the instruction set for the life of the process. DPT_EUNSUPPORTED when the machine does
 * not have `limit` or an earlier call set another limit. */
DPT_MUST_USE enum dpt_status dpt_onednn_open(enum dpt_cpu_isa limit, char *ret_text, size_t bytes,
                                             struct dpt_err *err);

/* Whether the library multiplies tiles as gemm.h promises: on AVX-512 and later. If not, it is
 * asked for no primitive. */
bool dpt_onednn_multiplies(const struct dpt_gemm_engine *e);

/* The operands' type in a product of tensors of `dtype`: bf16 if the machine multiplies bf16
 * (AVX512_BF16 or AMX), else f32. */
enum dpt_dtype dpt_onednn_operands(const struct dpt_gemm_engine *e, enum dpt_dtype dtype);

/* m > 0: a matmul, c (m,n) f32 = a (m,k) b (k,n); a and c are dense, b is in blocked form. m == 0:
 * a reorder. It makes the blocked form of b (k,n) from memory in which element (i,j) is b[i*b_row +
 * j*b_col]. `operands` is what dpt_onednn_operands returned. */
struct dpt_primitive_shape {
    enum dpt_dtype operands;
    int64_t m, n, k;
    int64_t b_row, b_col; /* of a reorder */
};

/* Returns the primitive of this shape, which the engine owns. It stays until some hundreds of other
 * shapes have been asked for. NULL, with *err filled, on failure. */
struct dpt_primitive *dpt_onednn_primitive(struct dpt_gemm_engine *e,
                                           const struct dpt_primitive_shape *shape,
                                           struct dpt_err *err);

/* Bytes of b's blocked form, and bytes of scratch memory for a run. Both must be aligned to 64 in a
 * run. */
size_t dpt_onednn_b_bytes(const struct dpt_primitive *p);
size_t dpt_onednn_scratch_bytes(const struct dpt_primitive *p);

/* Runs the primitive as thread `thread` of the stream. Arguments of a matmul: a, b, c, scratch
 * memory; of a reorder: b plain, b blocked, scratch memory. Returns the library's status, 0 for
 * success. */
int dpt_onednn_run(struct dpt_gemm_engine *e, const struct dpt_primitive *p, int thread,
                   const void *const arguments[]);

/* Translates the library's status into an error; 0 is DPT_OK. */
enum dpt_status dpt_onednn_error(int status, const char *what, struct dpt_err *err);

#endif
