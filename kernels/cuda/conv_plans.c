/* Plans of convolutions (conv_plans.h). */
#include "kernels/cuda/conv_plans.h"

enum { WORKSPACE_MAX = 256 << 20 };

/* A tensor with dimensions (n, c, h, w) that is (n, h, w, c) in memory. */
static int channels_last(struct dpt_cudnn_graph *g, cudnnDataType_t type, const int64_t dims[4])
{
    const int64_t strides[4] = {dims[1] * dims[2] * dims[3], 1, dims[3] * dims[1], dims[1]};
    return dpt_cudnn_tensor(g, type, dims, strides);
}

enum dpt_status dpt_conv_plan_create(const struct dpt_conv_shape *shape, cudnnHandle_t handle,
                                     cudnnBackendDescriptor_t device, struct dpt_cudnn_plan **ret,
                                     int ret_ids[DPT_CONV_TENSORS], struct dpt_err *err)
{
    const struct dpt_windows *of = &shape->of;
    const cudnnDataType_t type = shape->dtype == DPT_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const int64_t x[4] = {of->b, shape->in, of->h, of->w},
                  w[4] = {shape->out, shape->in, of->kernel, of->kernel},
                  y[4] = {of->b, shape->out, dpt_windows_along(of->h, of->stride),
                          dpt_windows_along(of->w, of->stride)};
    struct dpt_cudnn_graph g = {.n_ops = 0};
    DPT_ASSERT(shape->dtype != DPT_F32);
    ret_ids[DPT_CONV_X] = channels_last(&g, type, x);
    ret_ids[DPT_CONV_W] = channels_last(&g, type, w);
    ret_ids[DPT_CONV_Y] = channels_last(&g, type, y);
    dpt_cudnn_convolution(&g, &(struct dpt_cudnn_convolution){.back = shape->back,
                                                              .stride = of->stride,
                                                              .padding = of->kernel / 2,
                                                              .x = ret_ids[DPT_CONV_X],
                                                              .w = ret_ids[DPT_CONV_W],
                                                              .y = ret_ids[DPT_CONV_Y]});
    const enum dpt_status status =
        dpt_cudnn_plan_create(&g, handle, device, WORKSPACE_MAX, ret, err);
    dpt_cudnn_graph_fini(&g);
    return status;
}
