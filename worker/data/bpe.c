/* Merges the pairs of one piece: a short piece by scanning, a long piece by a heap. */
#include "worker/data/bpe.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_BYTES_MAX = 48 };

void dpt_tokens_fini(struct dpt_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct dpt_tokens){0};
}

static enum dpt_status reserve_tokens(struct dpt_tokens *tokens, size_t more, struct dpt_err *err)
{
    const size_t n = tokens->n + more;
    return dpt_array_reserve(&tokens->ids, &tokens->room, n, sizeof *tokens->ids)
               ? DPT_OK
               : dpt_fail_nomem(err, "tokenizer: %zu tokens", n);
}

enum dpt_status dpt_tokens_add(struct dpt_tokens *tokens, uint32_t id, struct dpt_err *err)
{
    DPT_TRY(reserve_tokens(tokens, 1, err));
    tokens->ids[tokens->n++] = id;
    return DPT_OK;
}

/* Writes the token of each byte; skips bytes without a token. */
static size_t byte_tokens(const struct dpt_vocab *vocab, const uint8_t *piece, size_t bytes,
                          uint32_t *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        ids[n] = vocab->of_byte[piece[i]];
        n += ids[n] != DPT_TOKEN_NONE;
    }
    return n;
}

/* Merges a short piece: keeps the ids, and the merge of each id with its right neighbour. */
static size_t merge_short(const struct dpt_vocab *vocab, const uint8_t *piece, size_t n,
                          uint32_t *ids)
{
    const struct dpt_merge *merges[SHORT_BYTES_MAX];
    n = byte_tokens(vocab, piece, n, ids);
    for (size_t i = 0; i + 1 < n; i++)
        merges[i] = dpt_vocab_merge(vocab, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (merges[i]->rank < merges[best]->rank)
                best = i;
        if (merges[best]->rank == DPT_RANK_NONE)
            break;
        ids[best] = merges[best]->id;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(merges + best, merges + best + 1, (n - best - 1) * sizeof(struct dpt_merge *));
        if (best > 0)
            merges[best - 1] = dpt_vocab_merge(vocab, ids[best - 1], ids[best]);
        if (best + 1 < n)
            merges[best] = dpt_vocab_merge(vocab, ids[best], ids[best + 1]);
    }
    return n;
}

/* A long piece is a list of symbols, each at the index of its first byte. A heap holds the pairs:
 * the lowest rank first, then the leftmost. A pair of the heap that has changed since is
 * skipped. */
struct symbol {
    uint32_t before, after; /* positions; END: none */
    uint32_t id;
    uint32_t rank; /* of the pair with the symbol after it */
};
enum { END = UINT32_MAX };

struct heap {
    uint64_t *pairs; /* rank << 32 | position */
    size_t n;
};

static void push_pair(struct heap *heap, uint64_t pair)
{
    size_t at = heap->n++;
    while (at > 0 && heap->pairs[(at - 1) / 2] > pair) {
        heap->pairs[at] = heap->pairs[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->pairs[at] = pair;
}

static uint64_t pop_pair(struct heap *heap)
{
    const uint64_t top = heap->pairs[0], last = heap->pairs[--heap->n];
    size_t at = 0;
    for (size_t child = 1; child < heap->n; child = 2 * at + 1) {
        if (child + 1 < heap->n && heap->pairs[child + 1] < heap->pairs[child])
            child++;
        if (heap->pairs[child] >= last)
            break;
        heap->pairs[at] = heap->pairs[child];
        at = child;
    }
    heap->pairs[at] = last;
    return top;
}

/* Sets the rank of symbol `at` and its right neighbour; puts the pair on the heap if it can merge.
 */
static void update_pair(const struct dpt_vocab *vocab, struct symbol *symbols, uint32_t at,
                        struct heap *heap)
{
    struct symbol *s = &symbols[at];
    s->rank = s->after == (uint32_t)END ? DPT_RANK_NONE
                                        : dpt_vocab_merge(vocab, s->id, symbols[s->after].id)->rank;
    if (s->rank != DPT_RANK_NONE)
        push_pair(heap, (uint64_t)s->rank << 32 | at);
}

static void merge_long(const struct dpt_vocab *vocab, struct symbol *symbols, struct heap *heap)
{
    while (heap->n > 0) {
        const uint64_t pair = pop_pair(heap);
        const uint32_t at = (uint32_t)pair;
        struct symbol *s = &symbols[at];
        if (s->rank != (uint32_t)(pair >> 32)) /* merged since, or has another neighbour now */
            continue;
        struct symbol *gone = &symbols[s->after];
        s->id = dpt_vocab_merge(vocab, s->id, gone->id)->id;
        s->after = gone->after;
        gone->rank = DPT_RANK_NONE;
        if (s->after != (uint32_t)END)
            symbols[s->after].before = at;
        update_pair(vocab, symbols, at, heap);
        if (s->before != (uint32_t)END)
            update_pair(vocab, symbols, s->before, heap);
    }
}

void dpt_bpe_space_fini(struct dpt_bpe_space *space)
{
    free(space->memory);
    *space = (struct dpt_bpe_space){0};
}

static enum dpt_status encode_long_piece(const struct dpt_vocab *vocab, struct dpt_bpe_space *space,
                                         const uint8_t *piece, size_t n, struct dpt_tokens *tokens,
                                         struct dpt_err *err)
{
    /* n - 1 pairs at the start, and two more for each of at most n - 1 merges. */
    const size_t pairs_bytes = 3 * n * sizeof(uint64_t);
    const size_t bytes = pairs_bytes + n * sizeof(struct symbol);
    if (!dpt_array_reserve(&space->memory, &space->bytes, bytes, 1))
        return dpt_fail_nomem(err, "tokenizer: piece that takes %zu bytes", bytes);
    struct heap heap = {.pairs = space->memory};
    struct symbol *symbols = (struct symbol *)(heap.pairs + 3 * n);
    uint32_t *ids = tokens->ids + tokens->n; /* the ids of the bytes, later of the whole piece */
    n = byte_tokens(vocab, piece, n, ids);
    for (size_t i = 0; i < n; i++)
        symbols[i] = (struct symbol){.before = i == 0 ? (uint32_t)END : (uint32_t)(i - 1),
                                     .after = i + 1 == n ? (uint32_t)END : (uint32_t)(i + 1),
                                     .id = ids[i]};
    for (size_t i = 0; i < n; i++)
        update_pair(vocab, symbols, (uint32_t)i, &heap);
    merge_long(vocab, symbols, &heap);
    for (uint32_t at = n > 0 ? 0 : (uint32_t)END; at != (uint32_t)END; at = symbols[at].after)
        tokens->ids[tokens->n++] = symbols[at].id;
    return DPT_OK;
}

enum dpt_status dpt_bpe_piece(const struct dpt_vocab *vocab, struct dpt_bpe_space *space,
                              const uint8_t *piece, size_t bytes, struct dpt_tokens *tokens,
                              struct dpt_err *err)
{
    if (bytes > DPT_PIECE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "tokenizer: a word of %zu bytes, %d at most are possible; is it text?",
                        bytes, DPT_PIECE_BYTES_MAX);
    DPT_TRY(reserve_tokens(tokens, bytes, err));
    const int whole = vocab->ignore_merges ? dpt_vocab_find(vocab, piece, bytes) : -1;
    if (whole >= 0) {
        tokens->ids[tokens->n++] = (uint32_t)whole;
        return DPT_OK;
    }
    if (bytes > SHORT_BYTES_MAX)
        return encode_long_piece(vocab, space, piece, bytes, tokens, err);
    tokens->n += merge_short(vocab, piece, bytes, tokens->ids + tokens->n);
    return DPT_OK;
}
