/* Convolutions by cuDNN (conv_cudnn.h): a stream's handle, its plans by shape, and runs of them. */
#include "kernels/cuda/conv_cudnn.h"

#include "kernels/cuda/conv_plans.h"
#include "kernels/cuda/cudnn_calls.h"

#include <stdlib.h>

/* ResNet-152 has some 30 convolutions of different shapes, both ways. */
enum { PLANS_MAX = 128, CHANNELS_UNIT = 8 };

struct entry {
    struct dpt_cudnn_conv shape;
    struct dpt_cudnn_plan *plan;
    int ids[DPT_CONV_TENSORS];
    bool ran;
};

struct dpt_cudnn_convs {
    cudnnHandle_t handle;
    int n, next; /* entries; the one that is replaced when all are taken */
    struct entry entries[PLANS_MAX];
};

bool dpt_cudnn_conv_takes(int64_t in, int64_t out, enum dpt_dtype dtype)
{
    return dpt_cudnn_calls() && dtype != DPT_F32 && in % CHANNELS_UNIT == 0 &&
           out % CHANNELS_UNIT == 0;
}

void dpt_cudnn_convs_destroy(struct dpt_cudnn_convs **convs)
{
    struct dpt_cudnn_convs *c = *convs;
    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        dpt_cudnn_plan_destroy(&c->entries[i].plan);
    if (c->handle)
        (void)dpt_cudnn_calls()->Destroy(c->handle);
    free(c);
    *convs = NULL;
}

static enum dpt_status create(struct dpt_cuda_stream *s, struct dpt_err *err)
{
    const struct dpt_cudnn_calls *calls = dpt_cudnn_calls();
    struct dpt_cudnn_convs *c = calloc(1, sizeof *c);
    if (!c)
        return dpt_fail(err, DPT_ENOMEM, "cuDNN's plans");
    cudnnStatus_t code = calls->Create(&c->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = calls->SetStream(c->handle, s->queue);
    if (code == CUDNN_STATUS_SUCCESS) {
        s->convs = c;
        return DPT_OK;
    }
    dpt_cudnn_convs_destroy(&c);
    return dpt_fail(err, DPT_EDEVICE, "cuDNN: %s; DPT_CUDNN=off does without it",
                    calls->GetErrorString(code));
}

static bool same(const struct dpt_cudnn_conv *a, const struct dpt_cudnn_conv *b)
{
    return a->of.b == b->of.b && a->of.h == b->of.h && a->of.w == b->of.w &&
           a->of.kernel == b->of.kernel && a->of.stride == b->of.stride && a->in == b->in &&
           a->out == b->out && a->dtype == b->dtype && a->back == b->back;
}

static struct entry *find(struct dpt_cudnn_convs *c, const struct dpt_cudnn_conv *shape)
{
    for (int i = 0; c && i < c->n; i++)
        if (same(&c->entries[i].shape, shape))
            return &c->entries[i];
    return NULL;
}

static enum dpt_status make(struct dpt_cudnn_convs *c, const struct dpt_cudnn_conv *shape,
                            struct dpt_err *err)
{
    const struct dpt_conv_shape of = {shape->of, shape->in, shape->out, shape->dtype, shape->back};
    struct entry made = {.shape = *shape};
    DPT_TRY(dpt_conv_plan_create(&of, c->handle, NULL, &made.plan, made.ids, err));
    dpt_cudnn_plan_destroy(&c->entries[c->next].plan);
    c->entries[c->next] = made;
    c->n += c->n < PLANS_MAX;
    c->next = (c->next + 1) % PLANS_MAX;
    return DPT_OK;
}

bool dpt_cudnn_conv_plan(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c,
                         size_t *ret_scratch)
{
    struct dpt_err err = {0};
    enum dpt_status status = s->convs ? DPT_OK : create(s, &err);
    if (status == DPT_OK && !find(s->convs, c))
        status = make(s->convs, c, &err);
    if (status == DPT_OK) {
        *ret_scratch = dpt_cudnn_plan_workspace(find(s->convs, c)->plan);
        return true;
    }
    (void)dpt_wrap(
        &err, status,
        "a convolution of %lld x %lld x %lld pixels, %lld channels to %lld, kernel %lld, "
        "stride %lld (DPT_CUDNN=off does without cuDNN)",
        (long long)c->of.b, (long long)c->of.h, (long long)c->of.w, (long long)c->in,
        (long long)c->out, (long long)c->of.kernel, (long long)c->of.stride);
    dpt_cuda_fail(s, status, err.text);
    return false;
}

void dpt_cudnn_conv_run(struct dpt_cuda_stream *s, const struct dpt_cudnn_conv *c, const void *x,
                        const void *w, const void *y, void *scratch)
{
    struct entry *entry = find(s->convs, c);
    const void *const tensors[DPT_CONV_TENSORS] = {
        [DPT_CONV_X] = x, [DPT_CONV_W] = w, [DPT_CONV_Y] = y};
    void *pointers[DPT_CONV_TENSORS];
    struct dpt_err err;
    DPT_ASSERT(entry);
    for (int i = 0; i < DPT_CONV_TENSORS; i++)
        pointers[i] = (void *)(uintptr_t)tensors[i]; /* the library takes no pointer to const */
    entry->ran = true;
    const enum dpt_status status = dpt_cudnn_plan_run(entry->plan, s->convs->handle, entry->ids,
                                                      pointers, DPT_CONV_TENSORS, scratch, &err);
    if (status != DPT_OK)
        dpt_cuda_fail(s, status, err.text);
}

/* --- the first runs --- */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of the largest of the three tensors, which may all lie in one place. */
static size_t operand_bytes(const struct dpt_cudnn_conv *c)
{
    const struct dpt_windows *of = &c->of;
    const size_t x = (size_t)(of->b * of->h * of->w * c->in) * dpt_dtype_bytes(c->dtype);
    const size_t y = (size_t)(of->b * dpt_windows_along(of->h, of->stride) *
                              dpt_windows_along(of->w, of->stride) * c->out) *
                     dpt_dtype_bytes(c->dtype);
    const size_t w = (size_t)(c->out * c->in * of->kernel * of->kernel) * dpt_dtype_bytes(c->dtype);
    return (most(x, most(y, w)) + 255) / 256 * 256;
}

size_t dpt_cudnn_conv_cold_bytes(const struct dpt_cuda_stream *s)
{
    size_t bytes = 0;
    for (int i = 0; s->convs && i < s->convs->n; i++) {
        const struct entry *e = &s->convs->entries[i];
        if (!e->ran)
            bytes = most(bytes, operand_bytes(&e->shape) + dpt_cudnn_plan_workspace(e->plan));
    }
    return bytes;
}

void dpt_cudnn_conv_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    for (int i = 0; s->convs && i < s->convs->n; i++) {
        const struct entry *e = &s->convs->entries[i];
        if (!e->ran && s->error.status == DPT_OK)
            dpt_cudnn_conv_run(s, &e->shape, memory, memory, memory,
                               (char *)memory + operand_bytes(&e->shape));
    }
}
