/* Copies of records that outlive the step that made them. */
#ifndef DPT_RENDEZVOUS_CORE_RECORD_H
#define DPT_RENDEZVOUS_CORE_RECORD_H

#include "rendezvous/core/core.h"

/* Copies a record with all it points to; *ret is freed with dpt_rdzv_record_free. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_rdzv_record_copy(const struct dpt_rdzv_record *record,
                                                  struct dpt_rdzv_record *ret, struct dpt_err *err);
void dpt_rdzv_record_free(struct dpt_rdzv_record *record);

#endif
