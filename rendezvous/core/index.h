/* A hash table from numbers to pointers: nodes by id and by connection, hosts and folders of a
 * plan. A key may have several values. Open addressing with linear probing; an entry is removed by
 * moving later ones back (Knuth, TAOCP 3, 6.4, algorithm R). */
#ifndef DPT_RENDEZVOUS_CORE_INDEX_H
#define DPT_RENDEZVOUS_CORE_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_entry {
    uint64_t key;
    void *value; /* NULL: the entry is free */
};

/* Initially zeroed. */
struct index {
    struct index_entry *entries; /* (size) owned */
    size_t size, n;              /* size: a power of two, or 0 */
};

void dpt_rdzv_index_fini(struct index *index);
/* Adds a value, which is not NULL. False: no memory. */
bool dpt_rdzv_index_add(struct index *index, uint64_t key, void *value);
/* One of the values of the key; NULL: it has none. */
void *dpt_rdzv_index_find(const struct index *index, uint64_t key);
/* Removes this value of the key, if it is there. */
void dpt_rdzv_index_remove(struct index *index, uint64_t key, const void *value);

#endif
