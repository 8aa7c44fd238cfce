/* The encoder: repairs the text where it is no UTF-8, cuts it into pieces and encodes each, the
 * short ones at most once as long as they are remembered.
 *
 * Text is made of few words that return often: the tokens of pieces of up to 16 bytes are kept in a
 * table, one place for each hash. Of a tokenizer.json's vocabulary the text is searched for added
 * tokens first, and what lies between them is cut by the vocabulary's steps. */
#include "base/array.h"
#include "worker/data/added.h"
#include "worker/data/bpe.h"
#include "worker/data/presplit.h"
#include "worker/data/split.h"
#include "worker/data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_BYTES = 16, KEPT_IDS_MAX = 7, ENTRIES = 1 << 15 };

struct entry {
    uint64_t key[2];  /* the piece, then zeros */
    uint8_t bytes, n; /* of the piece (0: an empty entry); of its ids */
    uint32_t ids[KEPT_IDS_MAX];
};
_Static_assert(sizeof(struct entry) == 48, "an entry has little padding");

struct dpt_encoder {
    const struct dpt_vocab *vocab; /* borrowed */
    struct entry *entries;         /* (ENTRIES) */
    struct dpt_bpe_space space;
    struct dpt_presplit split; /* kind HF */
    bool take_special;
    uint8_t *repaired;
    size_t repaired_bytes;
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
    dpt_presplit_fini(&(*encoder)->split);
    free((*encoder)->entries);
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

/* The piece as a key. `room` bytes may be read from `piece` on. */
static void load_key(const uint8_t *piece, size_t bytes, size_t room, uint64_t ret_key[2])
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

static struct entry *entry_of(struct dpt_encoder *encoder, const uint64_t key[2])
{
    uint64_t h =
        key[0] * 0x9e3779b97f4a7c15u ^ (key[1] + 0x165667b19e3779f9u) * 0xc2b2ae3d27d4eb4fu;
    h ^= h >> 32;
    h *= 0x9fb21c651e98df25u;
    return &encoder->entries[h >> 49];
}
_Static_assert(ENTRIES == 1 << (64 - 49), "a hash's upper bits are an entry's place");

/* A piece of at most KEY_BYTES: from the table, or encoded and put there. */
static enum dpt_status encode_short(struct dpt_encoder *encoder, const uint8_t *piece, size_t bytes,
                                    size_t room, struct dpt_tokens *tokens, struct dpt_err *err)
{
    uint64_t key[2];
    load_key(piece, bytes, room, key);
    struct entry *entry = entry_of(encoder, key);
    if (entry->key[0] == key[0] && entry->key[1] == key[1] && entry->bytes == bytes &&
        tokens->room - tokens->n >= KEPT_IDS_MAX) {
        memcpy(tokens->ids + tokens->n, entry->ids, sizeof entry->ids);
        tokens->n += entry->n;
        return DPT_OK;
    }
    const size_t before = tokens->n;
    DPT_TRY(dpt_bpe_piece(encoder->vocab, &encoder->space, piece, bytes, tokens, err));
    const size_t n = tokens->n - before;
    if (n <= KEPT_IDS_MAX) {
        *entry = (struct entry){.key = {key[0], key[1]}, .bytes = (uint8_t)bytes, .n = (uint8_t)n};
        memcpy(entry->ids, tokens->ids + before, n * sizeof *entry->ids);
    }
    return DPT_OK;
}

/* `room` bytes may be read from `piece` on. */
static enum dpt_status encode_piece(struct dpt_encoder *encoder, const uint8_t *piece, size_t bytes,
                                    size_t room, struct dpt_tokens *tokens, struct dpt_err *err)
{
    if (bytes <= KEY_BYTES)
        return encode_short(encoder, piece, bytes, room, tokens, err);
    return dpt_bpe_piece(encoder->vocab, &encoder->space, piece, bytes, tokens, err);
}

static enum dpt_status encode_pieces(struct dpt_encoder *encoder, const uint8_t *text, size_t bytes,
                                     struct dpt_tokens *tokens, struct dpt_err *err)
{
    for (size_t at = 0, n; at < bytes; at += n) {
        n = dpt_split_next(text + at, bytes - at);
        DPT_TRY(encode_piece(encoder, text + at, n, bytes - at, tokens, err));
    }
    return DPT_OK;
}

/* ---------------------------------------------------------------- kind HF */

struct sink {
    struct dpt_encoder *encoder;
    struct dpt_tokens *tokens;
};

static enum dpt_status take_piece(void *ctx, const uint8_t *piece, size_t bytes, size_t room,
                                  struct dpt_err *err)
{
    const struct sink *sink = ctx;
    return encode_piece(sink->encoder, piece, bytes, room, sink->tokens, err);
}

/* Looks for added tokens in pass `pass`, and in what lies between them in the passes after it; what
 * is left is cut into pieces. */
static enum dpt_status encode_added(struct dpt_encoder *encoder, int pass, const uint8_t *text,
                                    size_t bytes, size_t room, struct dpt_err *err)
{
    const struct dpt_vocab *vocab = encoder->vocab;
    const struct sink *sink = encoder->split.ctx;
    const bool any = encoder->take_special ? vocab->n_added > 0 : vocab->n_added_plain > 0;
    if (!any || pass == DPT_ADDED_PASSES)
        return dpt_presplit_text(&encoder->split, vocab, text, bytes, room, err);
    size_t done = 0, at = 0, n = 0;
    for (const struct dpt_added *added; (added = dpt_added_next(vocab, pass, text, bytes, &at, &n));
         at += n) {
        if (added->special && !encoder->take_special)
            continue; /* text, in which no other is looked for */
        DPT_TRY(encode_added(encoder, pass + 1, text + done, at - done, room - done, err));
        DPT_TRY(dpt_tokens_add(sink->tokens, added->id, err));
        done = at + n;
    }
    return encode_added(encoder, pass + 1, text + done, bytes - done, room - done, err);
}

static enum dpt_status encode_hf(struct dpt_encoder *encoder, const uint8_t *text, size_t bytes,
                                 struct dpt_tokens *tokens, struct dpt_err *err)
{
    struct sink sink = {.encoder = encoder, .tokens = tokens};
    encoder->split.piece = take_piece;
    encoder->split.ctx = &sink;
    const enum dpt_status status = encode_added(encoder, 0, text, bytes, bytes, err);
    encoder->split.ctx = NULL;
    return status;
}

/* ---------------------------------------------------------------- all kinds */

static enum dpt_status encode_bytes(const uint8_t *text, size_t bytes, struct dpt_tokens *tokens,
                                    struct dpt_err *err)
{
    for (size_t i = 0; i < bytes; i++)
        DPT_TRY(dpt_tokens_add(tokens, text[i], err));
    return DPT_OK;
}

static enum dpt_status repair(struct dpt_encoder *encoder, const uint8_t *text, size_t bytes,
                              size_t *ret_bytes, struct dpt_err *err)
{
    if (!dpt_array_reserve(&encoder->repaired, &encoder->repaired_bytes, 3 * bytes, 1))
        return dpt_fail_nomem(err, "tokenizer: %zu bytes of text", bytes);
    *ret_bytes = dpt_utf8_repair(text, bytes, encoder->repaired, &encoder->replaced);
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
        DPT_TRY(repair(encoder, text, bytes, &bytes, err));
        text = encoder->repaired;
    }
    return encoder->vocab->kind == DPT_TOKENIZER_HF
               ? encode_hf(encoder, text, bytes, tokens, err)
               : encode_pieces(encoder, text, bytes, tokens, err);
}
