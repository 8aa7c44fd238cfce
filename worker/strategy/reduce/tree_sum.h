/* The ordered sum of partial gradients: evaluates the lanes' tree over subtree sums, which may lie
 * in any memory. */
#ifndef DPT_WORKER_STRATEGY_REDUCE_TREE_SUM_H
#define DPT_WORKER_STRATEGY_REDUCE_TREE_SUM_H

#include "kernels/ops.h"
#include "worker/plan/lanes.h"

enum { DPT_TREE_SUM_CHUNK = 4096, DPT_TREE_SUM_PARTS_MAX = 8192 };

/* A subtree's partial sum. */
struct dpt_partial {
    struct dpt_range node;
    const float *data;
    const void *narrow; /* instead of data: the values in `dtype` of the sum */
};

/* f32 elements of scratch that a sum needs. */
size_t dpt_tree_sum_scratch_numel(void);

/* Every array holds `numel` elements. */
struct dpt_tree_sum {
    /* In lane order; together they cover exactly the output nodes. */
    const struct dpt_partial *parts;
    int n_parts;
    const struct dpt_range *out_nodes; /* in lane order */
    float *const *out_data;
    int n_out;
    float *const *copies; /* with one output node: addresses that also get its sum */
    int n_copies;
    enum dpt_dtype dtype; /* each node's sum is rounded to this dtype */
    int64_t numel;
    float *scratch;
};

/* For each of the tree nodes out_nodes[i] writes the sum of its parts, in the tree's order, to
 * out_data[i]. An output may be the memory of any part: within a chunk everything is read before
 * anything is written. A trace shows the call as one op, "ordered_sum". */
void dpt_tree_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_tree_sum *sum);

#endif
