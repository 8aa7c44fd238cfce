/* Attention by cuDNN (attention_cudnn.h): a stream's handle, its plans by shape, and runs of them.
 */
#include "kernels/cuda/attention_cudnn.h"

#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/cudnn_calls.h"
#include "kernels/cuda/launch.h"

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
static bool is_for_cudnn(enum dpt_dtype dtype, int64_t head_size, float dropout)
{
    return dpt_cudnn_calls() && dtype != DPT_F32 && head_size % CHANNELS_UNIT == 0 &&
           head_size <= CHANNELS_MAX && !(dropout > 0.0f);
}

/* Elements of a row of qkv, and of y. */
static int64_t row_of(const struct dpt_attention_shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

static int64_t channels_of(const struct dpt_attention_shape *s)
{
    return s->heads * s->head_size;
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
    return a->b == b->b && a->t == b->t && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->dtype == b->dtype && a->backward == b->backward;
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
                   "attention of %lld x %lld rows, %lld heads (%lld of keys) of %lld channels "
                   "(DPT_CUDNN=off does without cuDNN)",
                   (long long)shape->b, (long long)shape->t, (long long)shape->heads,
                   (long long)shape->kv_heads, (long long)shape->head_size);
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

static struct values values_of(int64_t head_size)
{
    /* What the library's own graphs give, by its version. */
    const float masked = dpt_cudnn_version() < MASKS_BY_INFINITY ? -FLT_MAX : -INFINITY;
    return (struct values){(float)(1.0 / sqrt((double)head_size)), masked, 1.0f};
}

/* Of sample `first` of a tensor with `elements` a sample. */
static void *sample(const void *p, enum dpt_dtype dtype, int64_t first, int64_t elements)
{
    return (char *)(uintptr_t)p + (size_t)(first * elements) * dpt_dtype_bytes(dtype);
}

/* Q, K and V of a sample, or their gradients, as tensors name..name + 2. */
static void place_three(void *tensors[DPT_ATTENTION_TENSORS], int name, const void *of,
                        const struct dpt_attention_shape *s, int64_t first)
{
    const size_t bytes = dpt_dtype_bytes(s->dtype);
    char *at = sample(of, s->dtype, first, s->t * row_of(s));
    tensors[name] = at;
    tensors[name + 1] = at + (size_t)channels_of(s) * bytes;
    tensors[name + 2] = at + (size_t)((s->heads + s->kv_heads) * s->head_size) * bytes;
}

bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention_forward *a)
{
    const struct dpt_attention_shape shape = {a->b,         a->t,     a->heads, a->kv_heads,
                                              a->head_size, a->dtype, false};
    void *workspace, *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->head_size);
    if (!is_for_cudnn(a->dtype, a->head_size, a->dropout.p))
        return false;
    struct entry *entry = entry_of(s, &shape);
    if (!entry || !dpt_cuda_workspace(s, dpt_cudnn_plan_workspace(entry->plan), &workspace))
        return true;
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    place_three(tensors, DPT_ATTENTION_Q, a->qkv, &shape, 0);
    tensors[DPT_ATTENTION_O] = a->y;
    tensors[DPT_ATTENTION_LSE] = a->lse;
    (void)run(s, entry, tensors, workspace);
    return true;
}

/* What backward needs of the workspace, in bytes from its beginning: behind cuDNN's own the sums of
 * rows, and, where query heads share keys, dK and dV by query head. */
struct scratch {
    size_t rows, dk, dv, end;
};

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static struct scratch scratch_of(const struct dpt_attention_shape *s, size_t own)
{
    const size_t rows = (size_t)(s->b * s->t);
    const size_t full = s->kv_heads == s->heads
                            ? 0
                            : aligned(rows * (size_t)channels_of(s) * dpt_dtype_bytes(s->dtype));
    struct scratch at = {.rows = aligned(own)};
    at.dk = at.rows + aligned(rows * (size_t)s->heads * sizeof(float));
    at.dv = at.dk + full;
    at.end = at.dv + full;
    return at;
}

/* dK and dV of a portion, from those of its query heads. */
static bool add_heads(struct dpt_cuda_stream *s, const struct dpt_attention_shape *shape,
                      const void *from, void *to)
{
    const struct dpt_launch_head_sums sums = {.rows = shape->b * shape->t,
                                              .kv_heads = shape->kv_heads,
                                              .group = shape->heads / shape->kv_heads,
                                              .head_size = shape->head_size,
                                              .ld = row_of(shape),
                                              .dtype = shape->dtype,
                                              .from = from,
                                              .to = to};
    return dpt_cuda_posted(s, dpt_launch_head_sums(s->queue, &sums), "attention backward");
}

/* One portion; `memory` is the workspace. */
static bool run_back(struct dpt_cuda_stream *s, struct entry *entry,
                     const struct dpt_attention_backward *a, int64_t first, char *memory)
{
    const struct dpt_attention_shape *shape = &entry->shape;
    const struct scratch at = scratch_of(shape, dpt_cudnn_plan_workspace(entry->plan));
    void *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->head_size);
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    tensors[DPT_ATTENTION_ONE] = &values.one;
    tensors[DPT_ATTENTION_ROWS] = memory + at.rows;
    place_three(tensors, DPT_ATTENTION_Q, a->qkv, shape, first);
    place_three(tensors, DPT_ATTENTION_DQ, a->dqkv, shape, first);
    tensors[DPT_ATTENTION_O] = sample(a->y, a->dtype, first, a->t * channels_of(shape));
    tensors[DPT_ATTENTION_DO] = sample(a->dy, a->dtype, first, a->t * channels_of(shape));
    tensors[DPT_ATTENTION_LSE] = sample(a->lse, DPT_F32, first, a->heads * a->t);
    if (a->kv_heads == a->heads)
        return run(s, entry, tensors, memory);
    void *const dk = tensors[DPT_ATTENTION_DK], *const dv = tensors[DPT_ATTENTION_DV];
    tensors[DPT_ATTENTION_DK] = memory + at.dk;
    tensors[DPT_ATTENTION_DV] = memory + at.dv;
    return run(s, entry, tensors, memory) && add_heads(s, shape, memory + at.dk, dk) &&
           add_heads(s, shape, memory + at.dv, dv);
}

bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention_backward *a)
{
    const struct dpt_attention_shape shape = {
        portion(a->b, a->t, a->heads), a->t, a->heads, a->kv_heads, a->head_size, a->dtype, true};
    void *workspace;
    if (!is_for_cudnn(a->dtype, a->head_size, a->dropout.p) || shape.b == 0)
        return false;
    struct entry *entry = entry_of(s, &shape);
    if (!entry)
        return true;
    const size_t own = dpt_cudnn_plan_workspace(entry->plan);
    if (!dpt_cuda_workspace(s, scratch_of(&shape, own).end, &workspace))
        return true;
    for (int64_t first = 0; first < a->b; first += shape.b)
        if (!run_back(s, entry, a, first, workspace))
            break;
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
    const size_t qkv = rows * (size_t)row_of(is) * dpt_dtype_bytes(is->dtype);
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
                                                  .heads = is->heads,
                                                  .kv_heads = is->kv_heads,
                                                  .head_size = is->head_size,
                                                  .dtype = is->dtype,
                                                  .qkv = memory,
                                                  .y = memory,
                                                  .lse = memory};
    const struct dpt_attention_backward backward = {.b = is->b,
                                                    .t = is->t,
                                                    .heads = is->heads,
                                                    .kv_heads = is->kv_heads,
                                                    .head_size = is->head_size,
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
