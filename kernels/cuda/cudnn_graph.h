/* A cuDNN graph: operations on four-dimensional tensors, and the plan that the library runs as one
 * kernel or a few. Wraps the part of cuDNN's graph API that attention and convolutions need.
 *
 * The caller has made sure that the library is loaded (cudnn_calls.h). Functions name a tensor by
 * its number. Errors, with cuDNN's text, stick to the graph, and dpt_cudnn_plan_create returns
 * them. After an error the other functions do nothing. */
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
    const char *what; /* what is being made, for the error's text */
    struct dpt_err error;
};

/* The caller zeroes it before the first use. */
struct dpt_cudnn_graph {
    cudnnBackendDescriptor_t tensors[DPT_CUDNN_TENSORS_MAX], ops[DPT_CUDNN_OPS_MAX];
    int n_tensors, n_ops;
    struct dpt_cudnn_builder builder;
};

void dpt_cudnn_graph_fini(struct dpt_cudnn_graph *graph);

/* Adds a tensor in memory, aligned to 16 bytes. Returns its number. */
int dpt_cudnn_tensor(struct dpt_cudnn_graph *graph, cudnnDataType_t type, const int64_t dims[4],
                     const int64_t strides[4]);
/* Adds a float that each run passes by value. Returns its number. */
int dpt_cudnn_scalar(struct dpt_cudnn_graph *graph);
/* Adds a tensor between two operations, which is never in memory. Returns its number. */
int dpt_cudnn_virtual(struct dpt_cudnn_graph *graph, cudnnDataType_t type, const int64_t dims[4],
                      const int64_t strides[4]);

/* to = a b. The matrices are in the last two dimensions. */
void dpt_cudnn_matmul(struct dpt_cudnn_graph *graph, int a, int b, int to);
/* to = f(a) if b < 0, else f(a, b). BINARY_SELECT: to = mask ? a : b. `axis` is for GEN_INDEX. */
struct dpt_cudnn_pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t computes;
    int a, b, mask, to;
    int64_t axis;
};
void dpt_cudnn_pointwise(struct dpt_cudnn_graph *graph, const struct dpt_cudnn_pointwise *op);
/* to = the sum (ADD) or the greatest value (MAX) of a over the dimensions in which `to` is 1. */
void dpt_cudnn_reduce(struct dpt_cudnn_graph *graph, cudnnReduceTensorOp_t op, int a, int to);
/* to = a, reshaped to the dimensions of `to`. */
void dpt_cudnn_reshape(struct dpt_cudnn_graph *graph, int a, int to);
/* y = x convolved with w; with `back` x = the gradient of x from y, the gradient of y. Dimensions
 * are images, channels, rows, columns. w has the channels of y first, then the channels of x.
 * Stride and padding are the same along rows and columns. */
struct dpt_cudnn_convolution {
    bool back;
    int64_t stride, padding;
    int x, w, y;
};
void dpt_cudnn_convolution(struct dpt_cudnn_graph *graph, const struct dpt_cudnn_convolution *op);

struct dpt_cudnn_plan;

/* Creates the library's first plan for the graph that is deterministic, does not use Winograd's
 * transforms, which lose digits, and needs at most max_workspace bytes. DPT_EUNSUPPORTED: there is
 * no such plan. The plan runs on `handle`. Without a GPU, `handle` is NULL and `device`, a
 * CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, is the device for which cuDNN looks for a plan. */
DPT_MUST_USE enum dpt_status
dpt_cudnn_plan_create(struct dpt_cudnn_graph *graph, cudnnHandle_t handle,
                      cudnnBackendDescriptor_t device, int64_t max_workspace,
                      struct dpt_cudnn_plan **ret, struct dpt_err *err);
void dpt_cudnn_plan_destroy(struct dpt_cudnn_plan **plan);
size_t dpt_cudnn_plan_workspace(const struct dpt_cudnn_plan *plan);

/* Posts the plan to the stream of its handle. pointers[i] belongs to the tensor with id ids[i]:
 * device memory, or host memory for a scalar. */
DPT_MUST_USE enum dpt_status dpt_cudnn_plan_run(const struct dpt_cudnn_plan *plan,
                                                const int64_t *ids, void *const *pointers, int n,
                                                void *workspace, struct dpt_err *err);

#endif
