/* The hash table of index.h. */
#include "rendezvous/core/index.h"

#include <stdlib.h>

enum { SIZE_MIN = 16 };

void dpt_rdzv_index_fini(struct index *index)
{
    free(index->entries);
    *index = (struct index){0};
}

/* The place at which the search for a key begins: Fibonacci hashing (Knuth, TAOCP 3, 6.4). */
static size_t home_of(const struct index *index, uint64_t key)
{
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (index->size - 1);
}

static void place_entry(struct index *index, struct index_entry entry)
{
    size_t at = home_of(index, entry.key);
    while (index->entries[at].value != NULL)
        at = (at + 1) & (index->size - 1);
    index->entries[at] = entry;
}

/* Keeps at least half of the entries free. */
static bool grow_index(struct index *index)
{
    if (2 * (index->n + 1) <= index->size)
        return true;
    struct index bigger = {.size = index->size == 0 ? SIZE_MIN : 2 * index->size, .n = index->n};
    bigger.entries = calloc(bigger.size, sizeof bigger.entries[0]);
    if (bigger.entries == NULL)
        return false;
    for (size_t i = 0; i < index->size; i++)
        if (index->entries[i].value != NULL)
            place_entry(&bigger, index->entries[i]);
    free(index->entries);
    *index = bigger;
    return true;
}

bool dpt_rdzv_index_add(struct index *index, uint64_t key, void *value)
{
    if (!grow_index(index))
        return false;
    place_entry(index, (struct index_entry){key, value});
    index->n++;
    return true;
}

void *dpt_rdzv_index_find(const struct index *index, uint64_t key)
{
    if (index->size == 0)
        return NULL;
    for (size_t at = home_of(index, key); index->entries[at].value != NULL;
         at = (at + 1) & (index->size - 1))
        if (index->entries[at].key == key)
            return index->entries[at].value;
    return NULL;
}

/* Frees the entry `hole` and moves entries back, so that no search meets a free entry too early. */
static void close_hole(struct index *index, size_t hole)
{
    const size_t mask = index->size - 1;
    for (size_t at = (hole + 1) & mask; index->entries[at].value != NULL; at = (at + 1) & mask) {
        const size_t home = home_of(index, index->entries[at].key);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue; /* its search does not pass the hole */
        index->entries[hole] = index->entries[at];
        hole = at;
    }
    index->entries[hole] = (struct index_entry){0};
    index->n--;
}

void dpt_rdzv_index_remove(struct index *index, uint64_t key, const void *value)
{
    if (index->size == 0)
        return;
    for (size_t at = home_of(index, key); index->entries[at].value != NULL;
         at = (at + 1) & (index->size - 1))
        if (index->entries[at].key == key && index->entries[at].value == value) {
            close_hole(index, at);
            return;
        }
}
