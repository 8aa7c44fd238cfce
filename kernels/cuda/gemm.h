/* Products by cuBLASLt. The shape alone chooses the algorithm, never a measurement: it is the
 * library's first choice within a workspace of fixed size. Only algorithms are allowed that split
 * no sum over blocks, or, for an f32 result, that add the parts of a sum in a fixed order in f32.
 * Therefore the bits of a shape depend only on the library's version and the kind of device, which
 * the fingerprint names. f32 is multiplied in f32, or in TF32 if the device is told to
 * (dpt_device_use_tf32). Sums are f32. */
#ifndef DPT_KERNELS_CUDA_GEMM_H
#define DPT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/stream.h"

/* A product without its addresses. It is the key of a plan. */
struct dpt_cuda_gemm_shape {
    int64_t m, n, k;
    enum dpt_dtype dtype; /* of a and b */
    enum dpt_dtype out;   /* of c and bias: dtype, or f32 */
    int64_t lda, ldb, ldc;
    bool a_transposed; /* a is (k, m) in memory */
    bool b_transposed; /* b is (n, k) in memory */
    bool with_bias;
    bool with_slope; /* c is multiplied by the slope of GELU before it is rounded */
};

/* c (m, n) = or += a (m, k) b (k, n) + bias. All matrices are row-major, rows `ld` elements
 * apart. */
struct dpt_cuda_gemm {
    struct dpt_cuda_gemm_shape of;
    const void *a, *b;
    void *c;
    bool accumulate;
    const void *bias;     /* (n) */
    const void *slope_at; /* (m, n) of type `out`, rows ldc apart: GELU's input */
};

/* Runs a product without bias and slope, or only prepares it while the stream prepares. Each
 * operand begins at a multiple of 16 bytes, or of the largest power of two below 16 that divides
 * the bytes of its rows; otherwise DPT_EINVAL. Errors stick to the stream. */
void dpt_cuda_gemm(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g);

/* The same for a product with_bias or with_slope. False: the library has no algorithm for the
 * shape, and nothing was posted. */
bool dpt_cuda_gemm_fused(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g);

/* A library loads a kernel into the device at the kernel's first launch. Loading may wait for
 * everything that is under way on the device, including transfers that wait for other ranks.
 * Therefore each prepared product runs once before the first transfer, on scratch memory of
 * cold_bytes. cold_bytes is 0 when all have run. */
size_t dpt_cuda_gemm_cold_bytes(const struct dpt_cuda_stream *s);
void dpt_cuda_gemm_warm_up(struct dpt_cuda_stream *s, void *memory);

/* Creates the plans of a stream. The first product allocates their workspace from the device. */
DPT_MUST_USE enum dpt_status dpt_cuda_gemm_engine_create(struct dpt_cuda_gemm_engine **ret,
                                                         struct dpt_err *err);
/* No product may be under way. */
void dpt_cuda_gemm_engine_destroy(struct dpt_cuda_gemm_engine **engine, struct dpt_device *dev);

#endif
