/* Attention's two graphs (attention_plans.h).
 *
 * Forward:  S = scale Q K^T, masked; lse = max + log sum exp(S - max); O = softmax(S) V.
 * Backward (Dao et al. 2022): P = exp(S - lse), dV = P^T dO, dS = scale P (dO V^T - rows(dO O)),
 * dK = dS^T Q, dQ = dS K. dQ is one product, without atomic sums in memory, so two runs give the
 * same bits. */
#include "kernels/cuda/attention_plans.h"

enum { WORKSPACE_MAX = 1 << 30 };

struct graph {
    struct dpt_cudnn_graph g;
    const struct dpt_attention_shape *shape;
    cudnnDataType_t type;
    int64_t d, c, row;                                    /* channels; elements of a row */
    int64_t scores[4], scores_at[4], rows[4], rows_at[4]; /* dims and strides of (T, T), (T, 1) */
    int *ids;
};

static const cudnnDataType_t F32 = CUDNN_DATA_FLOAT;

/* ---- tensors ---- */

/* A tensor (B, n, T, d) whose rows are `row` elements apart; transposed: (B, n, d, T). */
static int head_tensor(struct graph *a, int64_t n, int64_t row, bool transposed)
{
    const struct dpt_attention_shape *s = a->shape;
    const int64_t dims[4] = {s->b, n, transposed ? a->d : s->t, transposed ? s->t : a->d};
    const int64_t strides[4] = {s->t * row, a->d, transposed ? 1 : row, transposed ? row : 1};
    return dpt_cudnn_tensor(&a->g, a->type, dims, strides);
}

static int score_tensor(struct graph *a, cudnnDataType_t type)
{
    return dpt_cudnn_virtual(&a->g, type, a->scores, a->scores_at);
}

/* The tensor of scores with keys as rows and queries as columns. */
static int transposed_scores(struct graph *a)
{
    const int64_t dims[4] = {a->scores[0], a->scores[1], a->scores[3], a->scores[2]};
    const int64_t strides[4] = {a->scores_at[0], a->scores_at[1], a->scores_at[3], a->scores_at[2]};
    return dpt_cudnn_virtual(&a->g, a->type, dims, strides);
}

static int row_values(struct graph *a)
{
    return dpt_cudnn_virtual(&a->g, F32, a->rows, a->rows_at);
}

/* ---- operations; each returns the number of its result ---- */

static int on_elements(struct graph *a, cudnnPointwiseMode_t mode, int x, int y, int to)
{
    const struct dpt_cudnn_pointwise op = {.mode = mode, .computes = F32, .a = x, .b = y, .to = to};
    dpt_cudnn_pointwise(&a->g, &op);
    return to;
}

static int on_scores(struct graph *a, cudnnPointwiseMode_t mode, int x, int y)
{
    return on_elements(a, mode, x, y, score_tensor(a, F32));
}

static int index_of(struct graph *a, int x, int64_t axis)
{
    const struct dpt_cudnn_pointwise op = {.mode = CUDNN_POINTWISE_GEN_INDEX,
                                           .computes = CUDNN_DATA_INT32,
                                           .a = x,
                                           .b = -1,
                                           .axis = axis,
                                           .to = score_tensor(a, CUDNN_DATA_INT32)};
    dpt_cudnn_pointwise(&a->g, &op);
    return op.to;
}

/* Replaces the scores of a query with later keys by MASKED. */
static int masked_scores(struct graph *a, int s)
{
    const struct dpt_cudnn_pointwise seen = {.mode = CUDNN_POINTWISE_CMP_GE,
                                             .computes = CUDNN_DATA_BOOLEAN,
                                             .a = index_of(a, s, 2),
                                             .b = index_of(a, s, 3),
                                             .to = score_tensor(a, CUDNN_DATA_BOOLEAN)};
    dpt_cudnn_pointwise(&a->g, &seen);
    const struct dpt_cudnn_pointwise select = {.mode = CUDNN_POINTWISE_BINARY_SELECT,
                                               .computes = F32,
                                               .a = s,
                                               .b = a->ids[DPT_ATTENTION_MASKED],
                                               .mask = seen.to,
                                               .to = score_tensor(a, F32)};
    dpt_cudnn_pointwise(&a->g, &select);
    return select.to;
}

/* Q K^T; `keys` is K transposed. */
static int score_products(struct graph *a, int queries, int keys)
{
    const int to = score_tensor(a, F32);
    dpt_cudnn_matmul(&a->g, queries, keys, to);
    return to;
}

static int scaled_scores(struct graph *a, int s)
{
    return on_scores(a, CUDNN_POINTWISE_MUL, s, a->ids[DPT_ATTENTION_SCALE]);
}

/* ---- the graphs ---- */

static void describe_forward(struct graph *a)
{
    int *id = a->ids;
    id[DPT_ATTENTION_K] = head_tensor(a, a->shape->kv_heads, a->row, true);
    id[DPT_ATTENTION_V] = head_tensor(a, a->shape->kv_heads, a->row, false);
    const int s = masked_scores(
        a, scaled_scores(a, score_products(a, id[DPT_ATTENTION_Q], id[DPT_ATTENTION_K])));
    const int most = row_values(a), sum = row_values(a);
    dpt_cudnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_MAX, s, most);
    const int below = on_scores(a, CUDNN_POINTWISE_SUB, s, most);
    const int e = on_scores(a, CUDNN_POINTWISE_EXP, below, -1);
    dpt_cudnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, e, sum);
    const int log = on_elements(a, CUDNN_POINTWISE_LOG, sum, -1, row_values(a));
    (void)on_elements(a, CUDNN_POINTWISE_ADD, most, log, id[DPT_ATTENTION_LSE]);
    const int p = on_elements(a, CUDNN_POINTWISE_DIV, e, sum, score_tensor(a, a->type));
    dpt_cudnn_matmul(&a->g, p, id[DPT_ATTENTION_V], id[DPT_ATTENTION_O]);
}

static void describe_backward(struct graph *a)
{
    const struct dpt_attention_shape *shape = a->shape;
    const int64_t of_heads[4] = {shape->b, shape->heads, shape->t, a->d},
                  at[4] = {shape->t * a->c, a->d, a->c, 1};
    const int64_t keys_row = shape->kv_heads == shape->heads ? a->row : a->c;
    int *id = a->ids;
    id[DPT_ATTENTION_K] = head_tensor(a, shape->kv_heads, a->row, true);
    id[DPT_ATTENTION_V] = head_tensor(a, shape->kv_heads, a->row, true);
    id[DPT_ATTENTION_DO] = head_tensor(a, shape->heads, a->c, false);
    id[DPT_ATTENTION_DQ] = head_tensor(a, shape->heads, a->row, false);
    id[DPT_ATTENTION_DK] = head_tensor(a, shape->heads, keys_row, false);
    id[DPT_ATTENTION_DV] = head_tensor(a, shape->heads, keys_row, false);
    id[DPT_ATTENTION_ROWS] = dpt_cudnn_tensor(&a->g, F32, a->rows, a->rows_at);
    const int both = on_elements(a, CUDNN_POINTWISE_MUL, id[DPT_ATTENTION_DO], id[DPT_ATTENTION_O],
                                 dpt_cudnn_virtual(&a->g, F32, of_heads, at));
    const int rows = row_values(a);
    id[DPT_ATTENTION_ONE] = dpt_cudnn_scalar(&a->g);
    dpt_cudnn_reduce(&a->g, CUDNN_REDUCE_TENSOR_ADD, both, rows);
    (void)on_elements(a, CUDNN_POINTWISE_MUL, rows, id[DPT_ATTENTION_ONE], id[DPT_ATTENTION_ROWS]);
    const int s = scaled_scores(a, score_products(a, id[DPT_ATTENTION_Q], id[DPT_ATTENTION_K]));
    const int below = masked_scores(a, on_scores(a, CUDNN_POINTWISE_SUB, s, id[DPT_ATTENTION_LSE]));
    const int p = on_scores(a, CUDNN_POINTWISE_EXP, below, -1);
    const int p_turned = transposed_scores(a), ds_turned = transposed_scores(a);
    dpt_cudnn_reshape(&a->g, p, p_turned);
    dpt_cudnn_matmul(&a->g, p_turned, id[DPT_ATTENTION_DO], id[DPT_ATTENTION_DV]);
    const int dp = score_products(a, id[DPT_ATTENTION_DO], id[DPT_ATTENTION_V]);
    const int centred = on_scores(a, CUDNN_POINTWISE_SUB, dp, id[DPT_ATTENTION_ROWS]);
    const int ds = scaled_scores(a, on_scores(a, CUDNN_POINTWISE_MUL, centred, p));
    dpt_cudnn_reshape(&a->g, ds, ds_turned);
    dpt_cudnn_matmul(&a->g, ds_turned, id[DPT_ATTENTION_Q], id[DPT_ATTENTION_DK]);
    const int64_t k_dims[4] = {shape->b, shape->kv_heads, shape->t, a->d},
                  k_at[4] = {shape->t * a->row, a->d, a->row, 1};
    const int keys = dpt_cudnn_virtual(&a->g, a->type, k_dims, k_at);
    dpt_cudnn_reshape(&a->g, id[DPT_ATTENTION_K], keys);
    dpt_cudnn_matmul(&a->g, ds, keys, id[DPT_ATTENTION_DQ]);
}

enum dpt_status dpt_attention_plan_create(const struct dpt_attention_shape *shape,
                                          cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                                          struct dpt_cudnn_plan **ret,
                                          int ret_ids[DPT_ATTENTION_TENSORS], struct dpt_err *err)
{
    const int64_t h = shape->heads, t = shape->t;
    struct graph a = {.shape = shape,
                      .type = shape->dtype == DPT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
                      .d = shape->head_size,
                      .c = h * shape->head_size,
                      .row = (h + 2 * shape->kv_heads) * shape->head_size,
                      .scores = {shape->b, h, t, t},
                      .scores_at = {h * t * t, t * t, t, 1},
                      .rows = {shape->b, h, t, 1},
                      .rows_at = {h * t, t, 1, 1},
                      .ids = ret_ids};
    DPT_ASSERT(shape->dtype != DPT_F32 && h % shape->kv_heads == 0);
    for (int i = 0; i < DPT_ATTENTION_TENSORS; i++)
        ret_ids[i] = -1;
    ret_ids[DPT_ATTENTION_Q] = head_tensor(&a, h, a.row, false);
    ret_ids[DPT_ATTENTION_O] = head_tensor(&a, h, a.c, false);
    ret_ids[DPT_ATTENTION_LSE] = dpt_cudnn_tensor(&a.g, F32, a.rows, a.rows_at);
    ret_ids[DPT_ATTENTION_SCALE] = dpt_cudnn_scalar(&a.g);
    ret_ids[DPT_ATTENTION_MASKED] = dpt_cudnn_scalar(&a.g);
    (shape->backward ? describe_backward : describe_forward)(&a);
    const enum dpt_status status =
        dpt_cudnn_plan_create(&a.g, handle, device, WORKSPACE_MAX, ret, err);
    dpt_cudnn_graph_fini(&a.g);
    return status;
}
