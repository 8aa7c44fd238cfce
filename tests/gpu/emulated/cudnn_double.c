/* cuDNN's graph API on the host (kernels/cuda/cudnn_calls.h): descriptors are kept here, a graph is
 * carried out by cudnn_double_ops.c. Whether the library has an engine for a graph plans_test.c
 * asks itself. Only with DPT_CUDNN=double: else there is no cuDNN. */
#include "tests/gpu/emulated/cudnn_double.h"

#include <string.h>

enum { WORKSPACE_BYTES = 128 };

/* ---- descriptors ---- */

static struct descriptor *descriptor_at(cudnnBackendDescriptor_t d)
{
    MUST(d);
    return d;
}

const void *double_get(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    MUST(d->of[name].count > 0);
    return d->of[name].values;
}

struct descriptor *double_child(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    struct descriptor *found;
    memcpy(&found, double_get(d, name), sizeof found);
    return found;
}

int64_t double_number(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    int value;
    memcpy(&value, double_get(d, name), sizeof value);
    return value;
}

const int64_t *double_numbers(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    return double_get(d, name);
}

bool double_flag(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    bool value;
    memcpy(&value, double_get(d, name), sizeof value);
    return value;
}

float double_factor(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    float value;
    memcpy(&value, double_get(d, name), sizeof value);
    return value;
}

static cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                       cudnnBackendDescriptor_t *ret)
{
    struct descriptor *d = calloc(1, sizeof *d);
    MUST(d);
    d->type = type;
    *ret = d;
    return CUDNN_STATUS_SUCCESS;
}

/* A graph, in its plan, outlives the descriptors that it was made of: nothing is freed before the
 * plan's end, when the process's tests end. */
static cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t d)
{
    (void)descriptor_at(d);
    return CUDNN_STATUS_SUCCESS;
}

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
        return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default:
        return sizeof(int);
    }
}

static cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t count,
                                   const void *values)
{
    struct descriptor *d = descriptor_at(descriptor);
    const size_t bytes = (size_t)count * bytes_of(type);
    MUST(!d->finalized && bytes <= VALUES_BYTES && count > 0);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            MUST(((struct descriptor *const *)values)[i]->finalized);
    d->of[name].count = count;
    memcpy(d->of[name].values, values, bytes);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t d)
{
    MUST(!descriptor_at(d)->finalized);
    descriptor_at(d)->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

/* One engine for every graph; a deterministic one. */
static cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t room,
                                   int64_t *ret_count, void *ret)
{
    struct descriptor *d = descriptor_at(descriptor), **configs = ret;
    const int64_t workspace = WORKSPACE_BYTES;
    (void)type;
    MUST(room > 0);
    *ret_count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        MUST(d->finalized);
        configs[0]->of[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] =
            d->of[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH];
        configs[0]->finalized = true;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *ret_count = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        memcpy(ret, &workspace, sizeof workspace);
        return CUDNN_STATUS_SUCCESS;
    default:
        MUST(!"an attribute that is asked for");
        return CUDNN_STATUS_BAD_PARAM;
    }
}

/* ---- execution, and the rest ---- */

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    const struct descriptor *config =
        double_child(descriptor_at(plan), CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    (void)handle;
    double_execute(double_child(config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
                   descriptor_at(pack));
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t create(cudnnHandle_t *ret)
{
    static char handle;
    *ret = (cudnnHandle_t)(void *)&handle;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(cudnnHandle_t handle)
{
    (void)handle;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, void *queue)
{
    (void)handle;
    (void)queue;
    return CUDNN_STATUS_SUCCESS;
}

static size_t version(void)
{
    return 90000;
}

static const char *error_string(cudnnStatus_t code)
{
    (void)code;
    return "an error of the double";
}

static void last_error(char *ret, size_t bytes)
{
    if (bytes > 0)
        ret[0] = '\0';
}

const struct dpt_cudnn_calls *dpt_cudnn_calls(void)
{
    static const struct dpt_cudnn_calls calls = {.Create = create,
                                                 .Destroy = destroy,
                                                 .SetStream = set_stream,
                                                 .GetVersion = version,
                                                 .GetErrorString = error_string,
                                                 .GetLastErrorString = last_error,
                                                 .BackendCreateDescriptor = create_descriptor,
                                                 .BackendDestroyDescriptor = destroy_descriptor,
                                                 .BackendSetAttribute = set_attribute,
                                                 .BackendGetAttribute = get_attribute,
                                                 .BackendFinalize = finalize,
                                                 .BackendExecute = execute};
    const char *wanted = getenv("DPT_CUDNN");
    return wanted && strcmp(wanted, "double") == 0 ? &calls : NULL;
}
