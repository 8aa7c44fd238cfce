/* The global norm of a gradient and clipping (optim.h). There is a sum of squares for each block.
 * In a block with running statistics, each piece without statistics has a separate sum, after the
 * sums of all blocks.
 *
 * The sum of a block with running statistics is not counted; it only shows whether the block is
 * finite. */
#include "worker/optim/optim.h"

enum { PIECES_MAX = 2 * DPT_PARAMS_MAX };

static int64_t block_start(int64_t element)
{
    return element / DPT_BLOCK * DPT_BLOCK;
}

/* Finds the pieces without statistics in the blocks with running statistics: before each statistic,
 * and at the end of a block. The pieces are in ascending order. */
static int find_pieces(const struct dpt_model *model, struct dpt_span span,
                       struct dpt_span ret[PIECES_MAX])
{
    const int n_params = dpt_model_n_params(model);
    int64_t done = span.first; /* a block's start, or inside a block with statistics */
    int n = 0;
    for (int i = 0; i < n_params; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        const struct dpt_span statistic = dpt_span_overlap(span, dpt_param_span(p));
        if (!p->averaged || statistic.first >= statistic.end)
            continue;
        if (done < block_start(statistic.first)) {
            if (done > block_start(done))
                ret[n++] = (struct dpt_span){done, block_start(done) + DPT_BLOCK};
            done = block_start(statistic.first);
        }
        if (done < statistic.first)
            ret[n++] = (struct dpt_span){done, statistic.first};
        done = statistic.end;
    }
    if (done > block_start(done))
        ret[n++] = (struct dpt_span){done, block_start(done) + DPT_BLOCK};
    return n;
}

int64_t dpt_optim_squares_max(const struct dpt_model *model, int64_t numel)
{
    int64_t n = numel / DPT_BLOCK;
    for (int i = 0; i < dpt_model_n_params(model); i++)
        n += dpt_model_param(model, i)->averaged ? 2 : 0; /* before and after it */
    return n;
}

int64_t dpt_optim_squares(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, struct dpt_span span, const float *grad,
                          double *ret)
{
    const int64_t numel = span.end - span.first, n_blocks = numel / DPT_BLOCK;
    DPT_ASSERT(span.first % DPT_BLOCK == 0 && span.end % DPT_BLOCK == 0 && numel >= 0);
    struct dpt_span pieces[PIECES_MAX];
    const int n_pieces = find_pieces(model, span, pieces);
    ops->sumsq_blocks(stream, numel, DPT_BLOCK, grad, ret);
    for (int i = 0; i < n_pieces; i++)
        ops->sumsq_blocks(stream, pieces[i].end - pieces[i].first, DPT_BLOCK,
                          grad + (pieces[i].first - span.first), ret + n_blocks + i);
    return n_blocks + n_pieces;
}

int64_t dpt_optim_squares_add(const struct dpt_model *model, struct dpt_span span,
                              const double *squares, struct dpt_accum *sum)
{
    const int64_t n_blocks = (span.end - span.first) / DPT_BLOCK;
    const int n_params = dpt_model_n_params(model);
    int i = 0; /* the first statistic that does not end before the block */
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t start = span.first + b * DPT_BLOCK;
        while (i < n_params && (!dpt_model_param(model, i)->averaged ||
                                dpt_param_span(dpt_model_param(model, i)).end <= start))
            i++;
        const bool holds = i < n_params && dpt_model_param(model, i)->offset < start + DPT_BLOCK;
        dpt_accum_add(sum, holds ? 0.0 * squares[b] : squares[b]); /* 0, or NaN */
    }
    struct dpt_span pieces[PIECES_MAX];
    const int n_pieces = find_pieces(model, span, pieces);
    for (int p = 0; p < n_pieces; p++)
        dpt_accum_add(sum, squares[n_blocks + p]);
    return n_blocks + n_pieces;
}

float dpt_optim_clip_scale(double norm, double max_norm)
{
    if (max_norm == 0.0 || norm <= max_norm)
        return 1.0f;
    return (float)(max_norm / (norm + 1e-6));
}
