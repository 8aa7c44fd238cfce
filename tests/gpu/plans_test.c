/* Whether cuDNN has deterministic plans for our graphs of attention and convolutions
 * (kernels/cuda/attention_plans.h, conv_plans.h) on GPUs that are not here: it compiles them for a
 * description of one. What it computes only a GPU shows (ops_test.c). Skipped (77) where there is
 * no cuDNN, or one that takes no descriptions. */
#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/conv_plans.h"
#include "kernels/cuda/cudnn_calls.h"

#include <stdio.h>
#include <string.h>

enum { SKIPPED = 77 };

/* As cuDNN 9.19 writes them. */
#define GPU(name, version, sms, shared, l2, bytes)                                                 \
    "{\"deviceName\":\"" name "\",\"deviceVer\":" #version ",\"multiProcessorCount\":" #sms        \
    ",\"maxSharedMemoryPerBlockOptin\":" #shared ",\"l2CacheSize\":" #l2                           \
    ",\"totalGlobalMem\":" #bytes ",\"driverVer\":13000,\"cudaDeviceId\":0,\"pciDeviceId\":0,"     \
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"                    \
    "\"regsPerBlock\":65536,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"                    \
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"       \
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"                      \
    "\"supportCoopLaunch\":1,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000}"

static const char *const gpus[] = {
    GPU("NVIDIA H200", 900, 132, 232448, 62914560, 150754820096),
    GPU("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 41943040, 85899345920),
};

/* Of GPT-2's sizes, the smallest, one of no round numbers, and wide heads; and of query heads that
 * share keys, of Llama's sizes and others. */
static const struct dpt_attention_shape shapes[] = {
    {.b = 32, .t = 1024, .heads = 12, .kv_heads = 12, .head_size = 64},
    {.b = 4, .t = 1024, .heads = 25, .kv_heads = 25, .head_size = 64},
    {.b = 1, .t = 64, .heads = 1, .kv_heads = 1, .head_size = 64},
    {.b = 3, .t = 77, .heads = 3, .kv_heads = 3, .head_size = 24},
    {.b = 2, .t = 256, .heads = 2, .kv_heads = 2, .head_size = 128},
    {.b = 2, .t = 2048, .heads = 32, .kv_heads = 4, .head_size = 64},
    {.b = 1, .t = 1024, .heads = 32, .kv_heads = 8, .head_size = 128},
    {.b = 3, .t = 77, .heads = 6, .kv_heads = 2, .head_size = 40},
};

static int failures;

static void check_plan(bool ok, const char *what, const struct dpt_attention_shape *s, int gpu)
{
    if (ok)
        return;
    failures++;
    (void)fprintf(stderr, "GPU %d, %lld x %lld, %lld/%lld heads of %lld, dtype %d, %s: %s\n", gpu,
                  (long long)s->b, (long long)s->t, (long long)s->heads, (long long)s->kv_heads,
                  (long long)s->head_size, (int)s->dtype, s->backward ? "backward" : "forward",
                  what);
}

/* NULL: this cuDNN takes none. */
static cudnnBackendDescriptor_t describe(const char *gpu)
{
    const struct dpt_cudnn_calls *dnn = dpt_cudnn_calls();
    cudnnBackendDescriptor_t device = NULL;
    if (dnn->BackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &device) ==
            CUDNN_STATUS_SUCCESS &&
        dnn->BackendSetAttribute(device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                                 (int64_t)strlen(gpu), gpu) == CUDNN_STATUS_SUCCESS &&
        dnn->BackendFinalize(device) == CUDNN_STATUS_SUCCESS)
        return device;
    if (device)
        (void)dnn->BackendDestroyDescriptor(device);
    return NULL;
}

static void check_shape(const struct dpt_attention_shape *shape, cudnnBackendDescriptor_t device,
                        int gpu)
{
    struct dpt_cudnn_plan *plan = NULL;
    struct dpt_err err;
    int ids[DPT_ATTENTION_TENSORS];
    const enum dpt_status status = dpt_attention_plan_create(shape, NULL, device, &plan, ids, &err);
    check_plan(status == DPT_OK, status == DPT_OK ? "" : err.text, shape, gpu);
    if (status != DPT_OK)
        return;
    /* Scores in 16 bits at most: nothing in the square of the sequence in f32. */
    const int64_t scores = shape->b * shape->heads * ((shape->t + 127) / 128 * 128) *
                           ((shape->t + 127) / 128 * 128) * 2;
    const size_t most = (shape->backward ? (size_t)scores : 0) + 4096;
    check_plan(dpt_cudnn_plan_workspace(plan) <= most, "its scratch is too large", shape, gpu);
    for (int i = 0; i < DPT_ATTENTION_TENSORS; i++)
        check_plan((ids[i] >= 0) == (shape->backward || i < DPT_ATTENTION_DO), "a tensor's number",
                   shape, gpu);
    dpt_cudnn_plan_destroy(&plan);
}

/* More scratch than is allowed, and heads of no size that there are engines for. */
static void check_refusals(cudnnBackendDescriptor_t device)
{
    const struct dpt_attention_shape shape = {.b = 64,
                                              .t = 8192,
                                              .heads = 16,
                                              .kv_heads = 16,
                                              .head_size = 64,
                                              .dtype = DPT_BF16,
                                              .backward = true};
    struct dpt_attention_shape odd = shapes[2];
    struct dpt_cudnn_plan *plan = NULL;
    struct dpt_err err;
    int ids[DPT_ATTENTION_TENSORS];
    odd.head_size = 63;
    odd.dtype = DPT_BF16;
    check_plan(dpt_attention_plan_create(&shape, NULL, device, &plan, ids, &err) ==
                       DPT_EUNSUPPORTED &&
                   strstr(err.text, "engines will do"),
               "it has a plan, with more scratch than is allowed", &shape, 0);
    check_plan(dpt_attention_plan_create(&odd, NULL, device, &plan, ids, &err) == DPT_EUNSUPPORTED,
               "it has a plan for heads of 63 channels", &odd, 0);
}

/* Of ResNet's sizes, of 3 x 3, 1 x 1 and 7 x 7 pixels, with a stride and without, and one of no
 * round numbers. */
static const struct dpt_conv_shape convs[] = {
    {.of = {32, 56, 56, 3, 1}, .in = 64, .out = 64},
    {.of = {16, 32, 32, 3, 1}, .in = 64, .out = 64},
    {.of = {32, 56, 56, 3, 2}, .in = 128, .out = 128},
    {.of = {32, 56, 56, 1, 2}, .in = 64, .out = 128},
    {.of = {32, 14, 14, 1, 1}, .in = 1024, .out = 256},
    {.of = {32, 7, 7, 3, 1}, .in = 512, .out = 512},
    {.of = {3, 13, 11, 3, 2}, .in = 24, .out = 40},
    {.of = {2, 30, 31, 7, 2}, .in = 8, .out = 16},
};

static void check_convolution(const struct dpt_conv_shape *shape, cudnnBackendDescriptor_t device,
                              int gpu)
{
    struct dpt_cudnn_plan *plan = NULL;
    struct dpt_err err;
    int ids[DPT_CONV_TENSORS];
    const enum dpt_status status = dpt_conv_plan_create(shape, NULL, device, &plan, ids, &err);
    if (status == DPT_OK) {
        dpt_cudnn_plan_destroy(&plan);
        return;
    }
    failures++;
    (void)fprintf(stderr, "GPU %d, %lld x %lld of %lld channels to %lld, %s, dtype %d: %s\n", gpu,
                  (long long)shape->of.h, (long long)shape->of.w, (long long)shape->in,
                  (long long)shape->out, shape->back ? "back" : "forward", (int)shape->dtype,
                  err.text);
}

int main(void)
{
    if (!dpt_cudnn_calls()) {
        (void)fprintf(stderr, "no cuDNN to ask\n");
        return SKIPPED;
    }
    for (int gpu = 0; gpu < (int)(sizeof gpus / sizeof *gpus); gpu++) {
        cudnnBackendDescriptor_t device = describe(gpus[gpu]);
        if (!device) {
            (void)fprintf(stderr, "this cuDNN takes no description of a GPU\n");
            return SKIPPED;
        }
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int run = 0; run < 4; run++) {
                struct dpt_attention_shape shape = shapes[i];
                shape.dtype = run % 2 == 0 ? DPT_BF16 : DPT_F16;
                shape.backward = run >= 2;
                check_shape(&shape, device, gpu);
            }
        for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
            for (int run = 0; run < 4; run++) {
                struct dpt_conv_shape shape = convs[i];
                shape.dtype = run % 2 == 0 ? DPT_BF16 : DPT_F16;
                shape.back = run >= 2;
                check_convolution(&shape, device, gpu);
            }
        if (gpu == 0)
            check_refusals(device);
        (void)dpt_cudnn_calls()->BackendDestroyDescriptor(device);
    }
    return failures > 0;
}
