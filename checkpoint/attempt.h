/* One attempt to write a checkpoint: the checked spec and the layout of the files. The functions of
 * all writers use it. */
#ifndef DPT_CHECKPOINT_ATTEMPT_H
#define DPT_CHECKPOINT_ATTEMPT_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/files.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"
#include "checkpoint/names.h"

#include <stdbool.h>

struct dpt_attempt {
    const struct dpt_checkpoint_spec *spec; /* borrowed */
    /* `temporary` is closed until dpt_attempt_open. */
    struct dpt_folder dir, temporary;
    char temporary_name[DPT_CHECKPOINT_NAME_BYTES];
    char step_name[DPT_CHECKPOINT_NAME_BYTES];
    int n_kinds;
    struct dpt_files files;
};

/* Checks the spec (DPT_EINVAL), creates and opens checkpoint.dir, lays out the files. Call
 * dpt_attempt_end whatever the result. */
DPT_MUST_USE enum dpt_status dpt_attempt_init(const struct dpt_checkpoint_spec *spec,
                                              struct dpt_attempt *ret, struct dpt_err *err);

/* Closes the attempt. Returns `status`; a failure gets the prefix "checkpoint of step N in 'DIR'
 * dropped" in `err`. */
enum dpt_status dpt_attempt_end(struct dpt_attempt *attempt, enum dpt_status status,
                                struct dpt_err *err);

/* Opens the attempt's temporary folder; `create`: creates it first. */
DPT_MUST_USE enum dpt_status dpt_attempt_open(struct dpt_attempt *attempt, bool create,
                                              struct dpt_err *err);

/* DPT_EABORTED: the caller cancels the attempt. */
DPT_MUST_USE enum dpt_status dpt_attempt_check_cancelled(const struct dpt_attempt *attempt,
                                                         struct dpt_err *err);

/* Writes `part` as the sealed report of its writer; durable after the next sync of the temporary
 * folder. */
DPT_MUST_USE enum dpt_status dpt_attempt_write_part(const struct dpt_attempt *attempt,
                                                    const struct dpt_manifest *part,
                                                    struct dpt_err *err);
/* Returns DPT_EDIVERGED; the error names the tensor of the report with a value that is not
 * finite. */
enum dpt_status dpt_attempt_refuse_values(const struct dpt_manifest *part, struct dpt_err *err);

#endif
