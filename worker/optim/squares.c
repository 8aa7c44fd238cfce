/* The squares of a gradient for its norm (optim.h): a sum for each block, and behind these, where
 * blocks hold running statistics, one for each piece of them that holds none.
 *
 * The sum of such a block is made with all others but not counted: it only tells whether the block
 * is finite. */
#include "worker/optim/optim.h"

enum { PIECES_MAX = 2 * DPT_PARAMS_MAX };

struct piece {
    int64_t first, end;
};

static int64_t end_of(const struct dpt_param *param)
{
    return param->offset + param->numel;
}

static int64_t block_start(int64_t element)
{
    return element / DPT_BLOCK * DPT_BLOCK;
}

/* Pieces without running statistics of the blocks with some, ascending: before each statistic, and
 * at the end of a block. */
static int find_pieces(const struct dpt_model *model, int64_t first, int64_t end,
                       struct piece ret[PIECES_MAX])
{
    const int n_params = dpt_model_n_params(model);
    int64_t done = first; /* a block's start, or inside of one that holds statistics */
    int n = 0;
    for (int i = 0; i < n_params; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        if (!p->averaged || end_of(p) <= first || p->offset >= end)
            continue;
        const int64_t from = p->offset > first ? p->offset : first;
        if (done < block_start(from)) {
            if (done > block_start(done))
                ret[n++] = (struct piece){done, block_start(done) + DPT_BLOCK};
            done = block_start(from);
        }
        if (done < from)
            ret[n++] = (struct piece){done, from};
        done = end_of(p) < end ? end_of(p) : end;
    }
    if (done > block_start(done))
        ret[n++] = (struct piece){done, block_start(done) + DPT_BLOCK};
    return n;
}

int64_t dpt_optim_squares_max(const struct dpt_model *model, int64_t numel)
{
    int64_t n = numel / DPT_BLOCK;
    for (int i = 0; i < dpt_model_n_params(model); i++)
        n += dpt_model_param(model, i)->averaged ? 2 : 0; /* before it, and behind */
    return n;
}

int64_t dpt_optim_squares(const struct dpt_model *model, const struct dpt_ops *ops,
                          struct dpt_stream *stream, int64_t first, int64_t end, const float *grad,
                          double *ret)
{
    DPT_ASSERT(first % DPT_BLOCK == 0 && end % DPT_BLOCK == 0 && first <= end);
    const int64_t n_blocks = (end - first) / DPT_BLOCK;
    struct piece pieces[PIECES_MAX];
    const int n_pieces = find_pieces(model, first, end, pieces);
    ops->sumsq_blocks(stream, end - first, DPT_BLOCK, grad, ret);
    for (int i = 0; i < n_pieces; i++)
        ops->sumsq_blocks(stream, pieces[i].end - pieces[i].first, DPT_BLOCK,
                          grad + (pieces[i].first - first), ret + n_blocks + i);
    return n_blocks + n_pieces;
}

int64_t dpt_optim_squares_add(const struct dpt_model *model, int64_t first, int64_t end,
                              const double *squares, struct dpt_accum *sum)
{
    const int64_t n_blocks = (end - first) / DPT_BLOCK;
    const int n_params = dpt_model_n_params(model);
    int i = 0; /* the next statistic that is not before the block */
    for (int64_t b = 0; b < n_blocks; b++) {
        const int64_t start = first + b * DPT_BLOCK;
        while (i < n_params &&
               (!dpt_model_param(model, i)->averaged || end_of(dpt_model_param(model, i)) <= start))
            i++;
        const bool holds = i < n_params && dpt_model_param(model, i)->offset < start + DPT_BLOCK;
        dpt_accum_add(sum, holds ? 0.0 * squares[b] : squares[b]); /* 0, or NaN */
    }
    struct piece pieces[PIECES_MAX];
    const int n_pieces = find_pieces(model, first, end, pieces);
    for (int p = 0; p < n_pieces; p++)
        dpt_accum_add(sum, squares[n_blocks + p]);
    return n_blocks + n_pieces;
}
