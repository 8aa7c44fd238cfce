/* Loads a tokenizer.json; refuses members that would change a token and are not supported. */
#include "worker/data/hf_parts.h"

#include "base/fs.h"

#include <stdlib.h>
#include <string.h>

static enum dpt_status check_normalizer(const json_t *normalizer, struct dpt_err *err)
{
    const char *type = dpt_hf_type(normalizer);
    const json_t *sequence = json_object_get(normalizer, "normalizers");
    if (!normalizer || json_is_null(normalizer) ||
        (strcmp(type, "Sequence") == 0 && json_is_array(sequence) &&
         json_array_size(sequence) == 0))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG, "normalizer: '%.40s' is not supported, only null is", type);
}

static enum dpt_status check_decoder(const json_t *decoder, struct dpt_err *err)
{
    if (strcmp(dpt_hf_type(decoder), "ByteLevel") == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG, "decoder: '%.40s' is not supported, only ByteLevel is",
                    dpt_hf_type(decoder));
}

static bool adds_special_tokens_only(const json_t *post_processor)
{
    const char *type = dpt_hf_type(post_processor);
    return strcmp(type, "ByteLevel") == 0 || strcmp(type, "TemplateProcessing") == 0;
}

static enum dpt_status check_post_processor(const json_t *post_processor, struct dpt_err *err)
{
    size_t i;
    const json_t *part;
    if (!post_processor || json_is_null(post_processor) || adds_special_tokens_only(post_processor))
        return DPT_OK;
    if (strcmp(dpt_hf_type(post_processor), "Sequence") != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "post_processor: '%.40s' is not supported; ByteLevel and "
                        "TemplateProcessing are",
                        dpt_hf_type(post_processor));
    json_array_foreach(json_object_get(post_processor, "processors"), i, part)
    {
        if (!adds_special_tokens_only(part))
            return dpt_fail(err, DPT_ECONFIG,
                            "post_processor.processors[%zu]: '%.40s' is not supported; ByteLevel "
                            "and TemplateProcessing are",
                            i, dpt_hf_type(part));
    }
    return DPT_OK;
}

static enum dpt_status check_type(const json_t *root, struct dpt_err *err)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return dpt_fail(err, DPT_ECONFIG,
                        "it has no model: is it a tokenizer.json of Hugging Face's tokenizers?");
    /* Files of old releases have no type. */
    const char *type = dpt_hf_type(model);
    if (strcmp(type, "BPE") == 0 || (!type[0] && json_object_get(model, "merges")))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "model.type: '%.40s' is not supported, only BPE over bytes is", type);
}

static enum dpt_status read_root(struct dpt_vocab *vocab, const json_t *root, size_t bytes,
                                 struct dpt_err *err)
{
    if (!json_is_object(root))
        return dpt_fail(err, DPT_ECONFIG, "it is no JSON object");
    DPT_TRY(check_type(root, err));
    DPT_TRY(check_normalizer(json_object_get(root, "normalizer"), err));
    DPT_TRY(check_decoder(json_object_get(root, "decoder"), err));
    DPT_TRY(check_post_processor(json_object_get(root, "post_processor"), err));
    DPT_TRY(dpt_hf_read_tokens(vocab, root, bytes, err));
    DPT_TRY(dpt_hf_read_model(vocab, json_object_get(root, "model"), err));
    return dpt_hf_read_steps(vocab, json_object_get(root, "pre_tokenizer"), err);
}

static enum dpt_status read_hf_file(struct dpt_vocab *vocab, const char *path, struct dpt_err *err)
{
    char *text;
    size_t bytes;
    json_error_t at;
    if (!path || !path[0])
        return dpt_fail(err, DPT_ECONFIG,
                        "tokenizer hf needs the path of a tokenizer.json; see "
                        "docs/your-own-data.md");
    DPT_TRY(dpt_fs_read_file(path, DPT_TOKENIZER_JSON_BYTES_MAX, &text, &bytes, err));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    free(text);
    if (!root)
        return dpt_fail(err, DPT_ECONFIG, "'%s', line %d, column %d: no JSON: %s", path, at.line,
                        at.column, at.text);
    const enum dpt_status status = read_root(vocab, root, bytes, err);
    json_decref(root);
    if (status == DPT_OK && !vocab->ignore_merges)
        dpt_vocab_drop_names(vocab);
    return dpt_wrap(err, status, "'%s'", path);
}

enum dpt_status dpt_vocab_load_hf(struct dpt_vocab *vocab, const struct dpt_vocab_options *options,
                                  struct dpt_err *err)
{
    const char *key = options->by_options ? "--tokenizer-json" : "data.tokenizer_json";
    return dpt_wrap(err, read_hf_file(vocab, options->tokenizer_json, err), "%s", key);
}
