/* cuDNN's descriptors (cudnn_graph.h): each is created, given its attributes one by one, and
 * finalized. */
#include "kernels/cuda/cudnn_graph.h"

#include "kernels/cuda/cudnn_calls.h"

#include <stdlib.h>
#include <string.h>

#define CALL(name) (*dpt_cudnn_calls()->name)

enum { CONFIGS_MAX = 16, NOTES_MAX = CUDNN_NUMERICAL_NOTE_TYPE_COUNT, ALIGN_BYTES = 16 };

struct dpt_cudnn_plan {
    cudnnBackendDescriptor_t plan;
    int64_t workspace;
};

/* ---- descriptors ---- */

static enum dpt_status told(struct dpt_err *err, cudnnStatus_t code, const char *what)
{
    char words[512] = "";
    CALL(GetLastErrorString)(words, sizeof words);
    const enum dpt_status status =
        code == CUDNN_STATUS_ALLOC_FAILED ? DPT_ENOMEM
        : code >= CUDNN_STATUS_NOT_SUPPORTED && code < CUDNN_STATUS_INTERNAL_ERROR
            ? DPT_EUNSUPPORTED
            : DPT_EDEVICE;
    return dpt_fail(err, status, "cuDNN: %s: %s: %s", what, CALL(GetErrorString)(code), words);
}

static bool fits(struct dpt_cudnn_graph *g, cudnnStatus_t code, const char *what)
{
    if (code != CUDNN_STATUS_SUCCESS && g->error.status == DPT_OK)
        (void)told(&g->error, code, what);
    return g->error.status == DPT_OK;
}

static cudnnBackendDescriptor_t make(struct dpt_cudnn_graph *g, cudnnBackendDescriptorType_t type,
                                     const char *what)
{
    cudnnBackendDescriptor_t made = NULL;
    if (g->error.status == DPT_OK)
        (void)fits(g, CALL(BackendCreateDescriptor)(type, &made), what);
    return made;
}

static void set(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t of,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *values, const char *what)
{
    if (g->error.status == DPT_OK)
        (void)fits(g, CALL(BackendSetAttribute)(of, name, type, n, values), what);
}

static void finalize(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what)
{
    if (g->error.status == DPT_OK)
        (void)fits(g, CALL(BackendFinalize)(d), what);
}

static void drop(cudnnBackendDescriptor_t d)
{
    if (d)
        (void)CALL(BackendDestroyDescriptor)(d);
}

void dpt_cudnn_graph_init(struct dpt_cudnn_graph *g)
{
    memset(g, 0, sizeof *g);
}

void dpt_cudnn_graph_fini(struct dpt_cudnn_graph *g)
{
    for (int i = 0; i < g->n_ops; i++)
        drop(g->ops[i]);
    for (int i = 0; i < g->n_tensors; i++)
        drop(g->tensors[i]);
    g->n_ops = g->n_tensors = 0;
}

/* ---- tensors ---- */

static int add_tensor(struct dpt_cudnn_graph *g, cudnnDataType_t type, const int64_t dims[4],
                      const int64_t strides[4], bool is_virtual, bool by_value)
{
    static const char what[] = "a tensor";
    const int64_t id = g->n_tensors, align = ALIGN_BYTES;
    DPT_ASSERT(g->n_tensors < DPT_CUDNN_TENSORS_MAX);
    cudnnBackendDescriptor_t t = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims, what);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides, what);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id, what);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align, what);
    set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value, what);
    finalize(g, t, what);
    g->tensors[g->n_tensors] = t;
    return g->n_tensors++;
}

int dpt_cudnn_tensor(struct dpt_cudnn_graph *g, cudnnDataType_t type, const int64_t dims[4],
                     const int64_t strides[4])
{
    return add_tensor(g, type, dims, strides, false, false);
}

int dpt_cudnn_scalar(struct dpt_cudnn_graph *g)
{
    static const int64_t one[4] = {1, 1, 1, 1};
    return add_tensor(g, CUDNN_DATA_FLOAT, one, one, false, true);
}

int dpt_cudnn_virtual(struct dpt_cudnn_graph *g, cudnnDataType_t type, const int64_t dims[4],
                      const int64_t strides[4])
{
    return add_tensor(g, type, dims, strides, true, false);
}

/* ---- operations ---- */

static void give(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t op,
                 cudnnBackendAttributeName_t name, int tensor, const char *what)
{
    set(g, op, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &g->tensors[tensor], what);
}

/* Finishes an operation, and lets go of what it was described with. */
static void add_op(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t op,
                   cudnnBackendDescriptor_t kind, const char *what)
{
    DPT_ASSERT(g->n_ops < DPT_CUDNN_OPS_MAX);
    finalize(g, op, what);
    drop(kind);
    g->ops[g->n_ops++] = op;
}

void dpt_cudnn_matmul(struct dpt_cudnn_graph *g, int a, int b, int to)
{
    static const char what[] = "a product";
    const cudnnDataType_t computes = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(g, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computes, what);
    finalize(g, kind, what);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    give(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    give(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    give(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to, what);
    set(g, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind, what);
    add_op(g, op, kind, what);
}

void dpt_cudnn_pointwise(struct dpt_cudnn_graph *g, const struct dpt_cudnn_pointwise *p)
{
    static const char what[] = "an operation on elements";
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(g, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode, what);
    set(g, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->computes, what);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        set(g, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis, what);
    finalize(g, kind, what);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        &kind, what);
    give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->a, what);
    if (p->b >= 0)
        give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b, what);
    if (p->mode == CUDNN_POINTWISE_BINARY_SELECT)
        give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->mask, what);
    give(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->to, what);
    add_op(g, op, kind, what);
}

void dpt_cudnn_reduce(struct dpt_cudnn_graph *g, cudnnReduceTensorOp_t mode, int a, int to)
{
    static const char what[] = "a sum";
    const cudnnDataType_t computes = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(g, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode, what);
    set(g, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computes, what);
    finalize(g, kind, what);
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    give(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, a, what);
    give(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to, what);
    set(g, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind, what);
    add_op(g, op, kind, what);
}

void dpt_cudnn_reshape(struct dpt_cudnn_graph *g, int a, int to)
{
    static const char what[] = "another shape";
    cudnnBackendDescriptor_t op = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    give(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, a, what);
    give(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to, what);
    add_op(g, op, NULL, what);
}

/* What a convolution is called, forward and back, and its tensors. */
struct pass {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, x, w, y;
};

static const struct pass passes[2] = {
    [false] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
    [true] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}};

void dpt_cudnn_convolution(struct dpt_cudnn_graph *g, const struct dpt_cudnn_convolution *c)
{
    static const char what[] = "a convolution";
    const struct pass *pass = &passes[c->back];
    const cudnnDataType_t computes = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t sides = 2, dilations[2] = {1, 1}, strides[2] = {c->stride, c->stride},
                  paddings[2] = {c->padding, c->padding};
    const float one = 1.0f, zero = 0.0f;
    cudnnBackendDescriptor_t kind = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &computes, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, paddings, what);
    set(g, kind, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, paddings, what);
    finalize(g, kind, what);
    cudnnBackendDescriptor_t op = make(g, pass->type, what);
    set(g, op, pass->alpha, CUDNN_TYPE_FLOAT, 1, &one, what);
    set(g, op, pass->beta, CUDNN_TYPE_FLOAT, 1, &zero, what);
    set(g, op, pass->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &kind, what);
    give(g, op, pass->x, c->x, what);
    give(g, op, pass->w, c->w, what);
    give(g, op, pass->y, c->y, what);
    add_op(g, op, kind, what);
}

/* ---- plans ---- */

/* Whether an engine says of itself that two runs may differ, or that it transforms its operands. */
static bool is_unfit(cudnnBackendDescriptor_t config)
{
    cudnnBackendDescriptor_t engine = NULL;
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    int64_t n = 0, one = 0;
    bool found = true;
    if (CALL(BackendCreateDescriptor)(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return true;
    if (CALL(BackendGetAttribute)(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one,
                                  (void *)&engine) == CUDNN_STATUS_SUCCESS &&
        CALL(BackendGetAttribute)(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                  CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, &n,
                                  notes) == CUDNN_STATUS_SUCCESS) {
        found = false;
        for (int64_t i = 0; i < n; i++)
            found = found || notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
                    notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD;
    }
    drop(engine);
    return found;
}

/* A plan of this configuration; its workspace. NULL: it is of no use. */
static cudnnBackendDescriptor_t plan_of(cudnnBackendDescriptor_t config, cudnnHandle_t handle,
                                        cudnnBackendDescriptor_t device, int64_t *ret_workspace)
{
    cudnnBackendDescriptor_t plan = NULL;
    int64_t n = 0;
    cudnnStatus_t code =
        CALL(BackendCreateDescriptor)(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendSetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&config);
    if (code == CUDNN_STATUS_SUCCESS && handle)
        code = CALL(BackendSetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
                                         1, &handle);
    if (code == CUDNN_STATUS_SUCCESS && device)
        code = CALL(BackendSetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&device);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendFinalize)(plan);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendGetAttribute)(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &n, ret_workspace);
    if (code == CUDNN_STATUS_SUCCESS)
        return plan;
    drop(plan);
    return NULL;
}

/* The first of the configurations that will do. */
static enum dpt_status choose(cudnnBackendDescriptor_t *configs, int64_t n, cudnnHandle_t handle,
                              cudnnBackendDescriptor_t device, int64_t max_workspace,
                              struct dpt_cudnn_plan *ret, struct dpt_err *err)
{
    int left_out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (is_unfit(configs[i])) {
            left_out++;
            continue;
        }
        ret->plan = plan_of(configs[i], handle, device, &ret->workspace);
        if (ret->plan && ret->workspace <= max_workspace)
            return DPT_OK;
        drop(ret->plan);
        ret->plan = NULL;
    }
    return dpt_fail(
        err, DPT_EUNSUPPORTED,
        "cuDNN: none of %d engines will do, %d of which are not deterministic or not sharp", (int)n,
        left_out);
}

static enum dpt_status ask(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t whole,
                           cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                           int64_t max_workspace, struct dpt_cudnn_plan *ret, struct dpt_err *err)
{
    static const char what[] = "looking for an engine";
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t configs[CONFIGS_MAX];
    int64_t n = 0;
    int made = 0;
    cudnnBackendDescriptor_t heuristic = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
        (const void *)&whole, what);
    set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (device)
        set(g, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
            (const void *)&device, what);
    finalize(g, heuristic, what);
    while (made < CONFIGS_MAX && g->error.status == DPT_OK)
        configs[made++] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    if (g->error.status == DPT_OK)
        (void)fits(g,
                   CALL(BackendGetAttribute)(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MAX, &n,
                                             (void *)configs),
                   what);
    enum dpt_status status = g->error.status;
    if (status == DPT_OK)
        status = choose(configs, n, handle, device, max_workspace, ret, err);
    else if (err)
        *err = g->error;
    for (int i = 0; i < made; i++)
        drop(configs[i]);
    drop(heuristic);
    return status;
}

enum dpt_status dpt_cudnn_plan_create(struct dpt_cudnn_graph *g, cudnnHandle_t handle,
                                      cudnnBackendDescriptor_t device, int64_t max_workspace,
                                      struct dpt_cudnn_plan **ret, struct dpt_err *err)
{
    static const char what[] = "the whole graph";
    struct dpt_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return dpt_fail(err, DPT_ENOMEM, "a plan of cuDNN's");
    cudnnBackendDescriptor_t whole = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops, g->ops,
        what);
    if (handle)
        set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, what);
    finalize(g, whole, what);
    enum dpt_status status = g->error.status;
    if (status == DPT_OK)
        status = ask(g, whole, handle, device, max_workspace, plan, err);
    else if (err)
        *err = g->error;
    drop(whole);
    if (status != DPT_OK) {
        free(plan);
        return status;
    }
    *ret = plan;
    return DPT_OK;
}

void dpt_cudnn_plan_destroy(struct dpt_cudnn_plan **plan)
{
    if (!*plan)
        return;
    drop((*plan)->plan);
    free(*plan);
    *plan = NULL;
}

size_t dpt_cudnn_plan_workspace(const struct dpt_cudnn_plan *plan)
{
    return (size_t)plan->workspace;
}

enum dpt_status dpt_cudnn_plan_run(const struct dpt_cudnn_plan *plan, cudnnHandle_t handle,
                                   const int *which, void *const *pointers, int n, void *workspace,
                                   struct dpt_err *err)
{
    int64_t ids[DPT_CUDNN_TENSORS_MAX];
    cudnnBackendDescriptor_t pack = NULL;
    DPT_ASSERT(n <= DPT_CUDNN_TENSORS_MAX);
    for (int i = 0; i < n; i++)
        ids[i] = which[i];
    cudnnStatus_t code =
        CALL(BackendCreateDescriptor)(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendSetAttribute)(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                         n, ids);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendSetAttribute)(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                         CUDNN_TYPE_VOID_PTR, n, (const void *)pointers);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendSetAttribute)(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                         CUDNN_TYPE_VOID_PTR, 1, (const void *)&workspace);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendFinalize)(pack);
    if (code == CUDNN_STATUS_SUCCESS)
        code = CALL(BackendExecute)(handle, plan->plan, pack);
    drop(pack);
    return code == CUDNN_STATUS_SUCCESS ? DPT_OK : told(err, code, "running a plan");
}
