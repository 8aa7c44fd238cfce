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

/* f32 elements of scratch that a sum needs. */
size_t dpt_tree_sum_scratch_numel(void);

/* Every array holds `numel` elements. */
struct dpt_tree_sum {
    const struct dpt_partial *parts; /* in lane order; they cover exactly the outs */
    int n_parts;
    const struct dpt_range *out_nodes; /* in lane order */
    float *const *out_data;
    int n_out;
    float *const *copies; /* with a single out its sum is also written to each of these */
    int n_copies;
    enum dpt_dtype dtype; /* that each node's sum is rounded to */
    int64_t numel;
    float *scratch;
};

/* For each of the tree nodes out_nodes[i] writes the sum of its parts, in the tree's order, to
 * out_data[i]. What is written may be the memory of any part: within a chunk everything is read
 * before anything is written. */
void dpt_tree_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_tree_sum *sum);

#endif
