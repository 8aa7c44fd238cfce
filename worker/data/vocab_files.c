/* The files of GPT-2's vocabulary: vocab.bpe (merges, one a line, the most frequent first) and
 * encoder.json (the number of each token), in OpenAI's form and those of others in that form. Both
 * write a token's bytes as symbols (worker/data/vocab_build.h). */
#include "worker/data/vocab_build.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/sha256.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES_MAX = 4096 };

static const char end_of_text[] = "<|endoftext|>";

/* As published with GPT-2, and as everybody who uses it knows them. */
static const char vocab_bpe_sha256[] =
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5";
static const char encoder_json_sha256[] =
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783";

/* While loading. */
struct names {
    struct dpt_vocab *vocab;
    bool *made; /* (n_tokens) it is a byte or the result of a merge */
    struct dpt_symbols symbols;
};

/* ---------------------------------------------------------------- encoder.json */

static enum dpt_status reserve_tokens(struct names *names, size_t n, size_t bytes,
                                      struct dpt_err *err)
{
    DPT_TRY(dpt_vocab_reserve(names->vocab, n, bytes, err));
    names->made = calloc(n, sizeof *names->made);
    return names->made ? DPT_OK : dpt_fail_nomem(err, "tokenizer: %zu tokens", n);
}

static enum dpt_status add_token(struct names *names, const char *path, const char *key,
                                 const json_t *value, uint32_t *used, struct dpt_err *err)
{
    struct dpt_vocab *vocab = names->vocab;
    const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    uint8_t *bytes = vocab->bytes + *used;
    size_t n;
    if (id < 0 || id >= vocab->n_tokens)
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': the number of token '%s' is none of 0 … %d; each number is there "
                        "once",
                        path, key, vocab->n_tokens - 1);
    if (strcmp(key, end_of_text) == 0) {
        n = sizeof end_of_text - 1;
        memcpy(bytes, end_of_text, n);
        vocab->end_of_text = (int)id;
    } else if (!dpt_symbols_parse(&names->symbols, key, strlen(key), bytes, strlen(key), &n)) {
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s': token '%s' is not written in the characters that stand for bytes",
                        path, key);
    }
    if (vocab->texts[id].bytes > 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s': token '%s' has the number %lld of another token",
                        path, key, (long long)id);
    vocab->texts[id] = (struct dpt_token_text){*used, (uint32_t)n};
    *used += (uint32_t)n;
    if (id == vocab->end_of_text)
        return DPT_OK; /* text never becomes this */
    dpt_vocab_name(vocab, (uint32_t)id);
    return DPT_OK;
}

static enum dpt_status find_bytes(struct names *names, const char *path, struct dpt_err *err)
{
    for (int b = 0; b < DPT_BYTES; b++) {
        const uint8_t byte = (uint8_t)b;
        const int id = dpt_vocab_find(names->vocab, &byte, 1);
        if (id < 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s' has no token for the byte %d", path, b);
        names->vocab->of_byte[b] = (uint32_t)id;
        names->made[id] = true;
    }
    return DPT_OK;
}

static enum dpt_status load_tokens(struct names *names, const char *path, const char *text,
                                   size_t bytes, struct dpt_err *err)
{
    json_error_t at;
    const char *key;
    json_t *value;
    uint32_t used = 0;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at);
    const size_t n = json_object_size(root);
    enum dpt_status status = DPT_OK;
    if (!json_is_object(root))
        status = dpt_fail(err, DPT_ECORRUPT, "'%s' is no JSON object: %s", path,
                          root ? "it is another value" : at.text);
    else if (n < DPT_BYTES || n > DPT_VOCAB_TOKENS_MAX)
        status = dpt_fail(err, DPT_ECORRUPT, "'%s' has %zu tokens, %d to %d are possible", path, n,
                          DPT_BYTES, DPT_VOCAB_TOKENS_MAX);
    else
        status = reserve_tokens(names, n, bytes, err);
    if (status == DPT_OK) {
        names->vocab->end_of_text = -1;
        json_object_foreach(root, key, value)
        {
            status = add_token(names, path, key, value, &used, err);
            if (status != DPT_OK)
                break;
        }
    }
    json_decref(root);
    return status == DPT_OK ? find_bytes(names, path, err) : status;
}

/* ---------------------------------------------------------------- vocab.bpe */

/* One line, "LEFT RIGHT", the merge of rank `rank`. Parts must be made already and the result must
 * not: then merging the lowest rank, leftmost first, is what OpenAI's encoder does, which merges
 * all of a rank at once. */
static enum dpt_status add_merge(struct names *names, const char *line, size_t bytes, int rank,
                                 struct dpt_err *err)
{
    struct dpt_vocab *vocab = names->vocab;
    uint8_t both[LINE_BYTES_MAX];
    const char *blank = memchr(line, ' ', bytes);
    size_t left_bytes, right_bytes;
    if (!blank || bytes > LINE_BYTES_MAX ||
        !dpt_symbols_parse(&names->symbols, line, (size_t)(blank - line), both, sizeof both,
                           &left_bytes) ||
        !dpt_symbols_parse(&names->symbols, blank + 1, bytes - (size_t)(blank - line) - 1,
                           both + left_bytes, sizeof both - left_bytes, &right_bytes))
        return dpt_fail(err, DPT_ECORRUPT, "it is not two tokens with a blank between");
    const int left = dpt_vocab_find(vocab, both, left_bytes),
              right = dpt_vocab_find(vocab, both + left_bytes, right_bytes),
              whole = dpt_vocab_find(vocab, both, left_bytes + right_bytes);
    if (left < 0 || right < 0 || whole < 0)
        return dpt_fail(err, DPT_ECORRUPT, "encoder.json has no number for %s",
                        whole < 0 ? "its result" : "one of its tokens");
    if (!names->made[left] || !names->made[right] || names->made[whole])
        return dpt_fail(err, DPT_ECORRUPT, "%s",
                        names->made[whole] ? "an earlier line makes the same token"
                                           : "no earlier line makes one of its tokens");
    names->made[whole] = true;
    dpt_vocab_put_merge(vocab, (uint32_t)left, (uint32_t)right, (uint32_t)rank, (uint32_t)whole);
    return DPT_OK;
}

static enum dpt_status load_merges(struct names *names, const char *path, const char *text,
                                   size_t bytes, struct dpt_err *err)
{
    static const char version[] = "#version: 0.2\n";
    struct dpt_vocab *vocab = names->vocab;
    int rank = 0;
    if (bytes < sizeof version - 1 || memcmp(text, version, sizeof version - 1) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' does not begin with the line '#version: 0.2'",
                        path);
    DPT_TRY(dpt_vocab_reserve_merges(vocab, (size_t)vocab->n_tokens, err));
    for (size_t at = sizeof version - 1; at < bytes; rank++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t n = end ? (size_t)(end - text) - at : bytes - at;
        enum dpt_status status = add_merge(names, text + at, n, rank, err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, "'%s', line %d", path, rank + 2);
        at += n + 1;
    }
    for (int id = 0; id < vocab->n_tokens; id++)
        if (!names->made[id] && id != vocab->end_of_text)
            return dpt_fail(err, DPT_ECORRUPT,
                            "'%s': token %d of encoder.json is neither a byte nor made by a merge; "
                            "are the two files of one vocabulary?",
                            path, id);
    return DPT_OK;
}

/* ---------------------------------------------------------------- both */

/* One of the two files. */
struct known {
    const char *path, *key; /* of the config, or the option */
    const char *name, *sha256;
    char *text; /* owned */
    size_t bytes;
};

static enum dpt_status read_known(const struct dpt_vocab_options *options, struct known *file,
                                  struct dpt_err *err)
{
    struct dpt_sha256 sha;
    char hex[DPT_SHA256_HEX_BYTES];
    if (!file->path || !file->path[0])
        return dpt_fail(err, DPT_ECONFIG,
                        "tokenizer gpt2 needs the path of OpenAI's %s; see docs/your-own-data.md",
                        file->name);
    DPT_TRY(dpt_fs_read_file(file->path, DPT_VOCAB_FILE_BYTES_MAX, &file->text, &file->bytes, err));
    if (options->any_vocab)
        return DPT_OK;
    dpt_sha256_init(&sha);
    dpt_sha256_add(&sha, file->text, file->bytes);
    dpt_sha256_hex(&sha, hex);
    if (strcmp(hex, file->sha256) == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' is not OpenAI's %s: its SHA-256 is %.12s…, not %s; get the file again, "
                    "or, if another vocabulary is meant, say so (%s)",
                    file->path, file->name, hex, file->sha256,
                    options->by_options ? "--any-vocab" : "data.any_vocab: true");
}

enum dpt_status dpt_vocab_load(struct dpt_vocab *vocab, const struct dpt_vocab_options *options,
                               struct dpt_err *err)
{
    struct names names = {.vocab = vocab};
    struct known merges = {.path = options->vocab_bpe,
                           .key = options->by_options ? "--vocab-bpe" : "data.vocab_bpe",
                           .name = "vocab.bpe",
                           .sha256 = vocab_bpe_sha256};
    struct known tokens = {.path = options->encoder_json,
                           .key = options->by_options ? "--encoder-json" : "data.encoder_json",
                           .name = "encoder.json",
                           .sha256 = encoder_json_sha256};
    const struct known *at = &merges;
    dpt_symbols_fill(&names.symbols);
    enum dpt_status status = read_known(options, &merges, err);
    if (status == DPT_OK) {
        at = &tokens;
        status = read_known(options, &tokens, err);
    }
    if (status == DPT_OK)
        status = load_tokens(&names, tokens.path, tokens.text, tokens.bytes, err);
    if (status == DPT_OK) {
        at = &merges;
        status = load_merges(&names, merges.path, merges.text, merges.bytes, err);
    }
    dpt_vocab_drop_names(vocab);
    free(names.made);
    free(merges.text);
    free(tokens.text);
    return dpt_wrap(err, status, "%s", at->key);
}
