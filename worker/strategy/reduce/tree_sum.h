/* The ordered sum of partial gradients: evaluates the lanes' tree over whatever subtrees came from
 * wherever they lie. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_TREE_SUM_H
#define DPT_WORKER_STRATEGY_REDUCE_TREE_SUM_H

#include "kernels/ops.h"
#include "worker/plan/lanes.h"

enum { DPT_TREE_SUM_CHUNK = 4096, DPT_TREE_SUM_PARTS_MAX = 8192 };

/* A subtree's partial sum. */
struct dpt_partial {
    struct dpt_range node;
    const float *data;
    const void *narrow; /* instead of data: in the dtype that sums are rounded to */
};

/* f32 elements of scratch that dpt_tree_sum needs. */
size_t dpt_tree_sum_scratch_numel(void);

/* For each of the `n_out` tree nodes outs[i].node, in lane order, writes the sum of its parts, in
 * the tree's order, each node's rounded to `dtype`, to out_data[i]. `parts` are in lane order and
 * cover exactly the outs. Every array holds `numel` elements. With a single out its sum is also
 * written to each of `copies`. What is written may be the memory of any part: within a chunk
 * everything is read before anything is written. */
void dpt_tree_sum(const struct dpt_ops *ops, struct dpt_stream *stream,
                  const struct dpt_partial *parts, int n_parts, const struct dpt_range *out_nodes,
                  float *const *out_data, int n_out, float *const *copies, int n_copies,
                  enum dpt_dtype dtype, int64_t numel, float *scratch);

#endif
