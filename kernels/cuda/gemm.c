/* Products by cuBLASLt (gemm.h). Its matrices are column-major, so to the library a row-major
 * matrix is the transposed matrix. Therefore it computes c^T = b^T a^T, on the operands as they are
 * in memory. */
#include "kernels/cuda/gemm.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLANS_MAX = 512,            /* shapes of a stream; a new one replaces the oldest */
    WORKSPACE_BYTES = 64 << 20, /* fixed, because it decides which algorithms fit */
    SPLIT_UNIT = 128,           /* of the length k of a sum that may be split */
    ALIGNMENT_BYTES = 16        /* promised for every operand whose row length allows it */
};

struct plan {
    struct dpt_cuda_gemm_shape of;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    bool refused; /* the library has no algorithm with this bias or slope */
    bool ran;
};

struct dpt_cuda_gemm_engine {
    struct plan plans[PLANS_MAX];
    int n, next;
    void *workspace;
};

enum dpt_status dpt_cuda_gemm_engine_create(struct dpt_cuda_gemm_engine **ret, struct dpt_err *err)
{
    *ret = calloc(1, sizeof **ret);
    return *ret ? DPT_OK : dpt_fail_nomem(err, "plans of products");
}

static void plan_fini(struct plan *p)
{
    if (p->product)
        (void)cublasLtMatmulDescDestroy(p->product);
    if (p->a)
        (void)cublasLtMatrixLayoutDestroy(p->a);
    if (p->b)
        (void)cublasLtMatrixLayoutDestroy(p->b);
    if (p->c)
        (void)cublasLtMatrixLayoutDestroy(p->c);
    memset(p, 0, sizeof *p);
}

void dpt_cuda_gemm_engine_destroy(struct dpt_cuda_gemm_engine **engine, struct dpt_device *dev)
{
    if (!*engine)
        return;
    for (int i = 0; i < (*engine)->n; i++)
        plan_fini(&(*engine)->plans[i]);
    dpt_device_free_for(dev, DPT_MEMORY_WORKSPACE, (*engine)->workspace, WORKSPACE_BYTES);
    free(*engine);
    *engine = NULL;
}

static cudaDataType_t type_of(enum dpt_dtype dtype)
{
    static const cudaDataType_t types[DPT_DTYPE_COUNT] = {CUDA_R_32F, CUDA_R_16BF, CUDA_R_16F};
    return types[dtype];
}

/* The alignment of every row of an operand, if the operand itself is aligned. It depends on the
 * shape alone, so an operand's address never changes the algorithm. */
static uint32_t row_alignment(enum dpt_dtype dtype, int64_t ld)
{
    uint32_t bytes = ALIGNMENT_BYTES;
    while ((uint64_t)ld * dpt_dtype_bytes(dtype) % bytes != 0)
        bytes /= 2;
    return bytes;
}

static bool blas_ok(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm_shape *k,
                    cublasStatus_t status)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    char text[256];
    (void)snprintf(text, sizeof text, "cuBLASLt: product of %lld x %lld x %lld, dtype %d to %d: %s",
                   (long long)k->m, (long long)k->k, (long long)k->n, (int)k->dtype, (int)k->out,
                   cublasLtGetStatusName(status));
    dpt_stream_fail(&s->base, status == CUBLAS_STATUS_ALLOC_FAILED ? DPT_ENOMEM : DPT_EDEVICE,
                    text);
    return false;
}

static cublasStatus_t create_layout(cublasLtMatrixLayout_t *ret, enum dpt_dtype dtype, int64_t rows,
                                    int64_t cols, int64_t ld)
{
    return cublasLtMatrixLayoutCreate(ret, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld);
}

static cublasStatus_t set_attribute(const struct plan *p, cublasLtMatmulDescAttributes_t name,
                                    const void *value, size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(p->product, name, value, bytes);
}

static cublasStatus_t set_bias(const struct plan *p, const void *bias)
{
    return set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
}

static cublasStatus_t set_slope(const struct plan *p, const void *slope_at)
{
    return set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &slope_at, sizeof slope_at);
}

/* The operation that the library applies to a product before it stores it. */
static cublasLtEpilogue_t epilogue_of(const struct dpt_cuda_gemm_shape *k)
{
    if (k->with_slope)
        return CUBLASLT_EPILOGUE_DGELU;
    return k->with_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* Fills in everything but the algorithm. Our b is the library's first operand, a its second. */
static bool describe_plan(struct dpt_cuda_stream *s, struct plan *p)
{
    const struct dpt_cuda_gemm_shape *k = &p->of;
    const cublasOperation_t first = k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(k);
    const cublasComputeType_t how = k->dtype == DPT_F32 && s->base.device->tf32
                                        ? CUBLAS_COMPUTE_32F_FAST_TF32
                                        : CUBLAS_COMPUTE_32F;
    /* The library chooses an algorithm also by the alignment of the bias and slope addresses. The
     * addresses given here have exactly the alignment that the real ones are promised to have. */
    const uint32_t bias_bytes = row_alignment(k->out, k->n);
    const char *bias = s->gemm->workspace;
    bias += bias_bytes < ALIGNMENT_BYTES ? bias_bytes : 0;
    cublasStatus_t status = cublasLtMatmulDescCreate(&p->product, how, CUDA_R_32F);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = create_layout(&p->b, k->dtype, k->b_transposed ? k->k : k->n,
                               k->b_transposed ? k->n : k->k, k->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = create_layout(&p->a, k->dtype, k->a_transposed ? k->m : k->k,
                               k->a_transposed ? k->k : k->m, k->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = create_layout(&p->c, k->out, k->n, k->m, k->ldc);
    if (status == CUBLAS_STATUS_SUCCESS && k->with_bias)
        status = set_bias(p, bias);
    if (status == CUBLAS_STATUS_SUCCESS && k->with_slope)
        status = set_slope(p, s->gemm->workspace);
    if (status == CUBLAS_STATUS_SUCCESS && k->with_slope)
        status = set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof k->ldc);
    return blas_ok(s, k, status);
}

static cublasStatus_t set_preferences(cublasLtMatmulPreference_t preference,
                                      const struct dpt_cuda_gemm_shape *k)
{
    const uint64_t workspace = WORKSPACE_BYTES;
    /* The parts of a split f32 sum are added by a separate kernel, in order. A 16-bit result would
     * be rounded in between, so its sums are not split. Sums are split only if their length is a
     * multiple of SPLIT_UNIT, because some versions are said to lose a remainder
     * (facebookexperimental/triton#2767). */
    const bool may_split = k->out == DPT_F32 && k->k % SPLIT_UNIT == 0;
    const uint32_t scheme =
        may_split ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
    const uint32_t a = row_alignment(k->dtype, k->ldb), b = row_alignment(k->dtype, k->lda);
    const uint32_t c = row_alignment(k->out, k->ldc);
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme, sizeof scheme},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0;
         i < sizeof attributes / sizeof *attributes && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name,
                                                      attributes[i].value, attributes[i].bytes);
    return status;
}

static bool choose_algorithm(struct dpt_cuda_stream *s, struct plan *p)
{
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    memset(&result, 0, sizeof result);
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = set_preferences(preference, &p->of);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(dpt_cuda_device_of(s)->blas, p->product, p->b, p->a,
                                                p->c, p->c, preference, 1, &result, &found);
    if (preference)
        (void)cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found < 1)
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status == CUBLAS_STATUS_SUCCESS)
        status = result.state;
    p->algo = result.algo;
    p->refused = (p->of.with_slope || p->of.with_bias) && status != CUBLAS_STATUS_SUCCESS;
    return p->refused || blas_ok(s, &p->of, status);
}

static bool same_shape(const struct dpt_cuda_gemm_shape *a, const struct dpt_cuda_gemm_shape *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda && a->ldb == b->ldb &&
           a->ldc == b->ldc && a->dtype == b->dtype && a->out == b->out &&
           a->a_transposed == b->a_transposed && a->b_transposed == b->b_transposed &&
           a->with_bias == b->with_bias && a->with_slope == b->with_slope;
}

/* Returns the plan of this shape; makes it if there is none. NULL with the stream's error set. */
static struct plan *plan_of(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm_shape *shape)
{
    struct dpt_cuda_gemm_engine *e = s->gemm;
    for (int i = 0; i < e->n; i++)
        if (same_shape(&e->plans[i].of, shape))
            return &e->plans[i];
    struct plan *p = &e->plans[e->next];
    plan_fini(p);
    p->of = *shape;
    if (!describe_plan(s, p) || !choose_algorithm(s, p)) {
        plan_fini(p);
        return NULL;
    }
    if (e->n < PLANS_MAX)
        e->n++;
    e->next = (e->next + 1) % PLANS_MAX;
    return p;
}

static bool is_aligned(struct dpt_cuda_stream *s, const char *what, const void *p,
                       enum dpt_dtype dtype, int64_t ld)
{
    const uint32_t bytes = row_alignment(dtype, ld);
    if ((uintptr_t)p % bytes == 0)
        return true;
    char text[128];
    (void)snprintf(text, sizeof text, "a product's %s is not aligned to %u bytes", what, bytes);
    dpt_stream_fail(&s->base, DPT_EINVAL, text);
    return false;
}

static bool has_workspace(struct dpt_cuda_stream *s)
{
    struct dpt_err err;
    if (s->gemm->workspace)
        return true;
    const enum dpt_status status = dpt_device_alloc_for(s->base.device, DPT_MEMORY_WORKSPACE,
                                                        WORKSPACE_BYTES, &s->gemm->workspace, &err);
    if (status != DPT_OK)
        dpt_stream_fail(&s->base, status, err.text);
    return status == DPT_OK;
}

static void run_plan(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g, struct plan *plan)
{
    const float one = 1.0f, old = g->accumulate ? 1.0f : 0.0f;
    if (!is_aligned(s, "left operand", g->a, g->of.dtype, g->of.lda) ||
        !is_aligned(s, "right operand", g->b, g->of.dtype, g->of.ldb) ||
        !is_aligned(s, "result", g->c, g->of.out, g->of.ldc) ||
        (g->of.with_bias && (!is_aligned(s, "bias", g->bias, g->of.out, g->of.n) ||
                             !blas_ok(s, &plan->of, set_bias(plan, g->bias)))) ||
        (g->of.with_slope && (!is_aligned(s, "slopes", g->slope_at, g->of.out, g->of.ldc) ||
                              !blas_ok(s, &plan->of, set_slope(plan, g->slope_at)))))
        return;
    plan->ran = true;
    (void)blas_ok(s, &plan->of,
                  cublasLtMatmul(dpt_cuda_device_of(s)->blas, plan->product, &one, g->b, plan->b,
                                 g->a, plan->a, &old, g->c, plan->c, g->c, plan->c, &plan->algo,
                                 s->gemm->workspace, WORKSPACE_BYTES, s->queue));
}

/* False: the library has no algorithm, and nothing was posted. */
static bool run_product(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(g->of.k > 0);
    if (s->base.error.status != DPT_OK || g->of.m == 0 || g->of.n == 0 || !has_workspace(s))
        return true;
    struct plan *plan = plan_of(s, &g->of);
    if (plan && plan->refused)
        return false;
    if (plan && !s->base.preparing)
        run_plan(s, g, plan);
    return true;
}

void dpt_cuda_gemm(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(!g->of.with_slope && !g->of.with_bias);
    (void)run_product(s, g);
}

bool dpt_cuda_gemm_fused(struct dpt_cuda_stream *s, const struct dpt_cuda_gemm *g)
{
    DPT_ASSERT(g->of.with_slope != g->of.with_bias);
    return run_product(s, g);
}

/* --- the first runs --- */

static bool is_cold(const struct plan *p)
{
    return !p->ran && !p->refused;
}

size_t dpt_cuda_gemm_cold_bytes(const struct dpt_cuda_stream *s)
{
    size_t most = 0;
    for (int i = 0; i < s->gemm->n; i++) {
        const struct dpt_cuda_gemm_shape *k = &s->gemm->plans[i].of;
        const int64_t a = (k->a_transposed ? k->k : k->m) * k->lda;
        const int64_t b = (k->b_transposed ? k->n : k->k) * k->ldb;
        const size_t operand = (size_t)(a > b ? a : b) * dpt_dtype_bytes(k->dtype);
        const size_t result = (size_t)(k->m * k->ldc) * dpt_dtype_bytes(k->out);
        const size_t bytes = operand > result ? operand : result;
        if (is_cold(&s->gemm->plans[i]) && bytes > most)
            most = bytes;
    }
    return most;
}

/* All operands share one memory, because the result is not used. A product that accumulates may be
 * another kernel, so it runs too. No product with a bias or slopes accumulates. */
static void run_once(struct dpt_cuda_stream *s, struct plan *p, void *memory)
{
    struct dpt_cuda_gemm g = {
        .of = p->of, .a = memory, .b = memory, .c = memory, .bias = memory, .slope_at = memory};
    run_plan(s, &g, p);
    g.accumulate = true;
    if (!g.of.with_bias && !g.of.with_slope)
        run_plan(s, &g, p);
}

void dpt_cuda_gemm_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    for (int i = 0; i < s->gemm->n; i++)
        if (is_cold(&s->gemm->plans[i]) && s->base.error.status == DPT_OK)
            run_once(s, &s->gemm->plans[i], memory);
}
