/* Convolutions as cuDNN graphs (cudnn_graph.h), one plan each. Separate from the device, so that a
 * machine without a GPU can ask whether cuDNN has a plan. */
#ifndef DPT_KERNELS_CUDA_CONV_PLANS_H
#define DPT_KERNELS_CUDA_CONV_PLANS_H

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_ops.h"

/* The tensors: x and y, or their gradients, with the layout of kernels/ops.h, and the weight as
 * (out, kernel, kernel, in). The gradient of the weight has no plan, because cuDNN 9.19 has none
 * with an f32 result. */
enum dpt_conv_tensor { DPT_CONV_X, DPT_CONV_W, DPT_CONV_Y, DPT_CONV_TENSORS };

/* ret_ids[name] is the tensor's id. Errors as dpt_cudnn_plan_create's. */
DPT_MUST_USE enum dpt_status
dpt_conv_plan_create(const struct dpt_conv_shape *shape, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t device, struct dpt_cudnn_plan **ret,
                     int ret_ids[DPT_CONV_TENSORS], struct dpt_err *err);

#endif
