/* The ordered sum, chunk by chunk so that intermediate sums stay in the cache. */
#include "worker/strategy/reduce/tree_sum.h"

#include "worker/trace/span.h"

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
    int next; /* the first part not yet used; the walk meets parts in lane order */
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

/* Writes the sum of every output node over the chunk. */
static void add_chunk(const struct dpt_tree_sum *s, struct eval *e)
{
    const size_t bytes = (size_t)e->numel * sizeof(float);
    const int64_t at = e->offset;
    const float *sum[DPT_COVER_MAX];
    for (int i = 0; i < s->n_out; i++) {
        /* A single result is written directly to its place: nothing is read after the last
         * addition. */
        float *dst =
            s->n_out == 1 ? s->out_data[0] + at : s->scratch + (size_t)i * DPT_TREE_SUM_CHUNK;
        sum[i] = eval_node(e, s->out_nodes[i], 0, dst);
        if (s->n_out > 1 && sum[i] != dst && sum[i] != s->out_data[i] + at) {
            /* A part that is already a result may lie in the memory of another result. */
            e->ops->copy(e->stream, bytes, sum[i], dst);
            sum[i] = dst;
        }
    }
    DPT_ASSERT(e->next == s->n_parts);
    for (int i = 0; i < s->n_out; i++)
        if (sum[i] != s->out_data[i] + at)
            e->ops->copy(e->stream, bytes, sum[i], s->out_data[i] + at);
    for (int i = 0; i < s->n_copies; i++)
        e->ops->copy(e->stream, bytes, s->out_data[0] + at, s->copies[i] + at);
}

void dpt_tree_sum_add(const struct dpt_ops *ops, struct dpt_stream *stream,
                      const struct dpt_tree_sum *s)
{
    DPT_ASSERT(s->n_out <= DPT_COVER_MAX && (s->n_copies == 0 || s->n_out == 1));
    /* One span: a step has some ten thousand chunks, each with an op for each addition. */
    const struct dpt_trace_whole whole = dpt_trace_begin_whole();
    for (int64_t at = 0; at < s->numel; at += DPT_TREE_SUM_CHUNK) {
        const int64_t left = s->numel - at;
        struct eval e = {.ops = ops,
                         .stream = stream,
                         .parts = s->parts,
                         .n_parts = s->n_parts,
                         .dtype = s->dtype,
                         .offset = at,
                         .numel = left < DPT_TREE_SUM_CHUNK ? left : DPT_TREE_SUM_CHUNK,
                         .levels = s->scratch + (size_t)DPT_COVER_MAX * DPT_TREE_SUM_CHUNK};
        add_chunk(s, &e);
    }
    dpt_trace_end_whole(&whole,
                        &(struct dpt_trace_span){.name = "ordered_sum",
                                                 .kind = DPT_TRACE_OP,
                                                 .key = {"numel", "parts", "results"},
                                                 .value = {s->numel, s->n_parts, s->n_out}});
}
