/* Added tokens by their first byte, the longest first. */
#include "worker/data/vocab.h"

#include <stdlib.h>
#include <string.h>

static int compare_added(const void *left, const void *right)
{
    const struct dpt_added *a = left, *b = right;
    if (a->late != b->late)
        return a->late - b->late;
    if (a->first != b->first)
        return a->first - b->first;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

void dpt_added_sort(struct dpt_vocab *vocab)
{
    int i = 0;
    vocab->n_added_plain = 0;
    for (int k = 0; k < vocab->n_added; k++)
        vocab->n_added_plain += !vocab->added[k].special;
    if (vocab->n_added > 0)
        qsort(vocab->added, (size_t)vocab->n_added, sizeof *vocab->added, compare_added);
    for (int pass = 0; pass < DPT_ADDED_PASSES; pass++)
        for (int byte = 0; byte <= DPT_BYTES; byte++) {
            vocab->added_at[pass][byte] = i;
            while (i < vocab->n_added && vocab->added[i].late == (pass == 1) &&
                   vocab->added[i].first == byte)
                i++;
        }
}

const struct dpt_added *dpt_added_next(const struct dpt_vocab *vocab, int pass, const uint8_t *text,
                                       size_t bytes, size_t *at, size_t *ret_bytes)
{
    const int *first = vocab->added_at[pass];
    for (size_t i = *at; i < bytes; i++)
        for (int k = first[text[i]]; k < first[text[i] + 1]; k++) {
            const struct dpt_added *added = &vocab->added[k];
            const uint8_t *token = vocab->bytes + vocab->texts[added->id].at;
            if (added->bytes > bytes - i || memcmp(text + i, token, added->bytes) != 0)
                continue;
            *at = i;
            *ret_bytes = added->bytes;
            return added;
        }
    return NULL;
}
