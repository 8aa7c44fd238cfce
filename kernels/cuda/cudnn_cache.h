/* The cuDNN plans of a stream and the handle that they run on. Attention and convolutions are kinds
 * of entries. */
#ifndef DPT_KERNELS_CUDA_CUDNN_CACHE_H
#define DPT_KERNELS_CUDA_CUDNN_CACHE_H

#include "kernels/cuda/attention_plans.h"
#include "kernels/cuda/conv_plans.h"
#include "kernels/cuda/cudnn_ops.h"

union dpt_cudnn_shape {
    struct dpt_attention_shape attention;
    struct dpt_conv_shape conv;
};

struct dpt_cudnn_kind {
    bool (*same)(const union dpt_cudnn_shape *a, const union dpt_cudnn_shape *b);
    enum dpt_status (*plan_create)(const union dpt_cudnn_shape *shape, cudnnHandle_t handle,
                                   struct dpt_cudnn_plan **ret, int *ret_ids, struct dpt_err *err);
    /* cold_bytes returns the memory that the first run needs; run_once does that run. */
    size_t (*cold_bytes)(const struct dpt_cudnn_entry *entry);
    void (*run_once)(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry, void *memory);
};

struct dpt_cudnn_entry {
    const struct dpt_cudnn_kind *kind;
    union dpt_cudnn_shape shape;
    struct dpt_cudnn_plan *plan;
    /* The ids of the kind's tensors, indexed by their names; -1: the plan has no such tensor. */
    int ids[DPT_ATTENTION_TENSORS];
    bool ran;
};

/* Returns the entry of this shape; makes it if there is none. The pointer is valid until the next
 * call. NULL with the stream's error set. */
struct dpt_cudnn_entry *dpt_cudnn_entry(struct dpt_cuda_stream *s,
                                        const struct dpt_cudnn_kind *kind,
                                        const union dpt_cudnn_shape *shape);

/* Posts a run. `tensors` (n) is indexed by name; only tensors of the plan are read. Errors stick to
 * the stream. */
void dpt_cudnn_run(struct dpt_cuda_stream *s, struct dpt_cudnn_entry *entry, void *const *tensors,
                   int n, void *workspace);

#endif
