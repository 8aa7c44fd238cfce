/* Attention by cuDNN (attention_cudnn.h): a stream's handle, its plans by shape, and runs of them.
 */
#include "kernels/cuda/attention_cudnn.h"

#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/cudnn_calls.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MASKS_BY_INFINITY = 91000 }; /* cuDNN's version */
enum {
    PLANS_MAX = 16,
    CHANNELS_MAX = 128,
    CHANNELS_UNIT = 8,
    ROWS_UNIT = 4,
    SCRATCH_MAX = 512 << 20
};

struct entry {
    struct dpt_attention_shape shape; /* of a portion */
    struct dpt_cudnn_plan *plan;
    int ids[DPT_ATTENTION_TENSORS];
    bool ran;
};

struct dpt_cudnn_attention {
    cudnnHandle_t handle;
    int n, next; /* entries; the one that is replaced when all are taken */
    struct entry entries[PLANS_MAX];
};

size_t dpt_cudnn_version(void)
{
    const struct dpt_cudnn_calls *calls = dpt_cudnn_calls();
    return calls ? calls->GetVersion() : 0;
}

/* Samples at once: the most that divide them all, whose rows begin where cuDNN is promised, and of
 * whose scores there is room for `each` bytes of one; 0: not even one. */
static int64_t portion(int64_t b, int64_t t, int64_t heads)
{
    int64_t n = b;
    while (n > 0 && (b % n != 0 || (n < b && n * heads * t % ROWS_UNIT != 0) ||
                     n * heads * t * t * 2 > SCRATCH_MAX))
        n--;
    return n;
}

/* By shape alone. */
static bool is_for_cudnn(enum dpt_dtype dtype, int64_t heads, int64_t c, float dropout)
{
    const int64_t d = c / heads;
    return dpt_cudnn_calls() && dtype != DPT_F32 && d % CHANNELS_UNIT == 0 && d <= CHANNELS_MAX &&
           !(dropout > 0.0f);
}

void dpt_cudnn_attention_destroy(struct dpt_cudnn_attention **attention)
{
    struct dpt_cudnn_attention *c = *attention;
    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        dpt_cudnn_plan_destroy(&c->entries[i].plan);
    if (c->handle)
        (void)dpt_cudnn_calls()->Destroy(c->handle);
    free(c);
    *attention = NULL;
}

static enum dpt_status create(struct dpt_cuda_stream *s, struct dpt_err *err)
{
    const struct dpt_cudnn_calls *calls = dpt_cudnn_calls();
    struct dpt_cudnn_attention *c = calloc(1, sizeof *c);
    if (!c)
        return dpt_fail(err, DPT_ENOMEM, "cuDNN's plans");
    cudnnStatus_t code = calls->Create(&c->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = calls->SetStream(c->handle, s->queue);
    if (code == CUDNN_STATUS_SUCCESS) {
        s->attention = c;
        return DPT_OK;
    }
    dpt_cudnn_attention_destroy(&c);
    return dpt_fail(err, DPT_EDEVICE, "cuDNN %zu: %s; DPT_CUDNN=off does without it",
                    dpt_cudnn_version(), calls->GetErrorString(code));
}

static bool same(const struct dpt_attention_shape *a, const struct dpt_attention_shape *b)
{
    return a->b == b->b && a->t == b->t && a->heads == b->heads && a->c == b->c &&
           a->dtype == b->dtype && a->backward == b->backward;
}

/* The plan of this shape, made if there is none. NULL with the stream's error set. */
static struct entry *entry_of(struct dpt_cuda_stream *s, const struct dpt_attention_shape *shape)
{
    struct dpt_err err = {0};
    enum dpt_status status = s->attention ? DPT_OK : create(s, &err);
    struct dpt_cudnn_attention *c = s->attention;
    for (int i = 0; status == DPT_OK && i < c->n; i++)
        if (same(&c->entries[i].shape, shape))
            return &c->entries[i];
    struct entry *entry = NULL;
    if (status == DPT_OK) {
        entry = &c->entries[c->next];
        dpt_cudnn_plan_destroy(&entry->plan);
        entry->shape = *shape;
        entry->ran = false;
        status = dpt_attention_plan_create(shape, c->handle, NULL, &entry->plan, entry->ids, &err);
    }
    if (status == DPT_OK) {
        c->n += c->n < PLANS_MAX;
        c->next = (c->next + 1) % PLANS_MAX;
        return entry;
    }
    if (entry) /* it is nobody's shape now */
        entry->shape = (struct dpt_attention_shape){.b = 0};
    (void)dpt_wrap(&err, status,
                   "attention of %lld x %lld rows, %lld heads, %lld channels (DPT_CUDNN=off does "
                   "without cuDNN)",
                   (long long)shape->b, (long long)shape->t, (long long)shape->heads,
                   (long long)shape->c);
    dpt_cuda_fail(s, status, err.text);
    return NULL;
}

/* Runs the plan on a portion; `tensors` by name, NULL: it has none such. */
static bool run(struct dpt_cuda_stream *s, struct entry *entry,
                void *const tensors[DPT_ATTENTION_TENSORS], void *workspace)
{
    int ids[DPT_ATTENTION_TENSORS], n = 0;
    void *pointers[DPT_ATTENTION_TENSORS];
    struct dpt_err err;
    entry->ran = true;
    for (int i = 0; i < DPT_ATTENTION_TENSORS; i++) {
        if (entry->ids[i] < 0)
            continue;
        ids[n] = entry->ids[i];
        pointers[n++] = tensors[i];
    }
    const enum dpt_status status =
        dpt_cudnn_plan_run(entry->plan, s->attention->handle, ids, pointers, n, workspace, &err);
    if (status != DPT_OK)
        dpt_cuda_fail(s, status, err.text);
    return status == DPT_OK;
}

/* Values that are given with each run: for one thread at a time, the stream's. */
struct values {
    float scale, masked, one;
};

static struct values values_of(int64_t heads, int64_t c)
{
    /* What the library's own graphs give, by its version. */
    const float masked = dpt_cudnn_version() < MASKS_BY_INFINITY ? -FLT_MAX : -INFINITY;
    return (struct values){(float)(1.0 / sqrt((double)(c / heads))), masked, 1.0f};
}

/* Of sample `first` of a tensor with `elements` a sample. */
static void *sample(const void *p, enum dpt_dtype dtype, int64_t first, int64_t elements)
{
    return (char *)(uintptr_t)p + (size_t)(first * elements) * dpt_dtype_bytes(dtype);
}

/* Q, K and V of a sample, or their gradients, as tensors name..name + 2. */
static void place_three(void *tensors[DPT_ATTENTION_TENSORS], int name, const void *of,
                        enum dpt_dtype dtype, int64_t first, int64_t t, int64_t c)
{
    char *at = sample(of, dtype, first, t * 3 * c);
    for (int i = 0; i < 3; i++)
        tensors[name + i] = at + (size_t)(i * c) * dpt_dtype_bytes(dtype);
}

bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention_forward *a)
{
    const struct dpt_attention_shape shape = {a->b, a->t, a->heads, a->c, a->dtype, false};
    void *workspace, *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->heads, a->c);
    if (!is_for_cudnn(a->dtype, a->heads, a->c, a->dropout.p))
        return false;
    struct entry *entry = entry_of(s, &shape);
    if (!entry || !dpt_cuda_workspace(s, dpt_cudnn_plan_workspace(entry->plan), &workspace))
        return true;
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    place_three(tensors, DPT_ATTENTION_Q, a->qkv, a->dtype, 0, a->t, a->c);
    tensors[DPT_ATTENTION_O] = a->y;
    tensors[DPT_ATTENTION_LSE] = a->lse;
    (void)run(s, entry, tensors, workspace);
    return true;
}

bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention_backward *a)
{
    const struct dpt_attention_shape shape = {
        portion(a->b, a->t, a->heads), a->t, a->heads, a->c, a->dtype, true};
    void *workspace, *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->heads, a->c);
    if (!is_for_cudnn(a->dtype, a->heads, a->c, a->dropout.p) || shape.b == 0)
        return false;
    struct entry *entry = entry_of(s, &shape);
    if (!entry)
        return true;
    /* The sums of rows lie behind cuDNN's own. */
    const size_t own = (dpt_cudnn_plan_workspace(entry->plan) + 255) / 256 * 256;
    const size_t rows = (size_t)(shape.b * a->heads * a->t) * sizeof(float);
    if (!dpt_cuda_workspace(s, own + rows, &workspace))
        return true;
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    tensors[DPT_ATTENTION_ONE] = &values.one;
    tensors[DPT_ATTENTION_ROWS] = (char *)workspace + own;
    for (int64_t first = 0; first < a->b; first += shape.b) {
        place_three(tensors, DPT_ATTENTION_Q, a->qkv, a->dtype, first, a->t, a->c);
        place_three(tensors, DPT_ATTENTION_DQ, a->dqkv, a->dtype, first, a->t, a->c);
        tensors[DPT_ATTENTION_O] = sample(a->y, a->dtype, first, a->t * a->c);
        tensors[DPT_ATTENTION_DO] = sample(a->dy, a->dtype, first, a->t * a->c);
        tensors[DPT_ATTENTION_LSE] = sample(a->lse, DPT_F32, first, a->heads * a->t);
        if (!run(s, entry, tensors, workspace))
            break;
    }
    return true;
}

/* --- the first runs --- */

static bool is_cold(const struct entry *e)
{
    return e->shape.b > 0 && !e->ran;
}

/* Of Q, K and V, which lie together; y and LSE, or what flows back, may lie there as well. */
static size_t operand_bytes(const struct dpt_attention_shape *is)
{
    const size_t rows = (size_t)(is->b * is->t);
    const size_t qkv = rows * 3 * (size_t)is->c * dpt_dtype_bytes(is->dtype);
    const size_t lse = rows * (size_t)is->heads * sizeof(float);
    return qkv > lse ? qkv : lse;
}

size_t dpt_cudnn_attention_cold_bytes(const struct dpt_cuda_stream *s)
{
    size_t most = 0;
    for (int i = 0; s->attention && i < s->attention->n; i++) {
        const struct entry *e = &s->attention->entries[i];
        if (is_cold(e) && operand_bytes(&e->shape) > most)
            most = operand_bytes(&e->shape);
    }
    return most;
}

static void run_once(struct dpt_cuda_stream *s, const struct dpt_attention_shape *is, void *memory)
{
    const struct dpt_attention_forward forward = {.b = is->b,
                                                  .t = is->t,
                                                  .c = is->c,
                                                  .heads = is->heads,
                                                  .dtype = is->dtype,
                                                  .qkv = memory,
                                                  .y = memory,
                                                  .lse = memory};
    const struct dpt_attention_backward backward = {.b = is->b,
                                                    .t = is->t,
                                                    .c = is->c,
                                                    .heads = is->heads,
                                                    .dtype = is->dtype,
                                                    .qkv = memory,
                                                    .y = memory,
                                                    .lse = memory,
                                                    .dy = memory,
                                                    .dqkv = memory};
    DPT_ASSERT(is->backward ? dpt_cudnn_attention_backward(s, &backward)
                            : dpt_cudnn_attention_forward(s, &forward));
}

void dpt_cudnn_attention_warm_up(struct dpt_cuda_stream *s, void *memory)
{
    for (int i = 0; s->attention && i < s->attention->n; i++) {
        const struct dpt_attention_shape shape = s->attention->entries[i].shape;
        if (is_cold(&s->attention->entries[i]) && s->error.status == DPT_OK)
            run_once(s, &shape, memory);
    }
}
