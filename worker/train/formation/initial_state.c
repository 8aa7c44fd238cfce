/* Makes the state of step 0: weights drawn from the seed or read from model.init_from, and moments
 * of zero. Each rank makes its own part and its shadow. Tensors that the folder lacks are drawn. */
#include "worker/train/device/rank_device.h"
#include "worker/train/formation/formation.h"
#include "worker/train/save/save.h"
#include "worker/weights/published.h"

#include <string.h>

/* Clears all vectors of the part, padding included. */
static void clear_part(const struct dpt_rank *r, const struct dpt_state_part *part)
{
    for (int u = 0; u < r->grid.n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(&r->grid, part->shard, u);
        for (int v = 0; v < DPT_VECTOR_COUNT; v++)
            if (part->vector[v].mem)
                memset(dpt_strategy_state_at(part, &r->grid, (enum dpt_vector)v, u), 0,
                       (size_t)(piece.end - piece.first) * sizeof(float));
    }
}

/* The tensor of the folder from which the model's tensor `tensor` is read; -1: the tensor is drawn.
 * Adapters are drawn. The head of labels, which is trained beside the adapters, is read from the
 * base's head. */
static int published_tensor(const struct dpt_rank *r, const struct dpt_published *weights,
                            int tensor)
{
    const struct dpt_model *base = dpt_model_base(r->model);
    const int published = !base                                 ? tensor
                          : tensor == dpt_model_score(r->model) ? dpt_model_score(base)
                                                                : -1;
    return weights && published >= 0 && dpt_published_has(weights, published) ? published : -1;
}

static enum dpt_status init_piece(struct dpt_rank *r, struct dpt_published *weights,
                                  const struct dpt_checkpoint_piece *piece, struct dpt_err *err)
{
    const int published = published_tensor(r, weights, piece->tensor);
    const int64_t offset = dpt_model_param(r->model, piece->tensor)->offset;
    const struct dpt_span span = {offset + piece->first, offset + piece->end};
    if (published >= 0)
        return dpt_published_read(weights, published, piece->first, piece->end, piece->param, err);
    dpt_model_init_range(r->model, r->device->ops, r->device->stream, r->config->seed, span,
                         piece->param);
    return DPT_OK;
}

static enum dpt_status init_part(struct dpt_rank *r, struct dpt_published *weights,
                                 const struct dpt_state_part *part, struct dpt_err *err)
{
    struct dpt_state_pieces pieces = {.n = 0};
    enum dpt_status status = DPT_OK;
    if (dpt_shard_is_none(part->shard))
        return DPT_OK;
    clear_part(r, part);
    DPT_TRY(dpt_state_pieces_of_part(&r->save->tensors, part, &pieces, err));
    for (int i = 0; i < pieces.n && status == DPT_OK; i++)
        status = init_piece(r, weights, &pieces.piece[i], err);
    dpt_state_pieces_fini(&pieces);
    return status;
}

static enum dpt_status init_parts(struct dpt_rank *r, struct dpt_published *weights,
                                  struct dpt_err *err)
{
    const struct dpt_strategy_state *wanted = dpt_strategy_wanted(r->strategy);
    DPT_TRY(init_part(r, weights, &wanted->own, err));
    DPT_TRY(init_part(r, weights, &wanted->shadow, err));
    return dpt_stream_sync(r->device->stream, err); /* waits for the drawn values */
}

/* Whether this rank hashes the whole folder. If several nodes begin together, one rank of each node
 * does: the parts that the ranks read do not show a difference between nodes. */
static bool hashes_origin(const struct dpt_rank *r)
{
    return !dpt_model_base(r->model) && r->config->cluster.nnodes_max > 1 &&
           r->options->start->local_rank == 0;
}

static enum dpt_status begin_from_folder(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                         struct dpt_err *err)
{
    const struct dpt_model *base = dpt_model_base(r->model);
    struct dpt_published *weights = NULL;
    enum dpt_status status =
        dpt_published_open(r->config->model.init_from, base ? base : r->model, &weights, err);
    if (status == DPT_OK && hashes_origin(r))
        status = dpt_published_read_all(weights, NULL, ret_origin, err);
    if (status == DPT_OK)
        status = init_parts(r, weights, err);
    dpt_published_close(&weights);
    return status == DPT_OK || status == DPT_ENOMEM ? status
                                                    : dpt_wrap(err, DPT_ECONFIG, "model.init_from");
}

enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                 struct dpt_err *err)
{
    const struct dpt_model *base = dpt_model_base(r->model);
    DPT_TRY(rank_refuse_seed(r, err));
    dpt_scaler_init(r->config, &r->state.scaler);
    r->state.epoch = (struct dpt_epoch){0};
    const bool from_seed = base ? dpt_model_score(base) < 0 : !r->config->model.init_from[0];
    /* The seed and a base have one fixed value: a base is compared with the config's hash. */
    if (from_seed || base)
        *ret_origin = (struct dpt_hash128){.lo = 1};
    return from_seed ? init_parts(r, NULL, err) : begin_from_folder(r, ret_origin, err);
}
