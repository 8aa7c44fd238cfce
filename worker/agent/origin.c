/* Sizes, tensors and hash of the weights in model.init_from. */
#include "worker/agent/origin.h"

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "worker/data/tokenizer.h"
#include "worker/model/hf_config.h"
#include "worker/weights/published.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Step of the newest checkpoint; -1: none. */
static enum dpt_status newest_step(const struct dpt_config *config, int64_t *ret,
                                   struct dpt_err *err)
{
    *ret = -1;
    return config->checkpoint.dir[0] ? dpt_checkpoint_newest(config->checkpoint.dir, ret, err)
                                     : DPT_OK;
}

static enum dpt_status sizes_of_checkpoint(const char *dir, int64_t step,
                                           struct dpt_config_sizes *ret, struct dpt_err *err)
{
    char source[DPT_CONFIG_PATH_BYTES + 64];
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_config *saved = malloc(sizeof *saved);
    if (saved == NULL)
        return dpt_fail_nomem(err, "the checkpoint's config");
    enum dpt_status status = dpt_checkpoint_open(dir, step, &checkpoint, err);
    if (status == DPT_OK) {
        const char *yaml = dpt_checkpoint_get_state(checkpoint)->config_yaml;
        status = dpt_config_load_text(yaml, "the checkpoint's config", NULL, 0, saved, err);
    }
    if (status == DPT_OK) {
        (void)snprintf(source, sizeof source, "the checkpoint of step %lld in '%s'",
                       (long long)step, dir);
        dpt_hf_config_said(saved, source, ret);
    }
    dpt_checkpoint_close(&checkpoint);
    free(saved);
    return status;
}

/* Adds the key that names the folder to the error. */
static enum dpt_status blame_key(enum dpt_status status, struct dpt_err *err)
{
    return status == DPT_OK || status == DPT_ENOMEM ? status
                                                    : dpt_wrap(err, DPT_ECONFIG, "model.init_from");
}

enum dpt_status dpt_origin_sizes(const struct dpt_config *written, struct dpt_config_sizes *ret,
                                 struct dpt_err *err)
{
    int64_t step;
    ret->n = 0;
    if (written->model.init_from[0] == '\0')
        return DPT_OK;
    DPT_TRY(newest_step(written, &step, err));
    /* Ranks skip unreadable checkpoints too, and log them. */
    while (step >= 0) {
        struct dpt_err damage;
        if (sizes_of_checkpoint(written->checkpoint.dir, step, ret, &damage) == DPT_OK)
            return DPT_OK;
        dpt_log(DPT_LOG_DEBUG, "sizes of the checkpoint of step %lld: %s", (long long)step,
                damage.text);
        DPT_TRY(dpt_checkpoint_newest_below(written->checkpoint.dir, step, &step, err));
    }
    return blame_key(dpt_published_sizes(written->model.init_from, ret, err), err);
}

/* The model with all weights: the base of adapters. */
static const struct dpt_model *whole_model(const struct dpt_model *model)
{
    const struct dpt_model *base = dpt_model_base(model);
    return base != NULL ? base : model;
}

static void log_left_out(const struct dpt_config *config, const struct dpt_published *weights)
{
    char names[DPT_PUBLISHED_LEFT_OUT_BYTES];
    if (dpt_published_left_out(weights, names) > 0)
        dpt_log(DPT_LOG_WARN,
                "model.init_from: '%s' has tensors that are not in the model: %s; they "
                "are left out",
                config->model.init_from, names);
}

static void log_fresh_head(const struct dpt_config *config, const struct dpt_model *model,
                           const struct dpt_published *weights)
{
    const int score = dpt_model_score(model);
    for (int i = score; score >= 0 && i < dpt_model_n_params(model); i++)
        if (!dpt_published_has(weights, i))
            dpt_log(DPT_LOG_INFO,
                    "model.init_from: '%s' has no %s of %d labels: the head begins with random "
                    "weights",
                    config->model.init_from, dpt_model_param(model, i)->name,
                    dpt_model_labels(model));
}

/* Whether the run begins from the folder, because it has no checkpoint. */
static enum dpt_status begins_there(const struct dpt_config *config, bool *ret, struct dpt_err *err)
{
    int64_t step = -1;
    const bool has_folder = config->model.init_from[0] != '\0';
    if (has_folder)
        DPT_TRY(newest_step(config, &step, err));
    *ret = has_folder && step < 0;
    return DPT_OK;
}

static enum dpt_status note_base(struct dpt_config *config, struct dpt_published *weights,
                                 struct dpt_err *err)
{
    struct dpt_hash128 hash;
    char hex[DPT_HASH_HEX_BYTES];
    DPT_TRY(blame_key(dpt_published_read_all(weights, NULL, &hash, err), err));
    dpt_hash128_hex(hash, hex);
    return dpt_config_note_base(config, hex, err);
}

enum dpt_status dpt_origin_read(struct dpt_config *config, bool checks, struct dpt_err *err)
{
    struct dpt_model *model = NULL;
    struct dpt_published *weights = NULL;
    const bool has_base = config->train.lora.rank > 0;
    bool begins;
    DPT_TRY(begins_there(config, &begins, err));
    checks = checks && begins;
    if (!has_base && !checks)
        return DPT_OK;
    DPT_TRY(dpt_model_create(config, &model, err));
    enum dpt_status status = blame_key(
        dpt_published_open(config->model.init_from, whole_model(model), &weights, err), err);
    if (status == DPT_OK && checks) {
        log_left_out(config, weights);
        log_fresh_head(config, whole_model(model), weights);
    }
    if (status == DPT_OK && has_base)
        status = note_base(config, weights, err);
    dpt_published_close(&weights);
    dpt_model_destroy(&model);
    return status;
}

/* Writes the key and the file of the tokenizer, as "data.tokenizer_json ('FILE')". */
static void name_tokenizer(const struct dpt_config *config, char *ret, size_t bytes)
{
    if (config->data.tokenizer == DPT_TOKENIZER_BYTES)
        (void)snprintf(ret, bytes, "data.tokenizer: bytes");
    else if (config->data.tokenizer == DPT_TOKENIZER_GPT2)
        (void)snprintf(ret, bytes, "data.encoder_json ('%s')", config->data.encoder_json);
    else
        (void)snprintf(ret, bytes, "data.tokenizer_json ('%s')", config->data.tokenizer_json);
}

enum dpt_status dpt_origin_compare_tokenizer(const struct dpt_config *config, struct dpt_err *err)
{
    char mine[DPT_CONFIG_PATH_BYTES + 32];
    bool begins, same;
    DPT_TRY(begins_there(config, &begins, err));
    if (!begins || dpt_config_reads_images(config))
        return DPT_OK;
    DPT_TRY(
        blame_key(dpt_tokenizer_is_of_folder(config, config->model.init_from, &same, err), err));
    name_tokenizer(config, mine, sizeof mine);
    if (!same)
        dpt_log(
            DPT_LOG_WARN,
            "%s is another tokenizer than '%s/" DPT_TOKENIZER_JSON
            "' of model.init_from, with which the weights were trained: if this is not intended, "
            "set data.tokenizer: hf and data.tokenizer_json: %s/" DPT_TOKENIZER_JSON,
            mine, config->model.init_from, config->model.init_from);
    return DPT_OK;
}
