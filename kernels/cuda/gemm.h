/* Products by cuBLASLt. The algorithm is chosen by shape and never by timing: it is the library's
 * first for the shape within a workspace of fixed size, among those that split no sum over blocks,
 * or, where the result is f32, add the parts of one in a fixed order in f32; so a shape's bits are
 * those of the library's version and the kind of device, which the fingerprint names. f32 is
 * multiplied in f32, or in TF32 where the device is told to (dpt_device_use_tf32); the sums are
 * f32. */
#ifndef DPT_KERNELS_CUDA_GEMM_H
#define DPT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/stream.h"

/* All of a product except the addresses: the key of a plan. */
struct dpt_cuda_gemm_shape {
    int64_t m, n, k;
    enum dpt_dtype dtype; /* of a and b */
    enum dpt_dtype out;   /* of c and bias: dtype, or f32 */
    int64_t lda, ldb, ldc;
    bool a_transposed; /* a lies as (k, m) */
    bool b_transposed; /* b lies as (n, k) */
    bool with_bias;
    bool with_slope; /* c is multiplied by the slope of GELU before it is rounded */
};

/* c (m, n) = or += a (m, k) b (k, n) + bias; all row-major, rows `ld` elements apart. */
struct dpt_cuda_gemm {
    struct dpt_cuda_gemm_shape of;
    const void *a, *b;
    void *c;
    bool accumulate;
    const void *bias;     /* (n) */
    const void *slope_at; /* (m, n) of `out`, rows ldc apart: the argument of GELU's slope */
};

/* Runs (or, while the stream prepares, only prepares) a product. Operands begin at multiples of 16
 * bytes, or of the largest power of two below that divides their rows' length in bytes: else
 * DPT_EINVAL. Errors stick to the stream. Neither with_bias nor with_slope. */
void dpt_cuda_gemm(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g);

/* The same with_bias or with_slope, if the library has it for the shape. False: it has not; nothing
 * was done. */
bool dpt_cuda_gemm_fused(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g);

/* A library loads a kernel into the device at its first launch, which may wait for all that is
 * under way there, including transfers that wait for other ranks. So each prepared product is run
 * once before the first transfer, on scratch memory of cold_bytes; 0 when all have run. */
size_t dpt_cuda_gemm_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cuda_gemm_warm_up(struct dpt_cuda_stream *s, void *memory);

/* The plans of a stream; its workspace is taken from the device with the first product. */
DPT_MUST_USE enum dpt_status dpt_cuda_gemm_engine_create(struct dpt_cuda_gemm_engine **ret,
                                                         struct dpt_err *err);
/* Nothing may be under way. */
void dpt_cuda_gemm_engine_destroy(struct dpt_cuda_gemm_engine **engine, struct dpt_device *dev);

#endif
