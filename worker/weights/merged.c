/* Weights of a checkpoint, and of a base with its adapters merged (merged.h). */
#include "worker/weights/merged.h"

#include "worker/weights/published.h"

#include <stdlib.h>
#include <string.h>

struct dpt_merged {
    const struct dpt_config *config;
    const char *folder; /* of the base */
    struct dpt_checkpoint *checkpoint;
    struct dpt_model *model; /* the trained tensors; its base has all weights */
    struct dpt_published *base;
    struct dpt_hash128 hash; /* of the elements of the base that were read so far */
    int next_param;          /* the next element to read is next_first of tensor next_param */
    int64_t next_first;
    int held;     /* tensor of the base whose adapters are in a and b; -1: none */
    float *a, *b; /* of the largest adapter */
};

enum dpt_status dpt_checkpoint_weights(struct dpt_checkpoint *checkpoint,
                                       const struct dpt_param *param, int64_t first, int64_t end,
                                       float *ret, struct dpt_err *err)
{
    struct dpt_checkpoint_tensor tensor = {.name = param->name, .ndim = param->ndim};
    memcpy(tensor.dim, param->dim, sizeof param->dim);
    const struct dpt_checkpoint_piece piece = {.first = first, .end = end, .param = ret};
    return dpt_checkpoint_read_pieces(checkpoint, &tensor, &piece, 1, err);
}

static enum dpt_status wrap_base_error(enum dpt_status status, struct dpt_err *err)
{
    return dpt_wrap(err, status,
                    "base of the adapters (model.init_from of the run; --base FOLDER names another "
                    "place)");
}

static enum dpt_status alloc_adapters(struct dpt_merged *m, struct dpt_err *err)
{
    int64_t most = 1;
    for (int i = 0; i < dpt_model_n_params(m->model); i++)
        if (dpt_model_param(m->model, i)->numel > most)
            most = dpt_model_param(m->model, i)->numel;
    m->a = malloc((size_t)most * sizeof *m->a);
    m->b = malloc((size_t)most * sizeof *m->b);
    return m->a && m->b ? DPT_OK : dpt_fail_nomem(err, "an adapter");
}

enum dpt_status dpt_merged_open(const struct dpt_config *config, const char *folder,
                                struct dpt_checkpoint *checkpoint, struct dpt_merged **ret,
                                struct dpt_err *err)
{
    struct dpt_merged *m = calloc(1, sizeof *m);
    if (!m)
        return dpt_fail_nomem(err, "merge adapters");
    m->config = config;
    m->folder = folder;
    m->checkpoint = checkpoint;
    m->held = -1;
    enum dpt_status status = dpt_model_create(config, &m->model, err);
    if (status == DPT_OK)
        status = alloc_adapters(m, err);
    if (status == DPT_OK)
        status = wrap_base_error(
            dpt_published_open(folder, dpt_model_base(m->model), &m->base, err), err);
    if (status != DPT_OK)
        dpt_merged_close(&m);
    else
        *ret = m;
    return status;
}

void dpt_merged_close(struct dpt_merged **merged)
{
    struct dpt_merged *m = *merged;
    *merged = NULL;
    if (!m)
        return;
    dpt_published_close(&m->base);
    dpt_model_destroy(&m->model);
    free(m->a);
    free(m->b);
    free(m);
}

const struct dpt_model *dpt_merged_model(const struct dpt_merged *merged)
{
    return dpt_model_base(merged->model);
}

static enum dpt_status load_adapters(struct dpt_merged *m, int param, int adapter,
                                     struct dpt_err *err)
{
    const struct dpt_param *a = dpt_model_param(m->model, adapter),
                           *b = dpt_model_param(m->model, adapter + 1);
    if (m->held == param)
        return DPT_OK;
    m->held = -1;
    DPT_TRY(dpt_checkpoint_weights(m->checkpoint, a, 0, a->numel, m->a, err));
    DPT_TRY(dpt_checkpoint_weights(m->checkpoint, b, 0, b->numel, m->b, err));
    m->held = param;
    return DPT_OK;
}

static enum dpt_status read_base(struct dpt_merged *m, int param, int64_t first, int64_t end,
                                 float *ret, struct dpt_err *err)
{
    DPT_TRY(dpt_published_read(m->base, param, first, end, ret, err));
    m->hash = dpt_weights_hash_add(m->hash, ret, end - first);
    return DPT_OK;
}

/* Reads the head. The trained head replaces the head of the base; the hash of the base covers the
 * replaced head. */
static enum dpt_status read_head(struct dpt_merged *m, int param, int64_t first, int64_t end,
                                 float *ret, struct dpt_err *err)
{
    if (dpt_published_has(m->base, param))
        DPT_TRY(read_base(m, param, first, end, ret, err));
    return dpt_checkpoint_weights(
        m->checkpoint, dpt_model_param(m->model, dpt_model_score(m->model)), first, end, ret, err);
}

static enum dpt_status read_merged(struct dpt_merged *m, int param, int64_t first, int64_t end,
                                   float *ret, struct dpt_err *err)
{
    const int adapter = dpt_model_adapter(m->model, param);
    DPT_TRY(read_base(m, param, first, end, ret, err));
    if (adapter < 0)
        return DPT_OK;
    DPT_TRY(load_adapters(m, param, adapter, err));
    dpt_model_merge(m->model, param, (struct dpt_span){first, end}, m->a, m->b, ret);
    return DPT_OK;
}

enum dpt_status dpt_merged_read(struct dpt_merged *m, int param, int64_t first, int64_t end,
                                float *ret, struct dpt_err *err)
{
    const int64_t numel = dpt_model_param(dpt_merged_model(m), param)->numel;
    DPT_ASSERT(param == m->next_param && first == m->next_first && end <= numel);
    DPT_ASSERT(end == numel || end % DPT_WEIGHTS_HASH_BLOCK == 0);
    DPT_TRY(param == dpt_model_score(dpt_merged_model(m))
                ? read_head(m, param, first, end, ret, err)
                : read_merged(m, param, first, end, ret, err));
    m->next_param += end == numel;
    m->next_first = end == numel ? 0 : end;
    return DPT_OK;
}

enum dpt_status dpt_merged_check(const struct dpt_merged *m, struct dpt_err *err)
{
    char hex[DPT_HASH_HEX_BYTES];
    DPT_ASSERT(m->next_param == dpt_model_n_params(dpt_merged_model(m)));
    dpt_hash128_hex(m->hash, hex);
    return wrap_base_error(dpt_config_check_base(m->config, m->folder, hex, err), err);
}
