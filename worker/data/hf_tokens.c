/* The tokens of a tokenizer.json: model.vocab, then added_tokens, of which some are in both. */
#include "worker/data/hf_parts.h"

#include <stdlib.h>
#include <string.h>

struct tokens {
    struct dpt_vocab *vocab;
    struct dpt_symbols symbols;
    const json_t *model; /* model.vocab */
};

/* The id of a token, from model.vocab or from added_tokens. */
static enum dpt_status read_id(const struct tokens *tokens, const char *token, const json_t *value,
                               uint32_t *ret, struct dpt_err *err)
{
    const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    return dpt_vocab_check_id(tokens->vocab, token, id, DPT_ECONFIG, ret, err);
}

/* Adds a token. A token with a character that is no symbol is kept, but no text is encoded as
 * it. */
static enum dpt_status add_token(struct tokens *tokens, const char *token, const json_t *value,
                                 struct dpt_err *err)
{
    uint32_t id = 0;
    DPT_TRY(read_id(tokens, token, value, &id, err));
    if (!token[0])
        return dpt_fail(err, DPT_ECONFIG, "model.vocab: token %u is empty", id);
    if (!dpt_vocab_add_symbols(tokens->vocab, id, &tokens->symbols, token))
        dpt_vocab_set_text(tokens->vocab, id, token, strlen(token));
    return DPT_OK;
}

/* ---------------------------------------------------------------- added tokens */

static enum dpt_status refuse_added_members(const json_t *added, const char *where,
                                            struct dpt_err *err)
{
    static const char *const keys[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        bool set;
        DPT_TRY(dpt_hf_bool(added, where, keys[i], &set, err));
        if (set)
            return dpt_fail(err, DPT_ECONFIG, "%s.%s: true is not supported", where, keys[i]);
    }
    return DPT_OK;
}

/* Returns the id of an added token. Adds its text unless model.vocab has the token, too. */
static enum dpt_status add_content(struct tokens *tokens, const json_t *json, const char *where,
                                   uint32_t *ret, struct dpt_err *err)
{
    const struct dpt_vocab *vocab = tokens->vocab;
    const json_t *value = json_object_get(json, "id");
    const char *content = json_string_value(json_object_get(json, "content"));
    if (!content || !content[0])
        return dpt_fail(err, DPT_ECONFIG, "%s.content: expected a string", where);
    const json_t *known = json_object_get(tokens->model, content);
    if (!known) {
        DPT_TRY(dpt_wrap(err, read_id(tokens, content, value, ret, err), "%s", where));
        dpt_vocab_set_text(tokens->vocab, *ret, content, strlen(content));
        return DPT_OK;
    }
    if (!json_equal(known, value))
        return dpt_fail(err, DPT_ECONFIG,
                        "%s.id: token '%.80s' has another id in model.vocab, %lld", where, content,
                        (long long)json_integer_value(known));
    *ret = (uint32_t)json_integer_value(known);
    const struct dpt_token_text *text = &vocab->texts[*ret];
    if (text->bytes != strlen(content) ||
        memcmp(vocab->bytes + text->at, content, text->bytes) != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "%s.content: '%.80s' is not supported: in model.vocab the same characters "
                        "stand for other bytes",
                        where, content);
    return DPT_OK;
}

static enum dpt_status add_added_token(struct tokens *tokens, const json_t *json, int i,
                                       struct dpt_err *err)
{
    struct dpt_vocab *vocab = tokens->vocab;
    struct dpt_added *added = &vocab->added[i];
    char where[32];
    (void)snprintf(where, sizeof where, "added_tokens[%d]", i);
    DPT_TRY(refuse_added_members(json, where, err));
    DPT_TRY(dpt_hf_bool(json, where, "special", &added->special, err));
    DPT_TRY(dpt_hf_bool(json, where, "normalized", &added->late, err));
    DPT_TRY(add_content(tokens, json, where, &added->id, err));
    const struct dpt_token_text *text = &vocab->texts[added->id];
    added->first = vocab->bytes[text->at];
    added->bytes = text->bytes;
    return DPT_OK;
}

static int find_end_of_text(const struct dpt_vocab *vocab)
{
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        for (int i = 0; i < vocab->n_added; i++) {
            const struct dpt_added *added = &vocab->added[i];
            const uint8_t *text = vocab->bytes + vocab->texts[added->id].at;
            if (added->special && added->bytes == strlen(ends[k]) &&
                memcmp(text, ends[k], added->bytes) == 0)
                return (int)added->id;
        }
    return -1;
}

static enum dpt_status add_all_added(struct tokens *tokens, const json_t *array,
                                     struct dpt_err *err)
{
    struct dpt_vocab *vocab = tokens->vocab;
    const size_t n = json_array_size(array);
    if (array && !json_is_null(array) && !json_is_array(array))
        return dpt_fail(err, DPT_ECONFIG, "added_tokens: expected a list");
    if (n > DPT_ADDED_MAX)
        return dpt_fail(err, DPT_ECONFIG,
                        "added_tokens: it has %zu entries, at most %d are supported", n,
                        DPT_ADDED_MAX);
    vocab->added = calloc(n + 1, sizeof *vocab->added); /* + 1: calloc of 0 may return NULL */
    if (!vocab->added)
        return dpt_fail_nomem(err, "tokenizer: %zu added tokens", n);
    for (size_t i = 0; i < n; i++)
        DPT_TRY(add_added_token(tokens, json_array_get(array, i), (int)i, err));
    vocab->n_added = (int)n;
    vocab->end_of_text = find_end_of_text(vocab);
    dpt_added_sort(vocab);
    return DPT_OK;
}

/* ---------------------------------------------------------------- all */

static size_t count_new(const json_t *added, const json_t *vocab)
{
    size_t i, n = 0;
    const json_t *token;
    json_array_foreach(added, i, token)
    {
        const char *content = json_string_value(json_object_get(token, "content"));
        n += !content || !json_object_get(vocab, content);
    }
    return n;
}

/* Sets the token of each byte. A byte without a token becomes unk_token; without unk_token it is
 * left out. */
static enum dpt_status set_byte_tokens(struct dpt_vocab *vocab, const json_t *model,
                                       struct dpt_err *err)
{
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    const json_t *id = unknown ? json_object_get(json_object_get(model, "vocab"), unknown) : NULL;
    for (int b = 0; b < DPT_BYTES; b++) {
        const uint8_t byte = (uint8_t)b;
        const int token = dpt_vocab_find(vocab, &byte, 1);
        if (token < 0 && unknown && !id)
            return dpt_fail(err, DPT_ECONFIG,
                            "model.unk_token: '%.80s' is no token of model.vocab, and the byte %d "
                            "has none",
                            unknown, b);
        vocab->of_byte[b] = token >= 0 ? (uint32_t)token
                            : id       ? (uint32_t)json_integer_value(id)
                                       : DPT_TOKEN_NONE;
    }
    return DPT_OK;
}

enum dpt_status dpt_hf_read_tokens(struct dpt_vocab *vocab, const json_t *root, size_t bytes,
                                   struct dpt_err *err)
{
    const json_t *model = json_object_get(root, "model"),
                 *added = json_object_get(root, "added_tokens");
    struct tokens tokens = {.vocab = vocab, .model = json_object_get(model, "vocab")};
    const char *key;
    json_t *value;
    if (!json_is_object(tokens.model))
        return dpt_fail(err, DPT_ECONFIG, "model.vocab: expected an object of tokens");
    const size_t n = json_object_size(tokens.model) + count_new(added, tokens.model);
    if (n == 0 || n > DPT_VOCAB_TOKENS_MAX)
        return dpt_fail(err, DPT_ECONFIG, "it has %zu tokens, 1 to %d are possible", n,
                        DPT_VOCAB_TOKENS_MAX);
    DPT_TRY(dpt_vocab_reserve(vocab, n, bytes, err));
    dpt_symbols_fill(&tokens.symbols);
    json_object_foreach((json_t *)tokens.model, key, value)
        DPT_TRY(add_token(&tokens, key, value, err));
    DPT_TRY(add_all_added(&tokens, added, err));
    return set_byte_tokens(vocab, model, err);
}
