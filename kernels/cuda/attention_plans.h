/* Causal attention as cuDNN graphs (cudnn_graph.h): their tensors and their plans. Separate from
 * the device, so that a machine without a GPU can ask whether cuDNN has a plan. */
#ifndef DPT_KERNELS_CUDA_ATTENTION_PLANS_H
#define DPT_KERNELS_CUDA_ATTENTION_PLANS_H

#include "kernels/cuda/cudnn_graph.h"

struct dpt_attention_shape {
    int64_t b, t, heads, kv_heads, head_size;
    enum dpt_dtype dtype; /* DPT_BF16, DPT_F16 */
    bool backward;
};

/* The tensors, with the layout of kernels/ops.h. Q, K and V are parts of each row of one tensor,
 * and so are their gradients. Exception: if query heads share keys, dK and dV are (B, T, C) each,
 * by query head, and the caller sums over the query heads that share. */
enum dpt_attention_tensor {
    DPT_ATTENTION_Q,
    DPT_ATTENTION_K,
    DPT_ATTENTION_V,
    DPT_ATTENTION_O,
    DPT_ATTENTION_LSE,
    DPT_ATTENTION_SCALE,  /* float, by value: 1 / sqrt(head_size) */
    DPT_ATTENTION_MASKED, /* float, by value: the score of a masked key */
    /* Only in backward: */
    DPT_ATTENTION_DO,
    DPT_ATTENTION_DQ,
    DPT_ATTENTION_DK,
    DPT_ATTENTION_DV,
    DPT_ATTENTION_ROWS, /* (B, H, T) f32, scratch: sums of dO times O */
    DPT_ATTENTION_ONE,  /* float, by value: 1 */
    DPT_ATTENTION_TENSORS
};

/* ret_ids[name] is the tensor's id; -1: the graph has no such tensor. Errors as
 * dpt_cudnn_plan_create's. */
DPT_MUST_USE enum dpt_status
dpt_attention_plan_create(const struct dpt_attention_shape *shape, cudnnHandle_t handle,
                          cudnnBackendDescriptor_t device, struct dpt_cudnn_plan **ret,
                          int ret_ids[DPT_ATTENTION_TENSORS], struct dpt_err *err);

#endif
