/* The end of what a program prints. */
#ifndef DPT_BASE_STDOUT_H
#define DPT_BASE_STDOUT_H

#include "base/err.h"

/* Writes what stdio holds back of the standard output. Fails if that write or an earlier one has
 * failed since the last call: a full disk, a closed descriptor. fflush alone does not tell of the
 * earlier one, because stdio drops the bytes that it could not write. DPT_ENOSPC, DPT_EIO. */
DPT_MUST_USE enum dpt_status dpt_stdout_flush(struct dpt_err *err);

#endif
