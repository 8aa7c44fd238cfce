/* What the steps of one attempt to write a checkpoint share: the checked spec and the layout of the
 * files. */
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
    struct dpt_folder dir, temporary; /* the latter closed until it is opened */
    char temporary_name[DPT_CHECKPOINT_NAME_BYTES];
    char step_name[DPT_CHECKPOINT_NAME_BYTES];
    int n_kinds;
    struct dpt_files files;
};

/* Checks the spec (DPT_EINVAL), creates and opens checkpoint.dir, lays out the files. `ret` is
 * ready for dpt_attempt_fini whatever the result. */
DPT_MUST_USE enum dpt_status dpt_attempt_init(const struct dpt_checkpoint_spec *spec,
                                              struct dpt_attempt *ret, struct dpt_err *err);
void dpt_attempt_fini(struct dpt_attempt *attempt);

/* Opens the attempt's temporary folder; it is created first when `make`. */
DPT_MUST_USE enum dpt_status dpt_attempt_open(struct dpt_attempt *attempt, bool make,
                                              struct dpt_err *err);

/* DPT_EABORTED when the caller wants the attempt dropped. */
DPT_MUST_USE enum dpt_status dpt_attempt_go_on(const struct dpt_checkpoint_spec *spec,
                                               struct dpt_err *err);

/* Seals `part` as the part file of `writer`; durable when the temporary folder is synced after. */
DPT_MUST_USE enum dpt_status dpt_attempt_write_part(const struct dpt_attempt *attempt,
                                                    const struct dpt_manifest *part,
                                                    struct dpt_err *err);
/* DPT_ENOENT while the writer has not reported. */
DPT_MUST_USE enum dpt_status dpt_attempt_read_part(const struct dpt_attempt *attempt, int writer,
                                                   struct dpt_manifest *ret, struct dpt_err *err);

/* DPT_EDIVERGED: names the tensor of the report in which a value is not finite. */
enum dpt_status dpt_attempt_refuse_values(const struct dpt_manifest *part, struct dpt_err *err);

/* dpt_wrap with "checkpoint of step N in 'DIR' dropped". */
enum dpt_status dpt_attempt_wrap(const struct dpt_checkpoint_spec *spec, enum dpt_status status,
                                 struct dpt_err *err);

#endif
