/* The cuDNN plans of a stream (cudnn_cache.h). */
#include "kernels/cuda/cudnn_cache.h"

#include "kernels/cuda/cudnn_calls.h"

#include <stdlib.h>

/* ResNet-152 has about 30 shapes of convolutions, each with a plan forward and a plan backward. */
enum { PLANS_MAX = 128 };

struct dpt_cudnn {
    cudnnHandle_t handle;
    int n, next; /* number of entries; the one to replace when all are taken */
    struct dpt_cudnn_entry entries[PLANS_MAX];
};

size_t dpt_cudnn_version(void)
{
    const struct dpt_cudnn_calls *calls = dpt_cudnn_calls();
    return calls ? calls->GetVersion() : 0;
}

void dpt_cudnn_destroy(struct dpt_cudnn **cudnn)
{
    struct dpt_cudnn *c = *cudnn;
    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        dpt_cudnn_plan_destroy(&c->entries[i].plan);
    if (c->handle)
        (void)dpt_cudnn_calls()->Destroy(c->handle);
    free(c);
    *cudnn = NULL;
}

static enum dpt_status open_handle(struct dpt_cuda_stream *s, struct dpt_err *err)
{
    const struct dpt_cudnn_calls *calls = dpt_cudnn_calls();
    struct dpt_cudnn *c = calloc(1, sizeof *c);
    if (!c)
        return dpt_fail_nomem(err, "cuDNN's plans");
    cudnnStatus_t code = calls->Create(&c->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = calls->SetStream(c->handle, s->queue);
    if (code == CUDNN_STATUS_SUCCESS) {
        s->cudnn = c;
        return DPT_OK;
    }
    dpt_cudnn_destroy(&c);
    return dpt_fail(err, DPT_EDEVICE, "cuDNN %zu: %s; DPT_CUDNN=off does without it",
                    dpt_cudnn_version(), calls->GetErrorString(code));
}

/* Makes a new entry in a free place, or in place of the oldest entry. */
static enum dpt_status make_entry(struct dpt_cudnn *c, const struct dpt_cudnn_kind *kind,
                                  const union dpt_cudnn_shape *shape, struct dpt_cudnn_entry **ret,
                                  struct dpt_err *err)
{
    struct dpt_cudnn_entry made = {.kind = kind, .shape = *shape};
    DPT_TRY(kind->plan_create(shape, c->handle, &made.plan, made.ids, err));
    *ret = &c->entries[c->next];
    dpt_cudnn_plan_destroy(&(*ret)->plan);
    **ret = made;
    c->n += c->n < PLANS_MAX;
    c->next = (c->next + 1) % PLANS_MAX;
    return DPT_OK;
}

struct dpt_cudnn_entry *dpt_cudnn_entry(struct dpt_cuda_stream *s,
                                        const struct dpt_cudnn_kind *kind,
                                        const union dpt_cudnn_shape *shape)
{
    struct dpt_err err = {0};
    struct dpt_cudnn_entry *made = NULL;
    enum dpt_status status = s->cudnn ? DPT_OK : open_handle(s, &err);
    for (int i = 0; status == DPT_OK && i < s->cudnn->n; i++) {
        struct dpt_cudnn_entry *e = &s->cudnn->entries[i];
        if (e->kind == kind && kind->same(&e->shape, shape))
            return e;
    }
    if (status == DPT_OK)
        status = make_entry(s->cudnn, kind, shape, &made, &err);
    if (status != DPT_OK)
        dpt_stream_fail(&s->base, status, err.text);
    return made;
}

void dpt_cudnn_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry, void *const *tensors,
                   int n, void *workspace)
{
    int64_t ids[DPT_ATTENTION_TENSORS];
    int given = 0;
    void *pointers[DPT_ATTENTION_TENSORS];
    struct dpt_err err;
    entry->ran = true;
    for (int i = 0; i < n; i++) {
        if (entry->ids[i] < 0)
            continue;
        ids[given] = entry->ids[i];
        pointers[given++] = tensors[i];
    }
    const enum dpt_status status =
        dpt_cudnn_plan_run(entry->plan, ids, pointers, given, workspace, &err);
    if (status != DPT_OK)
        dpt_stream_fail(&s->base, status, err.text);
}

size_t dpt_cudnn_cold_bytes(const struct dpt_cuda_stream *s)
{
    size_t most = 0;
    for (int i = 0; s->cudnn && i < s->cudnn->n; i++) {
        const struct dpt_cudnn_entry *e = &s->cudnn->entries[i];
        const size_t bytes = e->ran ? 0 : e->kind->cold_bytes(e);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void dpt_cudnn_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    for (int i = 0; s->cudnn && i < s->cudnn->n; i++) {
        struct dpt_cudnn_entry *e = &s->cudnn->entries[i];
        if (!e->ran && s->base.error.status == DPT_OK)
            e->kind->run_once(s, e, memory);
    }
}
