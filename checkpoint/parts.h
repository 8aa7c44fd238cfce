/* What all writers report, put together by slot 0. */
#ifndef DPT_CHECKPOINT_PARTS_H
#define DPT_CHECKPOINT_PARTS_H

#include "checkpoint/attempt.h"

/* Waits until every writer has reported. DPT_ETIMEOUT names one who has not by the deadline
 * (dpt_now_ms), DPT_ECORRUPT one whose report does not fit the spec. */
DPT_MUST_USE enum dpt_status dpt_parts_wait(const struct dpt_checkpoint_spec *spec,
                                            const struct dpt_attempt *attempt, int64_t deadline_ms,
                                            struct dpt_err *err);

/* Reads all reports (slot 0's common files too when `common`) and joins them to whole files, which
 * must be all the files of the layout, in their size in list and folder. `ret` zeroed; with the
 * hashes that writers could make. */
DPT_MUST_USE enum dpt_status dpt_parts_join(const struct dpt_checkpoint_spec *spec,
                                            const struct dpt_attempt *attempt, bool common,
                                            struct dpt_manifest *ret, struct dpt_err *err);

/* The weights hash of the joined reports. Blocks that no writer has whole are read back from the
 * files, verified against their checksums. */
DPT_MUST_USE enum dpt_status dpt_parts_weights_hash(const struct dpt_checkpoint_spec *spec,
                                                    const struct dpt_attempt *attempt,
                                                    const struct dpt_manifest *joined,
                                                    struct dpt_hash128 *ret, struct dpt_err *err);

#endif
