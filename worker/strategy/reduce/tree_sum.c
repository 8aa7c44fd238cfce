/* The ordered sum, chunk by chunk so that intermediate sums stay in the cache. */
#include "worker/strategy/reduce/tree_sum.h"

/* Scratch: results of up to DPT_COVER_MAX nodes, then two chunks (left, right) for each level below
 * a node. */
enum { LEVELS = DPT_TREE_DEPTH_MAX + 1, SCRATCH_CHUNKS = DPT_COVER_MAX + 2 * LEVELS };

size_t dpt_tree_sum_scratch_numel(void)
{
    return (size_t)SCRATCH_CHUNKS * DPT_TREE_SUM_CHUNK;
}

struct eval {
    const struct dpt_ops *ops;
    struct dpt_stream *stream;
    const struct dpt_partial *parts;
    int next; /* the first part not yet used: parts are met in lane order */
    int n_parts;
    enum dpt_dtype dtype;
    int64_t offset, numel; /* the chunk */
    float *levels;
};

/* The sum of `node` over the chunk: a part's own memory, or `dst`. */
static const float *eval_node(struct eval *e, struct dpt_range node, int level, float *dst)
{
    DPT_ASSERT(e->next < e->n_parts && level < LEVELS);
    const struct dpt_partial *part = &e->parts[e->next];
    if (part->node.first == node.first && part->node.end == node.end) {
        e->next++;
        if (!part->narrow)
            return part->data + e->offset;
        e->ops->widen(e->stream, e->numel, e->dtype,
                      (const char *)part->narrow + (size_t)e->offset * dpt_dtype_bytes(e->dtype),
                      dst);
        return dst;
    }
    DPT_ASSERT(node.end - node.first >= 2);
    int split = dpt_tree_split(node);
    float *temp = e->levels + (size_t)(2 * level) * DPT_TREE_SUM_CHUNK;
    const float *left = eval_node(e, (struct dpt_range){node.first, split}, level + 1, temp);
    const float *right =
        eval_node(e, (struct dpt_range){split, node.end}, level + 1, temp + DPT_TREE_SUM_CHUNK);
    e->ops->add(e->stream, e->numel, left, right, dst);
    e->ops->round_to(e->stream, e->numel, e->dtype, dst);
    return dst;
}

void dpt_tree_sum(const struct dpt_ops *ops, struct dpt_stream *stream,
                  const struct dpt_partial *parts, int n_parts, const struct dpt_range *out_nodes,
                  float *const *out_data, int n_out, float *const *copies, int n_copies,
                  enum dpt_dtype dtype, int64_t numel, float *scratch)
{
    DPT_ASSERT(n_out <= DPT_COVER_MAX && (n_copies == 0 || n_out == 1));
    const float *sum[DPT_COVER_MAX];
    for (int64_t at = 0; at < numel; at += DPT_TREE_SUM_CHUNK) {
        int64_t len = numel - at < DPT_TREE_SUM_CHUNK ? numel - at : DPT_TREE_SUM_CHUNK;
        struct eval e = {.ops = ops,
                         .stream = stream,
                         .parts = parts,
                         .n_parts = n_parts,
                         .dtype = dtype,
                         .offset = at,
                         .numel = len,
                         .levels = scratch + (size_t)DPT_COVER_MAX * DPT_TREE_SUM_CHUNK};
        for (int i = 0; i < n_out; i++) {
            /* A single result can go straight to its place: nothing is read after the last
             * addition. */
            float *dst = n_out == 1 ? out_data[0] + at : scratch + (size_t)i * DPT_TREE_SUM_CHUNK;
            sum[i] = eval_node(&e, out_nodes[i], 0, dst);
            if (n_out > 1 && sum[i] != dst && sum[i] != out_data[i] + at) {
                /* A part that is a result as it stands may lie where another result goes. */
                ops->copy(stream, (size_t)len * sizeof(float), sum[i], dst);
                sum[i] = dst;
            }
        }
        DPT_ASSERT(e.next == n_parts);
        for (int i = 0; i < n_out; i++)
            if (sum[i] != out_data[i] + at)
                ops->copy(stream, (size_t)len * sizeof(float), sum[i], out_data[i] + at);
        for (int i = 0; i < n_copies; i++)
            ops->copy(stream, (size_t)len * sizeof(float), out_data[0] + at, copies[i] + at);
    }
}
