/* The files of GPT-2's vocabulary: vocab.bpe (merges, one a line, the most frequent first) and
 * encoder.json (the number of each token), in OpenAI's form and those of others in that form.
 *
 * Both write a token's bytes as characters that can be seen: a byte that is printable in Latin-1
 * (and no blank) as itself, the others, in order, as the characters from U+0100 on. */
#include "worker/data/vocab.h"

#include "base/fs.h"
#include "base/hash.h"
#include "base/sha256.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { SYMBOLS = 0x100 + 68, LINE_BYTES_MAX = 4096, MERGES_PER_SLOT = 2 };

static const char end_of_text[] = "<|endoftext|>";

/* As published with GPT-2, and as everybody who uses it knows them. */
static const char vocab_bpe_sha256[] =
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5";
static const char encoder_json_sha256[] =
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783";

/* While loading: the tokens' bytes by their hash. */
struct names {
    struct dpt_vocab *vocab;
    uint32_t *slots; /* token + 1; 0: empty */
    uint32_t mask;
    bool *made; /* (n_tokens) it is a byte or the result of a merge */
    int16_t byte_of[SYMBOLS];
};

static void fill_symbols(int16_t byte_of[SYMBOLS])
{
    int next = 0x100;
    for (int c = 0; c < SYMBOLS; c++)
        byte_of[c] = -1;
    for (int b = 0; b < DPT_BYTES; b++) {
        const bool seen = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        byte_of[seen ? b : next++] = (int16_t)b;
    }
}

/* The bytes of a token from its symbols; false when there is one that is none, or at the end of
 * the room. */
static bool parse_symbols(const int16_t byte_of[SYMBOLS], const char *text, size_t bytes,
                          uint8_t *ret, size_t room, size_t *ret_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; n++) {
        const uint8_t a = (uint8_t)text[i], b = i + 1 < bytes ? (uint8_t)text[i + 1] : 0;
        unsigned c = a;
        i++;
        if (a >= 0x80) { /* only two bytes reach below SYMBOLS */
            if (a < 0xc2 || a > 0xdf || (b & 0xc0) != 0x80)
                return false;
            c = (a & 0x1fu) << 6 | (b & 0x3fu);
            i++;
        }
        if (c >= SYMBOLS || byte_of[c] < 0 || n >= room)
            return false;
        ret[n] = (uint8_t)byte_of[c];
    }
    *ret_bytes = n;
    return n > 0;
}

static uint32_t find(const struct names *names, const uint8_t *bytes, size_t n)
{
    const struct dpt_vocab *vocab = names->vocab;
    uint32_t at = (uint32_t)dpt_hash128(bytes, n).lo & names->mask;
    for (; names->slots[at]; at = (at + 1) & names->mask) {
        const struct dpt_token_text *text = &vocab->texts[names->slots[at] - 1];
        if (text->bytes == n && memcmp(vocab->bytes + text->at, bytes, n) == 0)
            break;
    }
    return at;
}

/* The token of these bytes, -1 when there is none. */
static int token_of(const struct names *names, const uint8_t *bytes, size_t n)
{
    return (int)names->slots[find(names, bytes, n)] - 1;
}

static uint32_t power_of_two_above(size_t n)
{
    uint32_t power = 1;
    while (power <= n)
        power *= 2;
    return power;
}

/* ---------------------------------------------------------------- encoder.json */

static enum dpt_status reserve_tokens(struct names *names, size_t n, size_t bytes,
                                      struct dpt_err *err)
{
    struct dpt_vocab *vocab = names->vocab;
    const uint32_t slots = power_of_two_above(2 * n);
    vocab->texts = calloc(n, sizeof *vocab->texts);
    vocab->bytes = malloc(bytes + 1); /* NULL is for want of memory alone */
    names->slots = calloc(slots, sizeof *names->slots);
    names->made = calloc(n, sizeof *names->made);
    names->mask = slots - 1;
    vocab->n_tokens = (int)n;
    if (!vocab->texts || !vocab->bytes || !names->slots || !names->made)
        return dpt_fail(err, DPT_ENOMEM, "tokenizer: no memory for %zu tokens", n);
    return DPT_OK;
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
    } else if (!parse_symbols(names->byte_of, key, strlen(key), bytes, strlen(key), &n)) {
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
    names->slots[find(names, bytes, n)] = (uint32_t)id + 1;
    return DPT_OK;
}

static enum dpt_status find_bytes(struct names *names, const char *path, struct dpt_err *err)
{
    for (int b = 0; b < DPT_BYTES; b++) {
        const uint8_t byte = (uint8_t)b;
        const int id = token_of(names, &byte, 1);
        if (id < 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s' has no token for the byte %d", path, b);
        names->vocab->of_byte[b] = (uint16_t)id;
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
        !parse_symbols(names->byte_of, line, (size_t)(blank - line), both, sizeof both,
                       &left_bytes) ||
        !parse_symbols(names->byte_of, blank + 1, bytes - (size_t)(blank - line) - 1,
                       both + left_bytes, sizeof both - left_bytes, &right_bytes))
        return dpt_fail(err, DPT_ECORRUPT, "it is not two tokens with a blank between");
    const int left = token_of(names, both, left_bytes),
              right = token_of(names, both + left_bytes, right_bytes),
              whole = token_of(names, both, left_bytes + right_bytes);
    if (left < 0 || right < 0 || whole < 0)
        return dpt_fail(err, DPT_ECORRUPT, "encoder.json has no number for %s",
                        whole < 0 ? "its result" : "one of its tokens");
    if (!names->made[left] || !names->made[right] || names->made[whole])
        return dpt_fail(err, DPT_ECORRUPT, "%s",
                        names->made[whole] ? "an earlier line makes the same token"
                                           : "no earlier line makes one of its tokens");
    names->made[whole] = true;
    struct dpt_merge *slot =
        &vocab->merges[dpt_vocab_merge(vocab, (uint16_t)left, (uint16_t)right) - vocab->merges];
    *slot = (struct dpt_merge){.pair = (uint32_t)left << 16 | (uint32_t)right,
                               .rank = (uint16_t)rank,
                               .id = (uint16_t)whole};
    return DPT_OK;
}

static enum dpt_status load_merges(struct names *names, const char *path, const char *text,
                                   size_t bytes, struct dpt_err *err)
{
    static const char version[] = "#version: 0.2\n";
    struct dpt_vocab *vocab = names->vocab;
    const uint32_t slots = power_of_two_above((size_t)MERGES_PER_SLOT * (size_t)vocab->n_tokens);
    int rank = 0;
    if (bytes < sizeof version - 1 || memcmp(text, version, sizeof version - 1) != 0)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' does not begin with the line '#version: 0.2'",
                        path);
    vocab->merges = malloc(slots * sizeof *vocab->merges);
    if (!vocab->merges)
        return dpt_fail(err, DPT_ENOMEM, "tokenizer: no memory for %u merges", slots);
    vocab->merges_mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++)
        vocab->merges[i] = (struct dpt_merge){.rank = DPT_RANK_NONE}; /* no padding: hashed */
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

static enum dpt_status read_known(const char *path, const char *key, const char *known,
                                  bool any_vocab, char **ret_text, size_t *ret_bytes,
                                  struct dpt_err *err)
{
    struct dpt_sha256 sha;
    char hex[DPT_SHA256_HEX_BYTES];
    if (!path || !path[0])
        return dpt_fail(err, DPT_ECONFIG,
                        "tokenizer gpt2 needs the path of OpenAI's %s; see docs/your-own-data.md",
                        key);
    DPT_TRY(dpt_fs_read_file(path, DPT_VOCAB_FILE_BYTES_MAX, ret_text, ret_bytes, err));
    if (any_vocab)
        return DPT_OK;
    dpt_sha256_init(&sha);
    dpt_sha256_add(&sha, *ret_text, *ret_bytes);
    dpt_sha256_hex(&sha, hex);
    if (strcmp(hex, known) == 0)
        return DPT_OK;
    free(*ret_text);
    *ret_text = NULL;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' is not OpenAI's %s: its SHA-256 is %.12s…, not %s; get the file again, "
                    "or, if another vocabulary is meant, say so (any_vocab)",
                    path, key, hex, known);
}

enum dpt_status dpt_vocab_load(struct dpt_vocab *vocab, const struct dpt_vocab_options *options,
                               struct dpt_err *err)
{
    struct names names = {.vocab = vocab};
    char *merges = NULL, *tokens = NULL;
    size_t merges_bytes = 0, tokens_bytes = 0;
    fill_symbols(names.byte_of);
    enum dpt_status status = read_known(options->vocab_bpe, "vocab.bpe", vocab_bpe_sha256,
                                        options->any_vocab, &merges, &merges_bytes, err);
    if (status == DPT_OK)
        status = read_known(options->encoder_json, "encoder.json", encoder_json_sha256,
                            options->any_vocab, &tokens, &tokens_bytes, err);
    if (status == DPT_OK)
        status = load_tokens(&names, options->encoder_json, tokens, tokens_bytes, err);
    if (status == DPT_OK)
        status = load_merges(&names, options->vocab_bpe, merges, merges_bytes, err);
    free(names.slots);
    free(names.made);
    free(merges);
    free(tokens);
    return status;
}
