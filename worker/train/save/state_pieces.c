/* Pieces of the state (state_pieces.h). */
#include "worker/train/save/state_pieces.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)DPT_PARAM_NDIM_MAX == (int)DPT_CHECKPOINT_NDIM_MAX, "one shape");

enum dpt_status dpt_state_tensors_init(const struct dpt_model *model, const struct dpt_grid *grid,
                                       struct dpt_state_tensors *ret, struct dpt_err *err)
{
    *ret = (struct dpt_state_tensors){.n = dpt_model_n_params(model), .grid = grid};
    ret->tensor = calloc((size_t)ret->n, sizeof *ret->tensor);
    ret->offset = calloc((size_t)ret->n, sizeof *ret->offset);
    if (!ret->tensor || !ret->offset)
        return dpt_fail_nomem(err, "table of tensors");
    for (int i = 0; i < ret->n; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        ret->tensor[i] = (struct dpt_checkpoint_tensor){.name = p->name, .ndim = p->ndim};
        memcpy(ret->tensor[i].dim, p->dim, sizeof p->dim);
        ret->offset[i] = p->offset;
    }
    return DPT_OK;
}

void dpt_state_tensors_fini(struct dpt_state_tensors *tensors)
{
    free(tensors->tensor);
    free(tensors->offset);
    *tensors = (struct dpt_state_tensors){.n = 0};
}

void dpt_state_pieces_fini(struct dpt_state_pieces *pieces)
{
    free(pieces->piece);
    *pieces = (struct dpt_state_pieces){.n = 0};
}

/* The address of element `x` of the flat vector. `x` lies in the part's piece of `unit`. */
static float *value_at(const struct dpt_state_part *part, const struct dpt_grid *grid,
                       enum dpt_vector vector, int unit, int64_t x)
{
    if (!part->vector[vector].mem)
        return NULL;
    const struct dpt_interval piece = dpt_shard_piece(grid, part->shard, unit);
    return dpt_strategy_state_at(part, grid, vector, unit) + (x - piece.first);
}

/* Cuts intervals of the part at the ends of tensors. Each interval lies in one unit. */
static enum dpt_status cut_intervals(const struct dpt_state_tensors *tensors,
                                     const struct dpt_state_part *part,
                                     const struct dpt_interval *intervals, int n,
                                     struct dpt_state_pieces *ret, struct dpt_err *err)
{
    const struct dpt_grid *grid = tensors->grid;
    struct dpt_checkpoint_range *ranges = calloc((size_t)n + 1, sizeof *ranges);
    /* Each piece ends at the end of a range or of a tensor. */
    const int n_max = n + tensors->n;
    struct dpt_checkpoint_piece *pieces = calloc((size_t)n_max + 1, sizeof *pieces);
    if (!ranges || !pieces) {
        free(ranges);
        free(pieces);
        return dpt_fail_nomem(err, "pieces of the state");
    }
    for (int i = 0, unit = 0; i < n; i++) {
        const int64_t x = intervals[i].first;
        while (x >= grid->offset[unit + 1])
            unit++;
        ranges[i] =
            (struct dpt_checkpoint_range){.first = x,
                                          .end = intervals[i].end,
                                          .param = value_at(part, grid, DPT_VECTOR_PARAM, unit, x),
                                          .m = value_at(part, grid, DPT_VECTOR_M, unit, x),
                                          .v = value_at(part, grid, DPT_VECTOR_V, unit, x)};
    }
    dpt_state_pieces_fini(ret);
    const struct dpt_checkpoint_vector vector = {tensors->tensor, tensors->offset, tensors->n};
    ret->n = dpt_checkpoint_cut(&vector, ranges, n, pieces, n_max);
    ret->piece = pieces;
    free(ranges);
    return DPT_OK;
}

enum dpt_status dpt_state_pieces_of_part(const struct dpt_state_tensors *tensors,
                                         const struct dpt_state_part *part,
                                         struct dpt_state_pieces *ret, struct dpt_err *err)
{
    const struct dpt_grid *grid = tensors->grid;
    struct dpt_interval *intervals = calloc((size_t)grid->n_units + 1, sizeof *intervals);
    if (!intervals)
        return dpt_fail_nomem(err, "pieces of the state");
    int n = 0;
    for (int unit = 0; unit < grid->n_units; unit++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, part->shard, unit);
        if (piece.first < piece.end)
            intervals[n++] = piece;
    }
    enum dpt_status status = cut_intervals(tensors, part, intervals, n, ret, err);
    free(intervals);
    return status;
}

enum dpt_status dpt_state_pieces_to_write(const struct dpt_state_tensors *tensors,
                                          const struct dpt_state_part *part,
                                          const struct dpt_piece_writers *writers,
                                          struct dpt_state_pieces *ret, struct dpt_err *err)
{
    const struct dpt_shard *shards = writers->shards;
    const int n = writers->n, writer = writers->writer;
    struct dpt_share share = {.interval = NULL};
    DPT_ASSERT(dpt_shard_equal(shards[writer], part->shard));
    dpt_writer_share(tensors->grid, shards, n, writer, &share, 0);
    struct dpt_interval *intervals = calloc((size_t)share.n + 1, sizeof *intervals);
    if (!intervals)
        return dpt_fail_nomem(err, "pieces of the state");
    share.interval = intervals;
    dpt_writer_share(tensors->grid, shards, n, writer, &share, share.n);
    enum dpt_status status = cut_intervals(tensors, part, intervals, share.n, ret, err);
    /* In place, because the pieces of a replica are consecutive. */
    if (status == DPT_OK && share.n_replicas > 1)
        ret->n =
            dpt_checkpoint_divide(ret->piece, ret->n, share.replica, share.n_replicas, ret->piece);
    free(intervals);
    return status;
}
