/* Writer 0's view of an attempt: the reports of all writers, joined. */
#ifndef DPT_CHECKPOINT_PARTS_H
#define DPT_CHECKPOINT_PARTS_H

#include "checkpoint/attempt.h"

/* Waits until every writer has reported. DPT_ETIMEOUT names a writer without a report at the
 * deadline (dpt_now_ms), DPT_ECORRUPT a writer whose report does not fit the spec. */
DPT_MUST_USE enum dpt_status dpt_parts_wait(const struct dpt_attempt *attempt, int64_t deadline_ms,
                                            struct dpt_err *err);

/* Reads all reports and joins them to whole files; with `common` also the report about writer 0's
 * common files. DPT_ECORRUPT: in the reports or in the folder a file of the layout is missing or
 * has another size. `ret` must be zeroed. It gets the hashes of all blocks that some writer holds
 * whole. */
DPT_MUST_USE enum dpt_status dpt_parts_join(const struct dpt_attempt *attempt, bool common,
                                            struct dpt_manifest *ret, struct dpt_err *err);

/* The weights hash of the joined reports. Blocks that no writer holds whole are read from the files
 * and verified against their checksums. */
DPT_MUST_USE enum dpt_status dpt_parts_weights_hash(const struct dpt_attempt *attempt,
                                                    const struct dpt_manifest *joined,
                                                    struct dpt_hash128 *ret, struct dpt_err *err);

#endif
