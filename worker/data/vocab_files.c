/* The files of GPT-2's vocabulary: vocab.bpe (merges, one a line, the most frequent first) and
 * encoder.json (the id of each token). Other vocabularies may have the same form. Both files write
 * a token's bytes as symbols (worker/data/vocab_build.h). */
#include "worker/data/vocab_build.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/sha256.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char end_of_text[] = "<|endoftext|>";

/* Checksums of the files that OpenAI published with GPT-2. */
static const char vocab_bpe_sha256[] =
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5";
static const char encoder_json_sha256[] =
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783";

/* A vocabulary that is being loaded. */
struct loading {
    struct dpt_vocab *vocab;
    bool *made; /* (n_tokens) the token is a byte or the result of a merge */
    struct dpt_symbols symbols;
};

/* One of the two files. */
struct known {
    const char *path, *key; /* key: the config key or the option that names the path */
    const char *name, *sha256;
    char *text; /* owned */
    size_t bytes;
};

/* ---------------------------------------------------------------- encoder.json */

static enum dpt_status add_token(struct loading *loading, const char *token, const json_t *value,
                                 struct dpt_err *err)
{
    struct dpt_vocab *vocab = loading->vocab;
    const json_int_t number = json_is_integer(value) ? json_integer_value(value) : -1;
    uint32_t id = 0;
    DPT_TRY(dpt_vocab_check_id(vocab, token, number, DPT_ECORRUPT, &id, err));
    if (strcmp(token, end_of_text) == 0) { /* no text becomes this token: it gets no name */
        dpt_vocab_set_text(vocab, id, token, strlen(token));
        vocab->end_of_text = (int)id;
        return DPT_OK;
    }
    if (dpt_vocab_add_symbols(vocab, id, &loading->symbols, token))
        return DPT_OK;
    return dpt_fail(err, DPT_ECORRUPT,
                    "token '%s' is not written in the characters that stand for bytes", token);
}

static enum dpt_status find_byte_tokens(struct loading *loading, const char *path,
                                        struct dpt_err *err)
{
    for (int b = 0; b < DPT_BYTES; b++) {
        const uint8_t byte = (uint8_t)b;
        const int id = dpt_vocab_find(loading->vocab, &byte, 1);
        if (id < 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s' has no token for the byte %d", path, b);
        loading->vocab->of_byte[b] = (uint32_t)id;
        loading->made[id] = true;
    }
    return DPT_OK;
}

static enum dpt_status add_all_tokens(struct loading *loading, json_t *root,
                                      const struct known *file, struct dpt_err *err)
{
    const size_t n = json_object_size(root);
    const char *token;
    json_t *value;
    if (n < DPT_BYTES || n > DPT_VOCAB_TOKENS_MAX)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %zu tokens, %d to %d are possible", file->path,
                        n, DPT_BYTES, DPT_VOCAB_TOKENS_MAX);
    DPT_TRY(dpt_vocab_reserve(loading->vocab, n, file->bytes, err));
    loading->made = calloc(n, sizeof *loading->made);
    if (!loading->made)
        return dpt_fail_nomem(err, "tokenizer: %zu tokens", n);
    loading->vocab->end_of_text = -1;
    json_object_foreach(root, token, value)
        DPT_TRY(dpt_wrap(err, add_token(loading, token, value, err), "'%s'", file->path));
    return find_byte_tokens(loading, file->path, err);
}

static enum dpt_status load_tokens(struct loading *loading, const struct known *file,
                                   struct dpt_err *err)
{
    json_error_t at;
    json_t *root = json_loadb(file->text, file->bytes, JSON_REJECT_DUPLICATES, &at);
    const enum dpt_status status =
        json_is_object(root) ? add_all_tokens(loading, root, file, err)
                             : dpt_fail(err, DPT_ECORRUPT, "'%s' is no JSON object: %s", file->path,
                                        root ? "it is another value" : at.text);
    json_decref(root);
    return status;
}

/* ---------------------------------------------------------------- vocab.bpe */

/* Adds one line, "LEFT RIGHT", as the merge of rank `rank`. Earlier lines must make both parts, and
 * no earlier line may make the result. Then merging the pair of the lowest rank, the leftmost
 * first, gives the same tokens as OpenAI's encoder, which merges all pairs of a rank at once. */
static enum dpt_status add_merge(struct loading *loading, const char *line, size_t bytes, int rank,
                                 struct dpt_err *err)
{
    const bool *made = loading->made;
    const char *blank = memchr(line, ' ', bytes);
    const size_t left = blank ? (size_t)(blank - line) : 0;
    const struct dpt_merge_text text = {{line, line + left + 1}, {left, bytes - left - 1}};
    int id[3];
    if (!blank || !dpt_vocab_find_merge(loading->vocab, &loading->symbols, &text, id))
        return dpt_fail(err, DPT_ECORRUPT, "it is not two tokens with a blank between");
    if (id[0] < 0 || id[1] < 0 || id[2] < 0)
        return dpt_fail(err, DPT_ECORRUPT, "encoder.json has no number for %s",
                        id[2] < 0 ? "its result" : "one of its tokens");
    if (!made[id[0]] || !made[id[1]] || made[id[2]])
        return dpt_fail(err, DPT_ECORRUPT, "%s",
                        made[id[2]] ? "an earlier line makes the same token"
                                    : "no earlier line makes one of its tokens");
    loading->made[id[2]] = true;
    dpt_vocab_put_merge(loading->vocab, id, (uint32_t)rank);
    return DPT_OK;
}

static enum dpt_status load_merges(struct loading *loading, const struct known *file,
                                   struct dpt_err *err)
{
    static const char version[] = "#version: 0.2\n";
    const struct dpt_vocab *vocab = loading->vocab;
    int rank = 0;
    if (file->bytes < sizeof version - 1 || memcmp(file->text, version, sizeof version - 1) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' does not begin with the line '#version: 0.2'",
                        file->path);
    DPT_TRY(dpt_vocab_reserve_merges(loading->vocab, (size_t)vocab->n_tokens, err));
    for (size_t at = sizeof version - 1; at < file->bytes; rank++) {
        const char *line = file->text + at, *end = memchr(line, '\n', file->bytes - at);
        const size_t n = end ? (size_t)(end - line) : file->bytes - at;
        DPT_TRY(dpt_wrap(err, add_merge(loading, line, n, rank, err), "'%s', line %d", file->path,
                         rank + 2));
        at += n + 1;
    }
    for (int id = 0; id < vocab->n_tokens; id++)
        if (!loading->made[id] && id != vocab->end_of_text)
            return dpt_fail(err, DPT_ECORRUPT,
                            "'%s': token %d of encoder.json is neither a byte nor made by a merge; "
                            "are the two files of one vocabulary?",
                            file->path, id);
    return DPT_OK;
}

/* ---------------------------------------------------------------- both */

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

static enum dpt_status load_files(struct loading *loading, const struct dpt_vocab_options *options,
                                  struct known *merges, struct known *tokens, struct dpt_err *err)
{
    DPT_TRY(dpt_wrap(err, read_known(options, merges, err), "%s", merges->key));
    DPT_TRY(dpt_wrap(err, read_known(options, tokens, err), "%s", tokens->key));
    DPT_TRY(dpt_wrap(err, load_tokens(loading, tokens, err), "%s", tokens->key));
    return dpt_wrap(err, load_merges(loading, merges, err), "%s", merges->key);
}

enum dpt_status dpt_vocab_load_gpt2(struct dpt_vocab *vocab,
                                    const struct dpt_vocab_options *options, struct dpt_err *err)
{
    struct loading loading = {.vocab = vocab};
    struct known merges = {.path = options->vocab_bpe,
                           .key = options->by_options ? "--vocab-bpe" : "data.vocab_bpe",
                           .name = "vocab.bpe",
                           .sha256 = vocab_bpe_sha256};
    struct known tokens = {.path = options->encoder_json,
                           .key = options->by_options ? "--encoder-json" : "data.encoder_json",
                           .name = "encoder.json",
                           .sha256 = encoder_json_sha256};
    dpt_symbols_fill(&loading.symbols);
    vocab->steps[0].kind = DPT_STEP_GPT2;
    vocab->n_steps = 1;
    vocab->cuts = DPT_CUTS_SPACES;
    const enum dpt_status status = load_files(&loading, options, &merges, &tokens, err);
    dpt_vocab_drop_names(vocab);
    free(loading.made);
    free(merges.text);
    free(tokens.text);
    return status;
}
