/* The weights of a model on the command line (weights.h). */
#include "worker/ckpt/weights.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "worker/ckpt/open.h"
#include "worker/data/tokenizer.h"
#include "worker/weights/weights_source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dpt_ckpt_weights {
    char folder[PATH_MAX]; /* a Hugging Face folder; "": none */
    /* The folder of the run's first weights; "": they were drawn from the seed. */
    char origin[PATH_MAX];
    struct dpt_config config; /* config of the whole model */
    struct dpt_config saved;  /* config of the checkpoint */
    struct dpt_weights_source source;
};

static enum dpt_status refuse_labels(const char *path, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG,
                    "the model in '%s' predicts labels, not tokens: there is no text to generate; "
                    "dpt-worker --eval evaluates it",
                    path);
}

/* ---- of a checkpoint ---- */

static enum dpt_status open_checkpoint(struct dpt_ckpt_weights *w, const char *path,
                                       const char *base, struct dpt_err *err)
{
    DPT_TRY(dpt_ckpt_open(path, &w->source.checkpoint, err));
    const char *yaml = dpt_checkpoint_get_state(w->source.checkpoint)->config_yaml;
    DPT_TRY(dpt_config_load_text(yaml, "the checkpoint's config", NULL, 0, &w->saved, err));
    w->saved.train.precision = DPT_PRECISION_FP32; /* the masters */
    if (w->saved.model.labels > 0)
        return refuse_labels(path, err);
    w->config = w->saved;
    const char *origin = base ? base : w->saved.model.init_from;
    if (snprintf(w->origin, sizeof w->origin, "%s", origin) >= (int)sizeof w->origin)
        return dpt_fail(err, DPT_EINVAL, "the path of the base is too long");
    if (w->saved.train.lora.rank == 0)
        return DPT_OK;
    w->config.train.lora.rank = 0; /* the adapters are merged into their base */
    return dpt_merged_open(&w->saved, w->origin, w->source.checkpoint, &w->source.merged, err);
}

/* ---- of a folder ---- */

/* Sets *ret to the path of the file in the folder, or to "" if there is no such file. */
static enum dpt_status find_file_in(const char *folder, const char *name,
                                    char ret[DPT_CONFIG_PATH_BYTES], struct dpt_err *err)
{
    DPT_TRY(dpt_fs_join(folder, name, ret, DPT_CONFIG_PATH_BYTES, err));
    if (!dpt_fs_exists(ret))
        ret[0] = '\0';
    return DPT_OK;
}

static enum dpt_status find_tokenizer(const char *folder, struct dpt_config *config,
                                      struct dpt_err *err)
{
    DPT_TRY(find_file_in(folder, "tokenizer.json", config->data.tokenizer_json, err));
    DPT_TRY(find_file_in(folder, "merges.txt", config->data.vocab_bpe, err));
    DPT_TRY(find_file_in(folder, "vocab.json", config->data.encoder_json, err));
    /* Any vocabulary fits, because the files belong to these weights. */
    config->data.any_vocab = true;
    if (config->data.tokenizer_json[0])
        config->data.tokenizer = DPT_TOKENIZER_HF;
    else if (config->data.vocab_bpe[0] && config->data.encoder_json[0])
        config->data.tokenizer = DPT_TOKENIZER_GPT2;
    else if (config->model.vocab != DPT_VOCAB_BYTES)
        config->data.kind = DPT_DATA_TOKENS;
    return DPT_OK;
}

static enum dpt_status open_folder(struct dpt_ckpt_weights *w, const char *path,
                                   struct dpt_err *err)
{
    struct dpt_config_sizes sizes;
    int64_t labels;
    if (snprintf(w->folder, sizeof w->folder, "%s", path) >= (int)sizeof w->folder)
        return dpt_fail(err, DPT_EINVAL, "the path is too long");
    DPT_TRY(dpt_published_sizes(path, &sizes, err));
    DPT_TRY(dpt_published_labels(path, &labels, err));
    if (labels > 0 || !dpt_hf_config_has_tokens(&sizes))
        return refuse_labels(path, err);
    DPT_TRY(dpt_ckpt_config_of_sizes(path, &sizes, &w->config, err));
    w->config.train.precision = DPT_PRECISION_FP32;
    return find_tokenizer(path, &w->config, err);
}

/* Opens the folder's weights. Called only when the model is known. */
static enum dpt_status open_published(struct dpt_ckpt_weights *w, const struct dpt_model *model,
                                      struct dpt_err *err)
{
    DPT_TRY(dpt_published_open(w->folder, model, &w->source.published, err));
    dpt_ckpt_tell_left_out(w->folder, w->source.published);
    return DPT_OK;
}

/* Reads all weights in one call, so that each block of a file is read once. */
static enum dpt_status read_checkpoint(const struct dpt_ckpt_weights *w,
                                       const struct dpt_model *model, float *flat,
                                       struct dpt_err *err)
{
    const int n = dpt_model_n_params(model);
    struct dpt_checkpoint_tensor *tensors = calloc((size_t)n, sizeof *tensors);
    if (!tensors)
        return dpt_fail_nomem(err, "table of tensors");
    for (int i = 0; i < n; i++) {
        const struct dpt_param *param = dpt_model_param(model, i);
        tensors[i] = (struct dpt_checkpoint_tensor){
            .name = param->name, .ndim = param->ndim, .param = flat + param->offset};
        memcpy(tensors[i].dim, param->dim, sizeof param->dim);
    }
    const enum dpt_status status = dpt_checkpoint_read(w->source.checkpoint, tensors, n, err);
    free(tensors);
    return status;
}

/* ---- either ---- */

enum dpt_status dpt_ckpt_weights_open(const char *path, const char *base,
                                      struct dpt_config *ret_config, struct dpt_ckpt_weights **ret,
                                      struct dpt_err *err)
{
    struct dpt_ckpt_weights *w = calloc(1, sizeof *w);
    if (!w)
        return dpt_fail_nomem(err, "weights");
    enum dpt_status status = dpt_ckpt_is_folder(path)
                                 ? dpt_ckpt_of_folder(open_folder(w, path, err))
                                 : open_checkpoint(w, path, base, err);
    if (status == DPT_OK && base && !w->source.merged)
        status = dpt_fail(err, DPT_EINVAL,
                          "--base: '%s' has all weights of its model and no adapters "
                          "(train.lora); leave the option out",
                          path);
    if (status != DPT_OK) {
        dpt_ckpt_weights_close(&w);
        return status;
    }
    *ret_config = w->config;
    *ret = w;
    return DPT_OK;
}

void dpt_ckpt_weights_close(struct dpt_ckpt_weights **weights)
{
    struct dpt_ckpt_weights *w = *weights;
    *weights = NULL;
    if (!w)
        return;
    dpt_weights_source_close(&w->source);
    free(w);
}

int64_t dpt_ckpt_weights_step(const struct dpt_ckpt_weights *weights)
{
    const struct dpt_checkpoint *checkpoint = weights->source.checkpoint;
    return checkpoint ? dpt_checkpoint_get_state(checkpoint)->step : -1;
}

enum dpt_status dpt_ckpt_weights_ends(const struct dpt_ckpt_weights *weights,
                                      struct dpt_hf_ends *ret, struct dpt_err *err)
{
    bool same;
    ret->n = 0;
    if (!weights->source.checkpoint)
        return dpt_ckpt_of_folder(dpt_hf_config_ends(weights->folder, ret, err));
    if (weights->origin[0] == '\0' || !dpt_fs_exists(weights->origin))
        return DPT_OK;
    DPT_TRY(dpt_tokenizer_is_of_folder(&weights->saved, weights->origin, &same, err));
    return same ? dpt_hf_config_ends(weights->origin, ret, err) : DPT_OK;
}

enum dpt_status dpt_ckpt_weights_read(struct dpt_ckpt_weights *weights,
                                      const struct dpt_model *model, float *flat,
                                      struct dpt_err *err)
{
    struct dpt_weights_source *source = &weights->source;
    enum dpt_status status = DPT_OK;
    if (source->checkpoint && !source->merged)
        return read_checkpoint(weights, model, flat, err);
    source->model = model;
    if (!source->checkpoint)
        status = open_published(weights, model, err);
    for (int i = 0; i < dpt_model_n_params(model) && status == DPT_OK; i++) {
        const struct dpt_param *param = dpt_model_param(model, i);
        status = dpt_weights_source_read(source, i, 0, param->numel, flat + param->offset, err);
    }
    if (status == DPT_OK)
        status = dpt_weights_source_check(source, err);
    dpt_published_close(&source->published); /* closed now, because it borrows the model */
    source->model = NULL;
    return source->checkpoint ? status : dpt_ckpt_of_folder(status);
}
