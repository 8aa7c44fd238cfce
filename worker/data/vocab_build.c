/* Builds a vocabulary: symbols, tokens by their bytes, the table of merges. */
#include "worker/data/vocab_build.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_PER_MERGE = 2, MERGE_BYTES_MAX = 8192 };

void dpt_symbols_fill(struct dpt_symbols *symbols)
{
    int next = 0x100;
    for (int c = 0; c < DPT_SYMBOLS; c++)
        symbols->byte_of[c] = -1;
    for (int b = 0; b < DPT_BYTES; b++) {
        const bool seen = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        symbols->byte_of[seen ? b : next++] = (int16_t)b;
    }
}

/* Converts the symbols of a token to its bytes. False: the text is empty, has a character that is
 * no symbol, or has more than `room` symbols. */
static bool parse_symbols(const struct dpt_symbols *symbols, const char *text, size_t bytes,
                          uint8_t *ret, size_t room, size_t *ret_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; n++) {
        const uint8_t a = (uint8_t)text[i], b = i + 1 < bytes ? (uint8_t)text[i + 1] : 0;
        unsigned c = a;
        i++;
        if (a >= 0x80) { /* a character of two bytes; longer ones are no symbols */
            if (a < 0xc2 || a > 0xdf || (b & 0xc0) != 0x80)
                return false;
            c = (a & 0x1fu) << 6 | (b & 0x3fu);
            i++;
        }
        if (c >= DPT_SYMBOLS || symbols->byte_of[c] < 0 || n >= room)
            return false;
        ret[n] = (uint8_t)symbols->byte_of[c];
    }
    *ret_bytes = n;
    return n > 0;
}

static uint32_t power_of_two_above(size_t n)
{
    uint32_t power = 1;
    while (power <= n)
        power *= 2;
    return power;
}

enum dpt_status dpt_vocab_reserve(struct dpt_vocab *vocab, size_t n, size_t bytes,
                                  struct dpt_err *err)
{
    const uint32_t slots = power_of_two_above(2 * n);
    vocab->texts = calloc(n, sizeof *vocab->texts);
    vocab->bytes = malloc(bytes + 1); /* + 1: malloc(0) may return NULL */
    vocab->names = calloc(slots, sizeof *vocab->names);
    vocab->names_mask = slots - 1;
    vocab->n_tokens = (int)n;
    if (!vocab->texts || !vocab->bytes || !vocab->names)
        return dpt_fail_nomem(err, "tokenizer: %zu tokens", n);
    return DPT_OK;
}

/* The slot of the token with these bytes, or the empty slot for it. */
static uint32_t slot_of(const struct dpt_vocab *vocab, const uint8_t *bytes, size_t n)
{
    uint32_t at = (uint32_t)dpt_hash128(bytes, n).lo & vocab->names_mask;
    for (; vocab->names[at]; at = (at + 1) & vocab->names_mask) {
        const struct dpt_token_text *text = &vocab->texts[vocab->names[at] - 1];
        if (text->bytes == n && memcmp(vocab->bytes + text->at, bytes, n) == 0)
            break;
    }
    return at;
}

int dpt_vocab_find(const struct dpt_vocab *vocab, const uint8_t *bytes, size_t n)
{
    return (int)vocab->names[slot_of(vocab, bytes, n)] - 1;
}

enum dpt_status dpt_vocab_check_id(const struct dpt_vocab *vocab, const char *token, int64_t id,
                                   enum dpt_status refusal, uint32_t *ret, struct dpt_err *err)
{
    if (id < 0 || id >= vocab->n_tokens)
        return dpt_fail(err, refusal,
                        "token '%.80s': its id is none of 0 … %d, and there are %d tokens: the ids "
                        "have holes",
                        token, vocab->n_tokens - 1, vocab->n_tokens);
    if (vocab->texts[id].bytes > 0)
        return dpt_fail(err, refusal, "token '%.80s': its id %lld is that of another token", token,
                        (long long)id);
    *ret = (uint32_t)id;
    return DPT_OK;
}

void dpt_vocab_set_text(struct dpt_vocab *vocab, uint32_t id, const void *text, size_t bytes)
{
    memcpy(vocab->bytes + vocab->n_bytes, text, bytes);
    vocab->texts[id] = (struct dpt_token_text){vocab->n_bytes, (uint32_t)bytes};
    vocab->n_bytes += (uint32_t)bytes;
}

bool dpt_vocab_add_symbols(struct dpt_vocab *vocab, uint32_t id, const struct dpt_symbols *symbols,
                           const char *text)
{
    const size_t room = strlen(text);
    uint8_t *bytes = vocab->bytes + vocab->n_bytes;
    size_t n;
    if (!parse_symbols(symbols, text, room, bytes, room, &n))
        return false;
    vocab->texts[id] = (struct dpt_token_text){vocab->n_bytes, (uint32_t)n};
    vocab->n_bytes += (uint32_t)n;
    vocab->names[slot_of(vocab, bytes, n)] = id + 1;
    return true;
}

void dpt_vocab_drop_names(struct dpt_vocab *vocab)
{
    free(vocab->names);
    vocab->names = NULL;
}

enum dpt_status dpt_vocab_reserve_merges(struct dpt_vocab *vocab, size_t n, struct dpt_err *err)
{
    const uint32_t slots = power_of_two_above(SLOTS_PER_MERGE * n);
    vocab->merges = malloc(slots * sizeof *vocab->merges);
    if (!vocab->merges)
        return dpt_fail_nomem(err, "tokenizer: %u merges", slots);
    vocab->merges_mask = slots - 1;
    for (uint32_t i = 0; i < slots; i++)
        /* The struct has no padding: the bytes of the table are hashed. */
        vocab->merges[i] = (struct dpt_merge){.rank = DPT_RANK_NONE};
    return DPT_OK;
}

bool dpt_vocab_find_merge(const struct dpt_vocab *vocab, const struct dpt_symbols *symbols,
                          const struct dpt_merge_text *merge, int ret_id[3])
{
    uint8_t both[MERGE_BYTES_MAX];
    size_t used = 0, n;
    ret_id[0] = ret_id[1] = ret_id[2] = -1;
    for (int i = 0; i < 2; i++) {
        if (!parse_symbols(symbols, merge->text[i], merge->bytes[i], both + used,
                           sizeof both - used, &n))
            return false;
        ret_id[i] = dpt_vocab_find(vocab, both + used, n);
        used += n;
    }
    ret_id[2] = dpt_vocab_find(vocab, both, used);
    return true;
}

void dpt_vocab_put_merge(struct dpt_vocab *vocab, const int id[3], uint32_t rank)
{
    const uint32_t left = (uint32_t)id[0], right = (uint32_t)id[1];
    struct dpt_merge *slot = &vocab->merges[dpt_vocab_merge(vocab, left, right) - vocab->merges];
    *slot = (struct dpt_merge){
        .pair = (uint64_t)left << 32 | right, .rank = rank, .id = (uint32_t)id[2]};
}
