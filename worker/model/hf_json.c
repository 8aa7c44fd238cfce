/* A config.json as JSON, its special tokens and names of labels (hf_json.h). */
#include "worker/model/hf_json.h"

#include "base/fs.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 24 }; /* room for the names of 65,536 labels */

enum dpt_status dpt_hf_json_load(const char *path, json_t **ret, struct dpt_err *err)
{
    char *text;
    size_t bytes;
    json_error_t at;
    DPT_TRY(dpt_fs_read_file(path, FILE_BYTES_MAX, &text, &bytes, err));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    free(text);
    if (!root)
        return dpt_fail(err, DPT_ECONFIG, "'%s', line %d, column %d: no JSON: %s", path, at.line,
                        at.column, at.text);
    *ret = root;
    return DPT_OK;
}

const char *dpt_hf_json_shown(const json_t *value, char ret[DPT_HF_SHOWN_BYTES])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    (void)snprintf(ret, DPT_HF_SHOWN_BYTES, "%s", text ? text : "?");
    free(text);
    return ret;
}

/* ---- special tokens ---- */

enum {
    BYTES_VOCAB = 256,
    GPT2_VOCAB = 50257,
    GPT2_END_OF_TEXT = 50256,
    SMOLLM2_VOCAB = 49152,
    SMOLLM2_END_OF_TEXT = 0,
    LLAMA3_VOCAB = 128256,
    LLAMA3_END_OF_TEXT = 128001
};

static const struct special {
    const char *name;
    size_t at; /* in struct dpt_hf_tokens */
} specials[] = {{"bos_token_id", offsetof(struct dpt_hf_tokens, bos)},
                {"eos_token_id", offsetof(struct dpt_hf_tokens, eos)},
                {"pad_token_id", offsetof(struct dpt_hf_tokens, pad)}};
enum { N_SPECIALS = sizeof specials / sizeof specials[0] };

static bool is_ids(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!json_is_integer(json_array_get(value, i)))
            return false;
    return json_is_integer(value) || json_array_size(value) > 0;
}

static enum dpt_status read_special(const char *path, const json_t *root,
                                    const struct special *special, struct dpt_hf_tokens *ret,
                                    struct dpt_err *err)
{
    const json_t *value = json_object_get(root, special->name);
    char odd[DPT_HF_SHOWN_BYTES];
    if (!value || json_is_null(value))
        return DPT_OK;
    char *text = is_ids(value) ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    const bool fits = text && strlen(text) < DPT_HF_TOKEN_BYTES;
    if (fits)
        (void)snprintf((char *)ret + special->at, DPT_HF_TOKEN_BYTES, "%s", text);
    free(text);
    return fits ? DPT_OK
                : dpt_fail(err, DPT_ECONFIG,
                           "'%s': %s is %s, which is neither an id nor a list of a few ids", path,
                           special->name, dpt_hf_json_shown(value, odd));
}

enum dpt_status dpt_hf_config_tokens(const char *path, struct dpt_hf_tokens *ret,
                                     struct dpt_err *err)
{
    struct dpt_hf_tokens tokens = {.bos = ""};
    json_t *root;
    enum dpt_status status = dpt_hf_json_load(path, &root, err);
    if (status != DPT_OK)
        return status;
    for (int i = 0; i < N_SPECIALS && status == DPT_OK; i++)
        status = read_special(path, root, &specials[i], &tokens, err);
    json_decref(root);
    if (status == DPT_OK)
        *ret = tokens;
    return status;
}

/* Parses "[2,7]" or "2". */
static enum dpt_status parse_ends(const char *text, struct dpt_hf_ends *ret, struct dpt_err *err)
{
    json_t *ids = json_loads(text, JSON_DECODE_ANY, NULL);
    if (!ids)
        return dpt_fail_nomem(err, "tokens that end a text");
    if (json_is_integer(ids))
        ret->id[ret->n++] = json_integer_value(ids);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        DPT_ASSERT(ret->n < DPT_HF_ENDS_MAX); /* the text is too short for more */
        ret->id[ret->n++] = json_integer_value(json_array_get(ids, i));
    }
    json_decref(ids);
    return DPT_OK;
}

enum dpt_status dpt_hf_config_ends(const char *folder, struct dpt_hf_ends *ret, struct dpt_err *err)
{
    static const char *const names[] = {"generation_config.json", "config.json"};
    struct dpt_hf_ends ends = {.n = 0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[DPT_CONFIG_PATH_BYTES];
        struct dpt_hf_tokens tokens;
        DPT_TRY(dpt_fs_join(folder, names[i], path, sizeof path, err));
        if (!dpt_fs_exists(path))
            continue;
        DPT_TRY(dpt_hf_config_tokens(path, &tokens, err));
        if (tokens.eos[0] != '\0')
            DPT_TRY(parse_ends(tokens.eos, &ends, err));
        break;
    }
    *ret = ends;
    return DPT_OK;
}

bool dpt_hf_tokens_write(const struct dpt_hf_tokens *tokens, bool pad, json_t *root)
{
    for (int i = 0; i < N_SPECIALS; i++) {
        const char *text = (const char *)tokens + specials[i].at;
        const bool is_pad = specials[i].at == offsetof(struct dpt_hf_tokens, pad);
        if (text[0] != '\0' && (pad || !is_pad) &&
            json_object_set_new(root, specials[i].name, json_loads(text, JSON_DECODE_ANY, NULL)) !=
                0)
            return false;
    }
    return true;
}

bool dpt_hf_end_of_text_write(const struct dpt_config *config, json_t *root)
{
    json_t *end = config->model.vocab == GPT2_VOCAB ? json_integer(GPT2_END_OF_TEXT) : json_null();
    const bool begins = json_object_set(root, "bos_token_id", end) == 0;
    return json_object_set_new(root, "eos_token_id", end) == 0 && begins;
}

/* The padding token of a tokenizer that the config only names. It is the end-of-text token of a
 * vocabulary that is known by its size. Otherwise it is the last id, which is not a token if the
 * vocabulary is larger than the tokenizer's. */
static int pad_token(const struct dpt_config *config)
{
    static const struct {
        int vocab, token;
    } known[] = {{GPT2_VOCAB, GPT2_END_OF_TEXT},
                 {SMOLLM2_VOCAB, SMOLLM2_END_OF_TEXT},
                 {LLAMA3_VOCAB, LLAMA3_END_OF_TEXT}};
    const int vocab = config->model.vocab;
    if (config->data.tokenizer == DPT_TOKENIZER_BYTES)
        return vocab > BYTES_VOCAB ? vocab - 1 : 0;
    if (config->data.tokenizer == DPT_TOKENIZER_GPT2 && !config->data.any_vocab &&
        vocab >= GPT2_VOCAB)
        return GPT2_END_OF_TEXT;
    for (int i = 0; i < (int)(sizeof known / sizeof known[0]); i++)
        if (known[i].vocab == vocab)
            return known[i].token;
    return vocab - 1;
}

bool dpt_hf_pad_write(const struct dpt_config *config, json_t *root)
{
    return json_object_set_new(root, "pad_token_id", json_integer(pad_token(config))) == 0;
}

/* ---- names of labels ---- */

enum { NUMBER_BYTES = 16 };

static enum dpt_status copy_names(const char *path, const json_t *names, int labels, char **ret,
                                  size_t *n, struct dpt_err *err)
{
    for (int i = 0; i < labels; i++) {
        char number[NUMBER_BYTES];
        (void)snprintf(number, sizeof number, "%d", i);
        const char *name = json_string_value(json_object_get(names, number));
        if (!name)
            return dpt_fail(err, DPT_ECONFIG,
                            "'%s': id2label has no name of label %d, and the model has %d labels",
                            path, i, labels);
        ret[*n] = strdup(name);
        if (!ret[*n])
            return dpt_fail_nomem(err, "names of labels");
        (*n)++;
    }
    return DPT_OK;
}

enum dpt_status dpt_hf_config_label_names(const char *path, int labels, char ***ret,
                                          struct dpt_err *err)
{
    json_t *root;
    size_t n = 0;
    DPT_TRY(dpt_hf_json_load(path, &root, err));
    const json_t *names = json_object_get(root, "id2label");
    char **copies = calloc((size_t)labels, sizeof *copies);
    enum dpt_status status = copies ? DPT_OK : dpt_fail_nomem(err, "names of labels");
    if (status == DPT_OK && names)
        status = copy_names(path, names, labels, copies, &n, err);
    json_decref(root);
    if (status != DPT_OK || !names)
        dpt_fs_list_free(&copies, n);
    if (status == DPT_OK)
        *ret = copies;
    return status;
}

bool dpt_hf_labels_write(const char *const *names, int labels, json_t *root)
{
    json_t *of_number = json_object(), *of_name = json_object();
    bool ok = true;
    for (int i = 0; i < labels && ok; i++) {
        char number[NUMBER_BYTES], usual[sizeof "LABEL_" + NUMBER_BYTES];
        (void)snprintf(number, sizeof number, "%d", i);
        (void)snprintf(usual, sizeof usual, "LABEL_%d", i);
        const char *name = names ? names[i] : usual;
        ok = json_object_set_new(of_number, number, json_string(name)) == 0 &&
             json_object_set_new(of_name, name, json_integer(i)) == 0;
    }
    const bool set = json_object_set_new(root, "id2label", of_number) == 0;
    return json_object_set_new(root, "label2id", of_name) == 0 && set && ok;
}
