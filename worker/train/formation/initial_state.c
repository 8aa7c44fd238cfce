/* The state that a run begins with: weights drawn from the seed, or those of model.init_from (with
 * weights drawn for tensors that are not in it), and moments of zero. Each rank makes, or reads,
 * its own part and its shadow's. */
#include "worker/train/rank_internal.h"
#include "worker/weights/published.h"

#include <string.h>

static size_t piece_bytes(const struct dpt_rank *r, const struct dpt_state_part *part, int unit)
{
    const struct dpt_interval piece = dpt_shard_piece(&r->grid, part->shard, unit);
    return (size_t)(piece.end - piece.first) * sizeof(float);
}

/* The vectors from `first` on. */
static void clear_part(struct dpt_rank *r, const struct dpt_state_part *part, int first)
{
    for (int u = 0; u < r->grid.n_units && !dpt_shard_is_none(part->shard); u++)
        for (int v = first; v < DPT_VECTOR_COUNT; v++)
            if (part->vector[v].mem)
                memset(dpt_state_at(part, &r->grid, (enum dpt_vector)v, u), 0,
                       piece_bytes(r, part, u));
}

static void draw_part(struct dpt_rank *r, const struct dpt_state_part *part)
{
    for (int u = 0; u < r->grid.n_units && !dpt_shard_is_none(part->shard); u++) {
        const struct dpt_interval piece = dpt_shard_piece(&r->grid, part->shard, u);
        dpt_model_init_range(r->model, r->ops, r->stream, r->config->seed, piece.first, piece.end,
                             dpt_state_at(part, &r->grid, DPT_VECTOR_PARAM, u));
    }
    clear_part(r, part, DPT_VECTOR_M);
}

/* Draws a piece of a tensor that is not in the folder. */
static void draw_piece(struct dpt_rank *r, const struct dpt_checkpoint_piece *piece)
{
    const int64_t offset = dpt_model_param(r->model, piece->tensor)->offset;
    dpt_model_init_range(r->model, r->ops, r->stream, r->config->seed, offset + piece->first,
                         offset + piece->end, piece->param);
}

static enum dpt_status read_part(struct dpt_rank *r, struct dpt_published *weights,
                                 const struct dpt_state_part *part, struct dpt_err *err)
{
    struct dpt_pieces pieces = {.n = 0};
    enum dpt_status status = DPT_OK;
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    clear_part(r, part, DPT_VECTOR_PARAM); /* the gaps, too */
    DPT_TRY(dpt_pieces_of_part(&r->tensors, part, &pieces, err));
    for (int i = 0; i < pieces.n && status == DPT_OK; i++) {
        const struct dpt_checkpoint_piece *piece = &pieces.piece[i];
        if (dpt_published_has(weights, piece->tensor))
            status = dpt_published_read(weights, piece->tensor, piece->first, piece->end,
                                        piece->param, err);
        else
            draw_piece(r, piece);
    }
    dpt_pieces_fini(&pieces);
    return status;
}

/* Where several nodes begin together, one rank of each node reads its whole folder for the hash: a
 * part of the folder does not show a difference between nodes. */
static bool says_origin(const struct dpt_rank *r)
{
    return r->config->cluster.nnodes_max > 1 && r->options->start->local_rank == 0;
}

static enum dpt_status read_weights(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                    struct dpt_err *err)
{
    const struct dpt_strategy_state *wanted = r->strategy->ops->wanted(r->strategy);
    struct dpt_published *weights = NULL;
    enum dpt_status status =
        dpt_published_open(r->config->model.init_from, r->model, &weights, err);
    if (status == DPT_OK && says_origin(r))
        status = dpt_published_hash(weights, ret_origin, err);
    if (status == DPT_OK)
        status = read_part(r, weights, &wanted->own, err);
    if (status == DPT_OK)
        status = read_part(r, weights, &wanted->shadow, err);
    dpt_published_close(&weights);
    if (status == DPT_OK)
        status = dpt_stream_sync(r->stream, err); /* what was drawn */
    return status == DPT_OK || status == DPT_ENOMEM ? status
                                                    : dpt_wrap(err, DPT_ECONFIG, "model.init_from");
}

/* Of the labels' head, which is trained beside adapters and may be in the base's folder. */
static enum dpt_status read_score(struct dpt_rank *r, struct dpt_published *weights,
                                  const struct dpt_state_part *part, struct dpt_err *err)
{
    struct dpt_pieces pieces = {.n = 0};
    enum dpt_status status = DPT_OK;
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    DPT_TRY(dpt_pieces_of_part(&r->tensors, part, &pieces, err));
    for (int i = 0; i < pieces.n && status == DPT_OK; i++) {
        const struct dpt_checkpoint_piece *piece = &pieces.piece[i];
        if (piece->tensor == dpt_model_score(r->model))
            status = dpt_published_read(weights, dpt_model_score(dpt_model_base(r->model)),
                                        piece->first, piece->end, piece->param, err);
    }
    dpt_pieces_fini(&pieces);
    return status;
}

/* Adapters are drawn. */
static enum dpt_status begin_adapters(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_strategy_state *wanted = r->strategy->ops->wanted(r->strategy);
    const struct dpt_model *base = dpt_model_base(r->model);
    struct dpt_published *weights = NULL;
    draw_part(r, &wanted->own);
    draw_part(r, &wanted->shadow);
    DPT_TRY(dpt_stream_sync(r->stream, err));
    if (dpt_model_score(base) < 0)
        return DPT_OK;
    enum dpt_status status = dpt_published_open(r->config->model.init_from, base, &weights, err);
    if (status == DPT_OK && dpt_published_has(weights, dpt_model_score(base))) {
        status = read_score(r, weights, &wanted->own, err);
        if (status == DPT_OK)
            status = read_score(r, weights, &wanted->shadow, err);
    }
    dpt_published_close(&weights);
    return status == DPT_OK || status == DPT_ENOMEM ? status
                                                    : dpt_wrap(err, DPT_ECONFIG, "model.init_from");
}

enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                 struct dpt_err *err)
{
    const struct dpt_strategy_state *wanted = r->strategy->ops->wanted(r->strategy);
    DPT_TRY(rank_refuse_seed(r, err));
    dpt_scaler_init(r->config, &r->scaler);
    r->epoch = (struct dpt_epoch){0};
    if (dpt_model_base(r->model)) {
        *ret_origin = (struct dpt_hash128){.lo = 1}; /* as of the seed: the base is compared, too */
        return begin_adapters(r, err);
    }
    if (r->config->model.init_from[0])
        return read_weights(r, ret_origin, err);
    draw_part(r, &wanted->own);
    draw_part(r, &wanted->shadow);
    *ret_origin = (struct dpt_hash128){.lo = 1}; /* the seed, which is compared with the config */
    return dpt_stream_sync(r->stream, err);
}
