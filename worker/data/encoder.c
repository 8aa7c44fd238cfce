/* The encoder: repairs text that is not UTF-8, cuts it into pieces, and encodes each piece.
 *
 * First the text is searched for the vocabulary's added tokens. The vocabulary's steps cut the text
 * between them. Each step cuts every piece of the step before it, depth first, so that pieces come
 * in order and none is stored. A few words make up most of a text, so the tokens of pieces of up to
 * 16 bytes are kept in a table with one entry for each hash. */
#include "base/array.h"
#include "worker/data/bpe.h"
#include "worker/data/split.h"
#include "worker/data/split_pattern.h"
#include "worker/data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 16, KEPT_IDS_MAX = 7, ENTRIES = 1 << 15 };

struct entry {
    uint64_t key[2];  /* the piece, then zeros */
    uint8_t bytes, n; /* bytes of the piece (0: an empty entry); number of its ids */
    uint32_t ids[KEPT_IDS_MAX];
};
_Static_assert(sizeof(struct entry) == 48, "an entry has little padding");

struct dpt_encoder {
    const struct dpt_vocab *vocab; /* borrowed */
    struct entry *entries;         /* (ENTRIES) */
    struct dpt_bpe_space space;
    struct dpt_matcher *matcher; /* created when a pattern is first used */
    struct dpt_tokens *tokens;   /* of the current call; borrowed */
    uint8_t *prefixed, *repaired;
    size_t prefixed_room, repaired_room;
    bool take_special;
    int64_t replaced;
};

enum dpt_status dpt_encoder_create(const struct dpt_vocab *vocab, struct dpt_encoder **ret,
                                   struct dpt_err *err)
{
    struct dpt_encoder *encoder = calloc(1, sizeof *encoder);
    struct entry *entries = aligned_alloc(64, ENTRIES * sizeof *entries);
    if (!encoder || !entries) {
        free(encoder);
        free(entries);
        return dpt_fail_nomem(err, "tokenizer: encoder");
    }
    memset(entries, 0, ENTRIES * sizeof *entries);
    encoder->vocab = vocab;
    encoder->entries = entries;
    *ret = encoder;
    return DPT_OK;
}

void dpt_encoder_destroy(struct dpt_encoder **encoder)
{
    if (!*encoder)
        return;
    dpt_bpe_space_fini(&(*encoder)->space);
    dpt_matcher_destroy(&(*encoder)->matcher);
    free((*encoder)->entries);
    free((*encoder)->prefixed);
    free((*encoder)->repaired);
    free(*encoder);
    *encoder = NULL;
}

int64_t dpt_encoder_replaced(const struct dpt_encoder *encoder)
{
    return encoder->replaced;
}

void dpt_encoder_take_special(struct dpt_encoder *encoder)
{
    encoder->take_special = true;
}

/* ---------------------------------------------------------------- a piece */

/* The piece as a key. `room` bytes may be read from `piece` on. */
static void key_of_piece(const uint8_t *piece, size_t bytes, size_t room, uint64_t ret_key[2])
{
    if (room < KEY_BYTES) {
        uint8_t padded[KEY_BYTES] = {0};
        memcpy(padded, piece, bytes);
        memcpy(ret_key, padded, sizeof padded);
        return;
    }
    memcpy(ret_key, piece, KEY_BYTES);
    if (bytes <= 8) {
        ret_key[0] &= UINT64_MAX >> (64 - 8 * bytes);
        ret_key[1] = 0;
    } else {
        ret_key[1] &= UINT64_MAX >> (128 - 8 * bytes);
    }
}

static struct entry *entry_of_key(struct dpt_encoder *encoder, const uint64_t key[2])
{
    uint64_t h =
        key[0] * 0x9e3779b97f4a7c15u ^ (key[1] + 0x165667b19e3779f9u) * 0xc2b2ae3d27d4eb4fu;
    h ^= h >> 32;
    h *= 0x9fb21c651e98df25u;
    return &encoder->entries[h >> 49];
}
_Static_assert(ENTRIES == 1 << (64 - 49), "a hash's upper bits are an entry's place");

/* Encodes one piece. `room` bytes may be read from `piece` on. */
static enum dpt_status encode_piece(struct dpt_encoder *encoder, const uint8_t *piece, size_t bytes,
                                    size_t room, struct dpt_err *err)
{
    const struct dpt_vocab *vocab = encoder->vocab;
    struct dpt_tokens *tokens = encoder->tokens;
    uint64_t key[2];
    if (bytes > KEY_BYTES)
        return dpt_bpe_piece(vocab, &encoder->space, piece, bytes, tokens, err);
    key_of_piece(piece, bytes, room, key);
    struct entry *entry = entry_of_key(encoder, key);
    if (entry->key[0] == key[0] && entry->key[1] == key[1] && entry->bytes == bytes &&
        tokens->room - tokens->n >= KEPT_IDS_MAX) {
        memcpy(tokens->ids + tokens->n, entry->ids, sizeof entry->ids);
        tokens->n += entry->n;
        return DPT_OK;
    }
    const size_t before = tokens->n;
    DPT_TRY(dpt_bpe_piece(vocab, &encoder->space, piece, bytes, tokens, err));
    const size_t n = tokens->n - before;
    if (n <= KEPT_IDS_MAX) {
        *entry = (struct entry){.key = {key[0], key[1]}, .bytes = (uint8_t)bytes, .n = (uint8_t)n};
        memcpy(entry->ids, tokens->ids + before, n * sizeof *entry->ids);
    }
    return DPT_OK;
}

/* ---------------------------------------------------------------- steps */

/* Encodes text from step `i` on. `room` bytes may be read from `text` on. */
static enum dpt_status encode_from_step(struct dpt_encoder *encoder, int i, const uint8_t *text,
                                        size_t bytes, size_t room, struct dpt_err *err);

static size_t after_character(const uint8_t *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && (text[at] & 0xc0) == 0x80;)
        at++;
    return at;
}

/* Cuts text into the matches of the pattern and the text between them. An empty match cuts, too. */
static enum dpt_status cut_by_pattern(struct dpt_encoder *encoder, int i, const uint8_t *text,
                                      size_t bytes, size_t room, struct dpt_err *err)
{
    const struct dpt_pattern *pattern = encoder->vocab->steps[i].pattern;
    size_t done = 0;
    if (!encoder->matcher)
        DPT_TRY(dpt_matcher_create(&encoder->matcher, err));
    for (struct dpt_match match = {.from = 0}; match.from < bytes;) {
        DPT_TRY(dpt_pattern_next(pattern, encoder->matcher, text, bytes, &match, err));
        const size_t begin = match.begin, end = match.end;
        DPT_TRY(encode_from_step(encoder, i + 1, text + done, begin - done, room - done, err));
        DPT_TRY(encode_from_step(encoder, i + 1, text + begin, end - begin, room - begin, err));
        done = end;
        match.from = end > begin ? end : after_character(text, bytes, end);
    }
    return encode_from_step(encoder, i + 1, text + done, bytes - done, room - done, err);
}

static enum dpt_status put_prefix(struct dpt_encoder *encoder, int i, const uint8_t *text,
                                  size_t bytes, size_t room, struct dpt_err *err)
{
    DPT_ASSERT(text != encoder->prefixed); /* a vocabulary has at most one PREFIX step */
    if (text[0] == ' ')
        return encode_from_step(encoder, i + 1, text, bytes, room, err);
    if (!dpt_array_reserve(&encoder->prefixed, &encoder->prefixed_room, bytes + 1, 1))
        return dpt_fail_nomem(err, "tokenizer: %zu bytes of text", bytes);
    encoder->prefixed[0] = ' ';
    memcpy(encoder->prefixed + 1, text, bytes);
    return encode_from_step(encoder, i + 1, encoder->prefixed, bytes + 1, bytes + 1, err);
}

static enum dpt_status encode_from_step(struct dpt_encoder *encoder, int i, const uint8_t *text,
                                        size_t bytes, size_t room, struct dpt_err *err)
{
    if (bytes == 0)
        return DPT_OK;
    if (i == encoder->vocab->n_steps)
        return encode_piece(encoder, text, bytes, room, err);
    const struct dpt_step *step = &encoder->vocab->steps[i];
    if (step->kind == DPT_STEP_PATTERN)
        return cut_by_pattern(encoder, i, text, bytes, room, err);
    if (step->kind == DPT_STEP_PREFIX)
        return put_prefix(encoder, i, text, bytes, room, err);
    /* The last step skips the recursion, which costs about a tenth of the time of a short piece. */
    const bool last = i + 1 == encoder->vocab->n_steps;
    for (size_t at = 0, n; at < bytes; at += n) {
        n = step->kind == DPT_STEP_GPT2 ? dpt_split_next(text + at, bytes - at)
                                        : dpt_split_digits_next(text + at, bytes - at, step->each);
        DPT_TRY(last ? encode_piece(encoder, text + at, n, room - at, err)
                     : encode_from_step(encoder, i + 1, text + at, n, room - at, err));
    }
    return DPT_OK;
}

/* ---------------------------------------------------------------- a text */

/* Encodes text from pass `pass` on: finds the added tokens of this pass, and gives the text between
 * them to the next pass. */
static enum dpt_status encode_from_pass(struct dpt_encoder *encoder, int pass, const uint8_t *text,
                                        size_t bytes, size_t room, struct dpt_err *err)
{
    const struct dpt_vocab *vocab = encoder->vocab;
    const bool any = encoder->take_special ? vocab->n_added > 0 : vocab->n_added_plain > 0;
    if (!any || pass == DPT_ADDED_PASSES)
        return encode_from_step(encoder, 0, text, bytes, room, err);
    size_t done = 0, at = 0, n = 0;
    for (const struct dpt_added *added; (added = dpt_added_next(vocab, pass, text, bytes, &at, &n));
         at += n) {
        if (added->special && !encoder->take_special)
            continue; /* it is text, and no other added token begins in it */
        DPT_TRY(encode_from_pass(encoder, pass + 1, text + done, at - done, room - done, err));
        DPT_TRY(dpt_tokens_add(encoder->tokens, added->id, err));
        done = at + n;
    }
    return encode_from_pass(encoder, pass + 1, text + done, bytes - done, room - done, err);
}

static enum dpt_status encode_bytes(const uint8_t *text, size_t bytes, struct dpt_tokens *tokens,
                                    struct dpt_err *err)
{
    for (size_t i = 0; i < bytes; i++)
        DPT_TRY(dpt_tokens_add(tokens, text[i], err));
    return DPT_OK;
}

enum dpt_status dpt_encoder_encode(struct dpt_encoder *encoder, const void *text, size_t bytes,
                                   struct dpt_tokens *tokens, struct dpt_err *err)
{
    if (bytes > DPT_ENCODE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "tokenizer: %zu bytes of text at once, %d at most",
                        bytes, DPT_ENCODE_BYTES_MAX);
    if (encoder->vocab->kind == DPT_TOKENIZER_BYTES)
        return encode_bytes(text, bytes, tokens, err);
    if (dpt_utf8_valid(text, bytes) < bytes) {
        if (!dpt_array_reserve(&encoder->repaired, &encoder->repaired_room, 3 * bytes, 1))
            return dpt_fail_nomem(err, "tokenizer: %zu bytes of text", bytes);
        bytes = dpt_utf8_repair(text, bytes, encoder->repaired, &encoder->replaced);
        text = encoder->repaired;
    }
    encoder->tokens = tokens;
    const enum dpt_status status = encode_from_pass(encoder, 0, text, bytes, bytes, err);
    encoder->tokens = NULL;
    return status;
}
