/* kernels/cuda/gemm.h without cuBLASLt, on the host: sums in f32, of each sixteenth k and then of
 * these; and the functions of that library that device.c uses. */
#include "kernels/cuda/gemm.h"

#include "kernels/half.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dpt_cuda_gemm_engine {
    int nothing;
};

enum dpt_status dpt_cuda_gemm_engine_create(struct dpt_cuda_gemm_engine **ret, struct dpt_err *err)
{
    *ret = calloc(1, sizeof **ret);
    return *ret ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "products: out of memory");
}

void dpt_cuda_gemm_engine_destroy(struct dpt_cuda_gemm_engine **engine, struct dpt_device *dev)
{
    (void)dev;
    free(*engine);
    *engine = NULL;
}

static float float_at(const void *p, enum dpt_dtype dtype, int64_t i)
{
    return dtype == DPT_F32    ? ((const float *)p)[i]
           : dtype == DPT_BF16 ? dpt_f32_of_bf16(((const uint16_t *)p)[i])
                               : dpt_f32_of_f16(((const uint16_t *)p)[i]);
}

static void set(void *p, enum dpt_dtype dtype, int64_t i, float x)
{
    if (dtype == DPT_F32)
        ((float *)p)[i] = x;
    else
        ((uint16_t *)p)[i] = dtype == DPT_BF16 ? dpt_bf16_of_f32(x) : dpt_f16_of_f32(x);
}

/* As gemm.c of kernels/cuda promises of every operand. */
static bool aligned(struct dpt_cuda_stream *s, const char *what, const void *p,
                    enum dpt_dtype dtype, int64_t ld)
{
    uintptr_t bytes = 16;
    while ((uint64_t)ld * dpt_dtype_bytes(dtype) % bytes != 0)
        bytes /= 2;
    char text[128];
    (void)snprintf(text, sizeof text, "a product's %s is not aligned to %d bytes", what,
                   (int)bytes);
    if ((uintptr_t)p % bytes != 0)
        dpt_stream_fail(&s->base, DPT_EINVAL, text);
    return (uintptr_t)p % bytes == 0;
}

/* To 10 bits of mantissa, the nearest, the even of two. */
static float as_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0xfffu + ((bits >> 13) & 1)) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* (rows, k) of floats, from rows of k or, transposed, from k rows. */
static float *widened(const void *p, enum dpt_dtype dtype, int64_t rows, int64_t k, int64_t ld,
                      bool transposed, bool tf32)
{
    float *to = malloc((size_t)(rows * k) * sizeof *to);
    if (!to)
        abort();
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < k; j++) {
            const float x = float_at(p, dtype, transposed ? j * ld + i : i * ld + j);
            to[i * k + j] = tf32 ? as_tf32(x) : x;
        }
    return to;
}

static float dot(int64_t n, const float *a, const float *b)
{
    enum { LANES = 16 };
    float sums[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            sums[lane] += a[i + lane] * b[i + lane];
    for (; i < n; i++)
        sums[i % LANES] += a[i] * b[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

static float slope(float x)
{
    const float u = 0.7978845608028654f * (x + 0.044715f * x * x * x), t = tanhf(u);
    return 0.5f * (1 + t) +
           0.5f * x * (1 - t * t) * 0.7978845608028654f * (1 + 3 * 0.044715f * x * x);
}

static void multiply(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(g->of.k > 0);
    if (s->base.error.status != DPT_OK || g->of.m == 0 || g->of.n == 0 || s->base.preparing ||
        !aligned(s, "left operand", g->a, g->of.dtype, g->of.lda) ||
        !aligned(s, "right operand", g->b, g->of.dtype, g->of.ldb) ||
        !aligned(s, "result", g->c, g->of.out, g->of.ldc) ||
        (g->of.with_bias && !aligned(s, "bias", g->bias, g->of.out, g->of.n)) ||
        (g->of.with_slope && !aligned(s, "slopes", g->slope_at, g->of.out, g->of.ldc)))
        return;
    const bool tf32 = g->of.dtype == DPT_F32 && s->base.device->tf32;
    float *a = widened(g->a, g->of.dtype, g->of.m, g->of.k, g->of.lda, g->of.a_transposed, tf32);
    float *b = widened(g->b, g->of.dtype, g->of.n, g->of.k, g->of.ldb, !g->of.b_transposed, tf32);
    for (int64_t i = 0; i < g->of.m; i++)
        for (int64_t j = 0; j < g->of.n; j++) {
            float sum = dot(g->of.k, a + i * g->of.k, b + j * g->of.k);
            if (g->of.with_bias)
                sum += float_at(g->bias, g->of.out, j);
            if (g->of.with_slope)
                sum *= slope(float_at(g->slope_at, g->of.out, i * g->of.ldc + j));
            if (g->accumulate)
                sum += float_at(g->c, g->of.out, i * g->of.ldc + j);
            set(g->c, g->of.out, i * g->of.ldc + j, sum);
        }
    free(a);
    free(b);
}

void dpt_cuda_gemm(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(!g->of.with_bias && !g->of.with_slope);
    multiply(s, g);
}

/* As if the library had no algorithm for some shapes. */
bool dpt_cuda_gemm_fused(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(g->of.with_bias != g->of.with_slope && (g->of.with_bias || g->of.ldc % 8 == 0));
    const bool has = g->of.with_bias ? g->of.ldc % 8 == 0 : g->of.ldc % 16 == 0;
    if (has)
        multiply(s, g);
    return has;
}

size_t dpt_cuda_gemm_cold_bytes(const struct dpt_cuda_stream *s)
{
    (void)s;
    return 0;
}

void dpt_cuda_gemm_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    (void)s;
    (void)memory;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    *ret = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    (void)status;
    return "emulated";
}

size_t cublasLtGetVersion(void)
{
    return 0;
}
