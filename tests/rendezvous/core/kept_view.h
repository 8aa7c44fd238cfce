/* Compares durable states, and copies records, for tests of the journal. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_KEPT_VIEW_H
#define DPT_TESTS_RENDEZVOUS_CORE_KEPT_VIEW_H

#include "rendezvous/core/core.h"

/* NULL: the durable states of both servers are equal. Else the first difference, as text that is
 * valid until the next call. */
const char *kept_difference(const struct dpt_rdzv *a, const struct dpt_rdzv *b);

/* Records in their order, as a journal on disk. */
struct kept_records;
struct kept_records *kept_records_create(void);
void kept_records_destroy(struct kept_records **records);
/* Copies a record. */
void kept_records_add(struct kept_records *records, const struct dpt_rdzv_record *record);
/* Drops all but the first n, as in an older copy of the journal. */
void kept_records_cut(struct kept_records *records, size_t n);
size_t kept_records_count(const struct kept_records *records);
const struct dpt_rdzv_record *kept_record_at(const struct kept_records *records, size_t i);
/* True: a journal gives the record back; of forgotten runs it gives back FORGET alone. */
bool kept_record_counts(const struct kept_records *records, size_t i);
/* Gives all records that count to `core`, which has made no step. Returns NULL, or the error. */
const char *kept_records_restore(const struct kept_records *records, struct dpt_rdzv *core);

#endif
