/* Attention by cuDNN (cudnn_ops.h). */
#include "kernels/cuda/cudnn_cache.h"
#include "kernels/cuda/cudnn_calls.h"
#include "kernels/cuda/launch.h"

#include <float.h>
#include <math.h>

enum { MASKS_BY_INFINITY = 91000 }; /* first cuDNN version that masks by infinity */
enum { CHANNELS_MAX = 128, CHANNELS_UNIT = 8, ROWS_UNIT = 4, SCRATCH_MAX = 512 << 20 };

/* The number of samples in one run: the greatest divisor of b for which every run begins at aligned
 * addresses and the scores fit into the scratch memory. 0: the scores of one sample do not fit. */
static int64_t portion_samples(int64_t b, int64_t t, int64_t heads)
{
    int64_t n = b;
    while (n > 0 && (b % n != 0 || (n < b && n * heads * t % ROWS_UNIT != 0) ||
                     n * heads * t * t * 2 > SCRATCH_MAX))
        n--;
    return n;
}

/* Whether cuDNN computes the op. Apart from the presence of cuDNN, the shape alone decides. */
static bool is_for_cudnn(enum dpt_dtype dtype, int64_t head_size, float dropout)
{
    return dpt_cudnn_calls() && dtype != DPT_F32 && head_size % CHANNELS_UNIT == 0 &&
           head_size <= CHANNELS_MAX && !(dropout > 0.0f);
}

/* Elements of a row of qkv; below, elements of a row of y. */
static int64_t row_of(const struct dpt_attention_shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

static int64_t channels_of(const struct dpt_attention_shape *s)
{
    return s->heads * s->head_size;
}

static bool same_attention(const union dpt_cudnn_shape *x, const union dpt_cudnn_shape *y)
{
    const struct dpt_attention_shape *a = &x->attention, *b = &y->attention;
    return a->b == b->b && a->t == b->t && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->dtype == b->dtype && a->backward == b->backward;
}

static enum dpt_status attention_plan(const union dpt_cudnn_shape *shape, cudnnHandle_t handle,
                                      struct dpt_cudnn_plan **ret, int *ret_ids,
                                      struct dpt_err *err)
{
    const struct dpt_attention_shape *a = &shape->attention;
    const enum dpt_status status = dpt_attention_plan_create(a, handle, NULL, ret, ret_ids, err);
    if (status == DPT_OK)
        return DPT_OK;
    return dpt_wrap(err, status,
                    "attention of %lld x %lld rows, %lld heads (%lld of keys) of %lld channels "
                    "(DPT_CUDNN=off does without cuDNN)",
                    (long long)a->b, (long long)a->t, (long long)a->heads, (long long)a->kv_heads,
                    (long long)a->head_size);
}

/* The first run needs Q, K and V, which are one tensor. y and LSE, or the gradients, may share its
 * memory. */
static size_t attention_cold_bytes(const struct dpt_cudnn_entry *entry)
{
    const struct dpt_attention_shape *a = &entry->shape.attention;
    const size_t rows = (size_t)(a->b * a->t);
    const size_t qkv = rows * (size_t)row_of(a) * dpt_dtype_bytes(a->dtype);
    const size_t lse = rows * (size_t)a->heads * sizeof(float);
    return qkv > lse ? qkv : lse;
}

static void run_attention_once(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry,
                               void *memory)
{
    const struct dpt_attention_shape *is = &entry->shape.attention;
    const struct dpt_attention once = {.b = is->b,
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
    DPT_ASSERT(
        (is->backward ? dpt_cudnn_attention_backward : dpt_cudnn_attention_forward)(s, &once));
}

static const struct dpt_cudnn_kind attention_kind = {same_attention, attention_plan,
                                                     attention_cold_bytes, run_attention_once};

static struct dpt_cudnn_entry *attention_entry(struct dpt_cuda_stream *s,
                                               const struct dpt_attention_shape *shape)
{
    return dpt_cudnn_entry(s, &attention_kind, &(union dpt_cudnn_shape){.attention = *shape});
}

/* Scalars that each run passes by value. */
struct values {
    float scale, masked, one;
};

static struct values values_of(int64_t head_size)
{
    /* The value that cuDNN's own graphs use in this version. */
    const float masked = dpt_cudnn_version() < MASKS_BY_INFINITY ? -FLT_MAX : -INFINITY;
    return (struct values){(float)(1.0 / sqrt((double)head_size)), masked, 1.0f};
}

/* The address of sample `first` in a tensor with `elements` elements per sample. */
static void *sample_at(const void *p, enum dpt_dtype dtype, int64_t first, int64_t elements)
{
    return (char *)(uintptr_t)p + (size_t)(first * elements) * dpt_dtype_bytes(dtype);
}

/* Sets tensors name..name + 2 to Q, K and V of the samples from `first` on, or to their
 * gradients. */
static void place_three(void *tensors[DPT_ATTENTION_TENSORS], int name, const void *of,
                        const struct dpt_attention_shape *s, int64_t first)
{
    const size_t bytes = dpt_dtype_bytes(s->dtype);
    char *at = sample_at(of, s->dtype, first, s->t * row_of(s));
    tensors[name] = at;
    tensors[name + 1] = at + (size_t)channels_of(s) * bytes;
    tensors[name + 2] = at + (size_t)((s->heads + s->kv_heads) * s->head_size) * bytes;
}

bool dpt_cudnn_attention_forward(struct dpt_cuda_stream *s, const struct dpt_attention *a)
{
    const struct dpt_attention_shape shape = {a->b,         a->t,     a->heads, a->kv_heads,
                                              a->head_size, a->dtype, false};
    void *workspace, *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->head_size);
    if (!is_for_cudnn(a->dtype, a->head_size, a->dropout.p))
        return false;
    struct dpt_cudnn_entry *entry = attention_entry(s, &shape);
    if (!entry || !dpt_cuda_workspace(s, dpt_cudnn_plan_workspace(entry->plan), &workspace))
        return true;
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    place_three(tensors, DPT_ATTENTION_Q, a->qkv, &shape, 0);
    tensors[DPT_ATTENTION_O] = a->y;
    tensors[DPT_ATTENTION_LSE] = a->lse;
    dpt_cudnn_run(s, entry, tensors, DPT_ATTENTION_TENSORS, workspace);
    return true;
}

/* The parts of backward's workspace, as offsets in bytes. First is cuDNN's own workspace, then the
 * sums of rows, and then, if query heads share keys, dK and dV by query head. */
struct scratch {
    size_t rows, dk, dv, end;
};

static size_t align_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static struct scratch scratch_of(const struct dpt_attention_shape *s, size_t own)
{
    const size_t rows = (size_t)(s->b * s->t);
    const size_t full = s->kv_heads == s->heads
                            ? 0
                            : align_up(rows * (size_t)channels_of(s) * dpt_dtype_bytes(s->dtype));
    struct scratch at = {.rows = align_up(own)};
    at.dk = at.rows + align_up(rows * (size_t)s->heads * sizeof(float));
    at.dv = at.dk + full;
    at.end = at.dv + full;
    return at;
}

/* to = the sum of `from` over the query heads that share a key and value head; for dK or dV of a
 * portion. */
static void add_heads(struct dpt_cuda_stream *s, const struct dpt_attention_shape *shape,
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
    DPT_CUDA_LAUNCH(s, "attention backward", head_sums, &sums);
}

/* Posts backward of the portion that begins at sample `first`. `memory` is the workspace. */
static void post_portion_backward(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry,
                                  const struct dpt_attention *a, int64_t first, char *memory)
{
    const struct dpt_attention_shape *shape = &entry->shape.attention;
    const struct scratch at = scratch_of(shape, dpt_cudnn_plan_workspace(entry->plan));
    void *tensors[DPT_ATTENTION_TENSORS] = {NULL};
    struct values values = values_of(a->head_size);
    tensors[DPT_ATTENTION_SCALE] = &values.scale;
    tensors[DPT_ATTENTION_MASKED] = &values.masked;
    tensors[DPT_ATTENTION_ONE] = &values.one;
    tensors[DPT_ATTENTION_ROWS] = memory + at.rows;
    place_three(tensors, DPT_ATTENTION_Q, a->qkv, shape, first);
    place_three(tensors, DPT_ATTENTION_DQ, a->dqkv, shape, first);
    tensors[DPT_ATTENTION_O] = sample_at(a->y, a->dtype, first, a->t * channels_of(shape));
    tensors[DPT_ATTENTION_DO] = sample_at(a->dy, a->dtype, first, a->t * channels_of(shape));
    tensors[DPT_ATTENTION_LSE] = sample_at(a->lse, DPT_F32, first, a->heads * a->t);
    void *const dk = tensors[DPT_ATTENTION_DK], *const dv = tensors[DPT_ATTENTION_DV];
    const bool by_query_head = a->kv_heads != a->heads;
    if (by_query_head) {
        tensors[DPT_ATTENTION_DK] = memory + at.dk;
        tensors[DPT_ATTENTION_DV] = memory + at.dv;
    }
    dpt_cudnn_run(s, entry, tensors, DPT_ATTENTION_TENSORS, memory);
    if (by_query_head) {
        add_heads(s, shape, memory + at.dk, dk);
        add_heads(s, shape, memory + at.dv, dv);
    }
}

bool dpt_cudnn_attention_backward(struct dpt_cuda_stream *s, const struct dpt_attention *a)
{
    const int64_t samples = portion_samples(a->b, a->t, a->heads);
    const struct dpt_attention_shape shape = {samples,      a->t,     a->heads, a->kv_heads,
                                              a->head_size, a->dtype, true};
    void *workspace;
    if (!is_for_cudnn(a->dtype, a->head_size, a->dropout.p) || shape.b == 0)
        return false;
    struct dpt_cudnn_entry *entry = attention_entry(s, &shape);
    if (!entry)
        return true;
    const size_t own = dpt_cudnn_plan_workspace(entry->plan);
    if (!dpt_cuda_workspace(s, scratch_of(&shape, own).end, &workspace))
        return true;
    for (int64_t first = 0; first < a->b && s->base.error.status == DPT_OK; first += shape.b)
        post_portion_backward(s, entry, a, first, workspace);
    return true;
}
