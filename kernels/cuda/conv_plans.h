/* Convolutions as graphs of cuDNN's (cudnn_graph.h), a plan each. Apart from the device, so that
 * whether cuDNN has a plan can be asked where there is no GPU. */
#ifndef DPT_KERNELS_CUDA_CONV_PLANS_H
#define DPT_KERNELS_CUDA_CONV_PLANS_H

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/cudnn_ops.h"

/* The tensors in memory: x and y, or their gradients, as kernels/ops.h has them, the weight (out,
 * kernel, kernel, in). The weight's gradient has no plan, because cuDNN 9.19 has none with an f32
 * result. */
enum dpt_conv_tensor { DPT_CONV_X, DPT_CONV_W, DPT_CONV_Y, DPT_CONV_TENSORS };

/* ids: by the names above. Errors as dpt_cudnn_plan_create. */
DPT_MUST_USE enum dpt_status
dpt_conv_plan_create(const struct dpt_conv_shape *shape, cudnnHandle_t handle,
                     cudnnBackendDescriptor_t device, struct dpt_cudnn_plan **ret,
                     int ret_ids[DPT_CONV_TENSORS], struct dpt_err *err);

#endif
