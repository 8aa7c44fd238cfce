/* cuDNN's descriptors (cudnn_graph.h). Each descriptor is created, given its attributes one by one,
 * and finalized. */
#include "kernels/cuda/cudnn_graph.h"

#include "kernels/cuda/cudnn_calls.h"

#include <stdlib.h>

#define CALL(name) (*dpt_cudnn_calls()->name)

enum { CONFIGS_MAX = 16, NOTES_MAX = CUDNN_NUMERICAL_NOTE_TYPE_COUNT, ALIGN_BYTES = 16 };

struct dpt_cudnn_plan {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t plan;
    int64_t workspace;
};

/* ---- descriptors ---- */

/* True for success. Otherwise keeps the error, with cuDNN's text, if it is the builder's first. */
static bool call_succeeds(struct dpt_cudnn_builder *b, cudnnStatus_t code)
{
    char words[512] = "";
    if (code == CUDNN_STATUS_SUCCESS)
        return true;
    CALL(GetLastErrorString)(words, sizeof words);
    const enum dpt_status status =
        code == CUDNN_STATUS_ALLOC_FAILED ? DPT_ENOMEM
        : code >= CUDNN_STATUS_NOT_SUPPORTED && code < CUDNN_STATUS_INTERNAL_ERROR
            ? DPT_EUNSUPPORTED
            : DPT_EDEVICE;
    if (b->error.status == DPT_OK)
        (void)dpt_fail(&b->error, status, "cuDNN: %s: %s: %s", b->what, CALL(GetErrorString)(code),
                       words);
    return false;
}

/* After an error of the builder, none of these functions does anything. */

static cudnnBackendDescriptor_t create_descriptor(struct dpt_cudnn_builder *b,
                                                  cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (b->error.status == DPT_OK)
        (void)call_succeeds(b, CALL(BackendCreateDescriptor)(type, &made));
    return made;
}

static void set_attribute(struct dpt_cudnn_builder *b, cudnnBackendDescriptor_t of,
                          cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                          int64_t n, const void *values)
{
    if (b->error.status == DPT_OK)
        (void)call_succeeds(b, CALL(BackendSetAttribute)(of, name, type, n, values));
}

static void set_descriptor(struct dpt_cudnn_builder *b, cudnnBackendDescriptor_t of,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value)
{
    set_attribute(b, of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&value);
}

/* Returns the number of values; writes at most `most` of them. */
static int64_t get_attribute(struct dpt_cudnn_builder *b, cudnnBackendDescriptor_t of,
                             cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                             int64_t most, void *ret)
{
    int64_t n = 0;
    if (b->error.status == DPT_OK)
        (void)call_succeeds(b, CALL(BackendGetAttribute)(of, name, type, most, &n, ret));
    return n;
}

static void finalize_descriptor(struct dpt_cudnn_builder *b, cudnnBackendDescriptor_t d)
{
    if (b->error.status == DPT_OK)
        (void)call_succeeds(b, CALL(BackendFinalize)(d));
}

static void destroy_descriptor(cudnnBackendDescriptor_t d)
{
    if (d)
        (void)CALL(BackendDestroyDescriptor)(d);
}

void dpt_cudnn_graph_fini(struct dpt_cudnn_graph *g)
{
    for (int i = 0; i < g->n_ops; i++)
        destroy_descriptor(g->ops[i]);
    for (int i = 0; i < g->n_tensors; i++)
        destroy_descriptor(g->tensors[i]);
    g->n_ops = g->n_tensors = 0;
}

/* ---- tensors ---- */

static int add_tensor(struct dpt_cudnn_graph *g, cudnnDataType_t type, const int64_t dims[4],
                      const int64_t strides[4], bool is_virtual, bool by_value)
{
    struct dpt_cudnn_builder *b = &g->builder;
    const int64_t id = g->n_tensors, align = ALIGN_BYTES;
    DPT_ASSERT(g->n_tensors < DPT_CUDNN_TENSORS_MAX);
    b->what = "a tensor";
    cudnnBackendDescriptor_t t = create_descriptor(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    set_attribute(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize_descriptor(b, t);
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

static void set_tensor(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t op,
                       cudnnBackendAttributeName_t name, int tensor)
{
    set_descriptor(&g->builder, op, name, g->tensors[tensor]);
}

/* Creates the descriptor of an operation that computes in f32. The caller sets the other
 * attributes. */
static cudnnBackendDescriptor_t create_kind(struct dpt_cudnn_graph *g, const char *what,
                                            cudnnBackendDescriptorType_t type,
                                            cudnnBackendAttributeName_t computes)
{
    const cudnnDataType_t f32 = CUDNN_DATA_FLOAT;
    g->builder.what = what;
    cudnnBackendDescriptor_t kind = create_descriptor(&g->builder, type);
    set_attribute(&g->builder, kind, computes, CUDNN_TYPE_DATA_TYPE, 1, &f32);
    return kind;
}

/* Adds a finished operation to the graph and destroys its descriptor `kind`. */
static void add_op(struct dpt_cudnn_graph *g, cudnnBackendDescriptor_t op,
                   cudnnBackendDescriptor_t kind)
{
    DPT_ASSERT(g->n_ops < DPT_CUDNN_OPS_MAX);
    finalize_descriptor(&g->builder, op);
    destroy_descriptor(kind);
    g->ops[g->n_ops++] = op;
}

void dpt_cudnn_matmul(struct dpt_cudnn_graph *g, int a, int b, int to)
{
    struct dpt_cudnn_builder *d = &g->builder;
    cudnnBackendDescriptor_t kind =
        create_kind(g, "a product", CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE);
    finalize_descriptor(d, kind);
    cudnnBackendDescriptor_t op = create_descriptor(d, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to);
    set_descriptor(d, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
    add_op(g, op, kind);
}

void dpt_cudnn_pointwise(struct dpt_cudnn_graph *g, const struct dpt_cudnn_pointwise *p)
{
    struct dpt_cudnn_builder *b = &g->builder;
    b->what = "an operation on elements";
    cudnnBackendDescriptor_t kind = create_descriptor(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set_attribute(b, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p->mode);
    set_attribute(b, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p->computes);
    if (p->mode == CUDNN_POINTWISE_GEN_INDEX)
        set_attribute(b, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p->axis);
    finalize_descriptor(b, kind);
    cudnnBackendDescriptor_t op =
        create_descriptor(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, p->a);
    if (p->b >= 0)
        set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, p->b);
    if (p->mode == CUDNN_POINTWISE_BINARY_SELECT)
        set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, p->mask);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, p->to);
    add_op(g, op, kind);
}

void dpt_cudnn_reduce(struct dpt_cudnn_graph *g, cudnnReduceTensorOp_t mode, int a, int to)
{
    struct dpt_cudnn_builder *b = &g->builder;
    cudnnBackendDescriptor_t kind =
        create_kind(g, "a sum", CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE);
    set_attribute(b, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
                  &mode);
    finalize_descriptor(b, kind);
    cudnnBackendDescriptor_t op =
        create_descriptor(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, a);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to);
    set_descriptor(b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
    add_op(g, op, kind);
}

void dpt_cudnn_reshape(struct dpt_cudnn_graph *g, int a, int to)
{
    g->builder.what = "another shape";
    cudnnBackendDescriptor_t op =
        create_descriptor(&g->builder, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, a);
    set_tensor(g, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to);
    add_op(g, op, NULL);
}

/* The library's names for one direction of a convolution and for its tensors. */
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
    struct dpt_cudnn_builder *b = &g->builder;
    const struct pass *pass = &passes[c->back];
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t sides = 2, dilations[2] = {1, 1}, strides[2] = {c->stride, c->stride},
                  paddings[2] = {c->padding, c->padding};
    const float one = 1.0f, zero = 0.0f;
    cudnnBackendDescriptor_t kind = create_kind(
        g, "a convolution", CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &sides);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, paddings);
    set_attribute(b, kind, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, paddings);
    finalize_descriptor(b, kind);
    cudnnBackendDescriptor_t op = create_descriptor(b, pass->type);
    set_attribute(b, op, pass->alpha, CUDNN_TYPE_FLOAT, 1, &one);
    set_attribute(b, op, pass->beta, CUDNN_TYPE_FLOAT, 1, &zero);
    set_descriptor(b, op, pass->conv, kind);
    set_tensor(g, op, pass->x, c->x);
    set_tensor(g, op, pass->w, c->w);
    set_tensor(g, op, pass->y, c->y);
    add_op(g, op, kind);
}

/* ---- plans ---- */

/* The target of a plan. Exactly one of handle and device is set. */
struct target {
    cudnnHandle_t handle;            /* or NULL */
    cudnnBackendDescriptor_t device; /* or NULL */
    int64_t max_workspace;
};

/* Whether an engine must not be used: by its own notes it is not deterministic or uses Winograd's
 * transforms. */
static bool is_unfit(cudnnBackendDescriptor_t config)
{
    struct dpt_cudnn_builder b = {.what = "an engine's notes"};
    cudnnBackendNumericalNote_t notes[NOTES_MAX];
    cudnnBackendDescriptor_t engine = create_descriptor(&b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    (void)get_attribute(&b, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                        (void *)&engine);
    const int64_t n = get_attribute(&b, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                    CUDNN_TYPE_NUMERICAL_NOTE, NOTES_MAX, notes);
    bool unfit = b.error.status != DPT_OK;
    for (int64_t i = 0; !unfit && i < n; i++)
        unfit = notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
                notes[i] == CUDNN_NUMERICAL_NOTE_WINOGRAD;
    destroy_descriptor(engine);
    return unfit;
}

/* Returns the plan of this configuration and its workspace in bytes. NULL: the library refuses
 * it. */
static cudnnBackendDescriptor_t plan_of(cudnnBackendDescriptor_t config,
                                        const struct target *target, int64_t *ret_workspace)
{
    struct dpt_cudnn_builder b = {.what = "a plan"};
    cudnnBackendDescriptor_t plan = create_descriptor(&b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_descriptor(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    if (target->handle)
        set_attribute(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                      &target->handle);
    if (target->device)
        set_descriptor(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target->device);
    finalize_descriptor(&b, plan);
    (void)get_attribute(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                        ret_workspace);
    if (b.error.status == DPT_OK)
        return plan;
    destroy_descriptor(plan);
    return NULL;
}

/* Chooses the first configuration that is fit, has a plan, and needs at most max_workspace
 * bytes. */
static enum dpt_status choose_config(cudnnBackendDescriptor_t *configs, int64_t n,
                                     const struct target *target, struct dpt_cudnn_plan *ret,
                                     struct dpt_err *err)
{
    int left_out = 0;
    for (int64_t i = 0; i < n; i++) {
        if (is_unfit(configs[i])) {
            left_out++;
            continue;
        }
        ret->plan = plan_of(configs[i], target, &ret->workspace);
        if (ret->plan && ret->workspace <= target->max_workspace)
            return DPT_OK;
        destroy_descriptor(ret->plan);
        ret->plan = NULL;
    }
    return dpt_fail(
        err, DPT_EUNSUPPORTED,
        "cuDNN: none of %d engines will do, %d of which are not deterministic or not sharp", (int)n,
        left_out);
}

static enum dpt_status find_engine(struct dpt_cudnn_builder *b, cudnnBackendDescriptor_t whole,
                                   const struct target *target, struct dpt_cudnn_plan *ret,
                                   struct dpt_err *err)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnnBackendDescriptor_t configs[CONFIGS_MAX];
    int made = 0;
    b->what = "looking for an engine";
    cudnnBackendDescriptor_t heuristic = create_descriptor(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_descriptor(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole);
    set_attribute(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (target->device)
        set_descriptor(b, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target->device);
    finalize_descriptor(b, heuristic);
    while (made < CONFIGS_MAX && b->error.status == DPT_OK)
        configs[made++] = create_descriptor(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    const int64_t n = get_attribute(b, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS_MAX, (void *)configs);
    enum dpt_status status = b->error.status;
    if (status == DPT_OK)
        status = choose_config(configs, n, target, ret, err);
    else if (err)
        *err = b->error;
    for (int i = 0; i < made; i++)
        destroy_descriptor(configs[i]);
    destroy_descriptor(heuristic);
    return status;
}

enum dpt_status dpt_cudnn_plan_create(struct dpt_cudnn_graph *g, cudnnHandle_t handle,
                                      cudnnBackendDescriptor_t device, int64_t max_workspace,
                                      struct dpt_cudnn_plan **ret, struct dpt_err *err)
{
    const struct target target = {handle, device, max_workspace};
    struct dpt_cudnn_builder *b = &g->builder;
    struct dpt_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return dpt_fail_nomem(err, "a plan of cuDNN's");
    plan->handle = handle;
    b->what = "the whole graph";
    cudnnBackendDescriptor_t whole = create_descriptor(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set_attribute(b, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_ops,
                  g->ops);
    if (handle)
        set_attribute(b, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize_descriptor(b, whole);
    const enum dpt_status status = find_engine(b, whole, &target, plan, err);
    destroy_descriptor(whole);
    if (status == DPT_OK)
        *ret = plan;
    else
        free(plan);
    return status;
}

void dpt_cudnn_plan_destroy(struct dpt_cudnn_plan **plan)
{
    if (!*plan)
        return;
    destroy_descriptor((*plan)->plan);
    free(*plan);
    *plan = NULL;
}

size_t dpt_cudnn_plan_workspace(const struct dpt_cudnn_plan *plan)
{
    return (size_t)plan->workspace;
}

enum dpt_status dpt_cudnn_plan_run(const struct dpt_cudnn_plan *plan, const int64_t *ids,
                                   void *const *pointers, int n, void *workspace,
                                   struct dpt_err *err)
{
    struct dpt_cudnn_builder b = {.what = "running a plan"};
    cudnnBackendDescriptor_t pack = create_descriptor(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n,
                  (const void *)pointers);
    set_attribute(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                  (const void *)&workspace);
    finalize_descriptor(&b, pack);
    if (b.error.status == DPT_OK)
        (void)call_succeeds(&b, CALL(BackendExecute)(plan->handle, plan->plan, pack));
    destroy_descriptor(pack);
    if (b.error.status != DPT_OK && err)
        *err = b.error;
    return b.error.status;
}
