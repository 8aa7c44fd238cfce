/* Causal attention as graphs of cuDNN's (cudnn_graph.h): which tensors there are, and the plans.
 * Apart from the device, so that whether cuDNN has a plan can be asked where there is no GPU. */
#ifndef DPT_KERNELS_CUDA_ATTENTION_PLANS_H
#define DPT_KERNELS_CUDA_ATTENTION_PLANS_H

#include "kernels/cuda/cudnn_graph.h"

struct dpt_attention_shape {
    int64_t b, t, heads, kv_heads, head_size;
    enum dpt_dtype dtype; /* DPT_BF16, DPT_F16 */
    bool backward;
};

/* The tensors in memory, as kernels/ops.h has them. Q, K and V lie in one, a row apart, and so do
 * their gradients; but where query heads share keys, dK and dV are (B, T, C) each, by query head,
 * and the sums over those that share are not the graph's. */
enum dpt_attention_tensor {
    DPT_ATTENTION_Q,
    DPT_ATTENTION_K,
    DPT_ATTENTION_V,
    DPT_ATTENTION_O,
    DPT_ATTENTION_LSE,
    DPT_ATTENTION_SCALE,  /* float, by value: 1 / sqrt(head_size) */
    DPT_ATTENTION_MASKED, /* float, by value: the score of a key that is masked */
    /* Backward, and only there: */
    DPT_ATTENTION_DO,
    DPT_ATTENTION_DQ,
    DPT_ATTENTION_DK,
    DPT_ATTENTION_DV,
    DPT_ATTENTION_ROWS, /* (B, H, T) f32, scratch: sums of dO times O */
    DPT_ATTENTION_ONE,  /* float, by value: 1 */
    DPT_ATTENTION_TENSORS
};

/* ids: by the names above; -1: the graph has no such tensor. Errors as dpt_cudnn_plan_create. */
DPT_MUST_USE enum dpt_status
dpt_attention_plan_create(const struct dpt_attention_shape *shape, cudnnHandle_t handle,
                          cudnnBackendDescriptor_t device, struct dpt_cudnn_plan **ret,
                          int ret_ids[DPT_ATTENTION_TENSORS], struct dpt_err *err);

#endif
