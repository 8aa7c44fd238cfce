/* A graph of cuDNN's operations on four-dimensional tensors, and its plan, which the library runs
 * as one kernel or a few. Wraps the part of cuDNN's graph API that attention and convolutions need.
 *
 * There is a library (cudnn_calls.h) before any of these is called. A tensor is named by a number.
 * Errors, with cuDNN's text, stick to the graph, and dpt_cudnn_plan_create returns them. After an
 * error the other functions do nothing. */
#ifndef DPT_KERNELS_CUDA_CUDNN_GRAPH_H
#define DPT_KERNELS_CUDA_CUDNN_GRAPH_H

#include "base/err.h"
#include "kernels/tensor.h"

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_CUDNN_TENSORS_MAX = 48, DPT_CUDNN_OPS_MAX = 32 };

/* Makes descriptors one after another, until one fails. */
struct dpt_cudnn_builder {
    const char *what; /* is being made, for the error */
    struct dpt_err error;
};

/* Zeroed at first. */
struct dpt_cudnn_graph {
    cudnnBackendDescriptor_t tensors[DPT_CUDNN_TENSORS_MAX], ops[DPT_CUDNN_OPS_MAX];
    int n_tensors, n_ops;
    struct dpt_cudnn_builder builder;
};

void dpt_cudnn_graph_fini(struct dpt_cudnn_graph *graph);

/* A tensor that lies in memory: its number. Aligned to 16 bytes. */
int dpt_cudnn_tensor(struct dpt_cudnn_graph *graph, cudnnDataType_t type, const int64_t dims[4],
                     const int64_t strides[4]);
/* A float that is given by value with each run. */
int dpt_cudnn_scalar(struct dpt_cudnn_graph *graph);
/* A tensor between two operations, in no memory. */
int dpt_cudnn_virtual(struct dpt_cudnn_graph *graph, cudnnDataType_t type, const int64_t dims[4],
                      const int64_t strides[4]);

/* to = a b, of matrices in the last two dimensions. */
void dpt_cudnn_matmul(struct dpt_cudnn_graph *graph, int a, int b, int to);
/* to = f(a), f(a, b) (b < 0: there is none) or, BINARY_SELECT, mask ? a : b. axis: of GEN_INDEX. */
struct dpt_cudnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t computes;
    int a, b, mask, to;
    int64_t axis;
};
void dpt_cudnn_pointwise(struct dpt_cudnn_graph *graph, const struct dpt_cudnn_pointwise *op);
/* to = a, summed (ADD) or its greatest (MAX), over the dimensions in which `to` is 1. */
void dpt_cudnn_reduce(struct dpt_cudnn_graph *graph, cudnnReduceTensorOp_t op, int a, int to);
/* to = a with the dimensions that `to` has. */
void dpt_cudnn_reshape(struct dpt_cudnn_graph *graph, int a, int to);
/* y = x convolved with w; `back`: x = y convolved back. Dimensions: images, channels, rows,
 * columns; of w the channels of y, then those of x. The same stride and padding along rows and
 * columns. */
struct dpt_cudnn_convolution {
    bool back;
    int64_t stride, padding;
    int x, w, y;
};
void dpt_cudnn_convolution(struct dpt_cudnn_graph *graph, const struct dpt_cudnn_convolution *op);

struct dpt_cudnn_plan;

/* The library's first plan for the graph that is deterministic, does without Winograd's transforms,
 * which cost digits, and takes at most max_workspace bytes; DPT_EUNSUPPORTED: it has none. On
 * `handle`, or, to see whether there is one where there is no GPU, for `device`, a
 * CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR. */
DPT_MUST_USE enum dpt_status
dpt_cudnn_plan_create(struct dpt_cudnn_graph *graph, cudnnHandle_t handle,
                      cudnnBackendDescriptor_t device, int64_t max_workspace,
                      struct dpt_cudnn_plan **ret, struct dpt_err *err);
void dpt_cudnn_plan_destroy(struct dpt_cudnn_plan **plan);
size_t dpt_cudnn_plan_workspace(const struct dpt_cudnn_plan *plan);

/* Posts the plan to the stream of the handle that it was made on. pointers[i] is of the tensor with
 * number ids[i]: device memory, or for a scalar host memory. */
DPT_MUST_USE enum dpt_status dpt_cudnn_plan_run(const struct dpt_cudnn_plan *plan,
                                                const int64_t *ids, void *const *pointers, int n,
                                                void *workspace, struct dpt_err *err);

#endif
