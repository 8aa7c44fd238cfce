/* Convolutions by cuDNN (cudnn_ops.h). */
#include "kernels/cuda/cudnn_cache.h"
#include "kernels/cuda/cudnn_calls.h"

enum { CHANNELS_UNIT = 8 };

bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype)
{
    return dpt_cudnn_calls() && dtype != DPT_F32 && in % CHANNELS_UNIT == 0 &&
           out % CHANNELS_UNIT == 0;
}

static bool same_conv(const union dpt_cudnn_shape *x, const union dpt_cudnn_shape *y)
{
    const struct dpt_conv_shape *a = &x->conv, *b = &y->conv;
    return a->of.b == b->of.b && a->of.h == b->of.h && a->of.w == b->of.w &&
           a->of.kernel == b->of.kernel && a->of.stride == b->of.stride && a->in == b->in &&
           a->out == b->out && a->dtype == b->dtype && a->back == b->back;
}

static enum dpt_status conv_plan(const union dpt_cudnn_shape *shape, cudnnHandle_t handle,
                                 struct dpt_cudnn_plan **ret, int *ret_ids, struct dpt_err *err)
{
    const struct dpt_conv_shape *c = &shape->conv;
    const enum dpt_status status = dpt_conv_plan_create(c, handle, NULL, ret, ret_ids, err);
    if (status == DPT_OK)
        return DPT_OK;
    return dpt_wrap(
        err, status,
        "a convolution of %lld x %lld x %lld pixels, %lld channels to %lld, kernel %lld, "
        "stride %lld (DPT_CUDNN=off does without cuDNN)",
        (long long)c->of.b, (long long)c->of.h, (long long)c->of.w, (long long)c->in,
        (long long)c->out, (long long)c->of.kernel, (long long)c->of.stride);
}

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Bytes of the largest of the three tensors. In the first run all three share this memory. */
static size_t operand_bytes(const struct dpt_conv_shape *c)
{
    const struct dpt_windows *of = &c->of;
    const int64_t out_h = dpt_windows_along(of->h, of->stride),
                  out_w = dpt_windows_along(of->w, of->stride);
    const size_t x = (size_t)(of->b * of->h * of->w * c->in),
                 y = (size_t)(of->b * out_h * out_w * c->out),
                 w = (size_t)(c->out * c->in * of->kernel * of->kernel);
    return (max_size(x, max_size(y, w)) * dpt_dtype_bytes(c->dtype) + 255) / 256 * 256;
}

static size_t conv_cold_bytes(const struct dpt_cudnn_entry *entry)
{
    return operand_bytes(&entry->shape.conv) + dpt_cudnn_plan_workspace(entry->plan);
}

static void run_conv_once(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry, void *memory)
{
    dpt_cudnn_conv_run(s, entry, memory, memory, memory,
                       (char *)memory + operand_bytes(&entry->shape.conv));
}

static const struct dpt_cudnn_kind conv_kind = {same_conv, conv_plan, conv_cold_bytes,
                                                run_conv_once};

struct dpt_cudnn_entry *dpt_cudnn_conv_plan(struct dpt_cuda_stream *s,
                                            const struct dpt_conv_shape *shape, size_t *ret_scratch)
{
    struct dpt_cudnn_entry *entry =
        dpt_cudnn_entry(s, &conv_kind, &(union dpt_cudnn_shape){.conv = *shape});
    if (entry)
        *ret_scratch = dpt_cudnn_plan_workspace(entry->plan);
    return entry;
}

void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *plan, const void *x,
                        const void *w, const void *y, void *scratch)
{
    const void *const tensors[DPT_CONV_TENSORS] = {
        [DPT_CONV_X] = x, [DPT_CONV_W] = w, [DPT_CONV_Y] = y};
    void *pointers[DPT_CONV_TENSORS];
    for (int i = 0; i < DPT_CONV_TENSORS; i++)
        pointers[i] = (void *)(uintptr_t)tensors[i]; /* the library takes no pointer to const */
    dpt_cudnn_run(s, plan, pointers, DPT_CONV_TENSORS, scratch);
}
