/* Reads a file with NCCL's log, and judges it. */
#ifndef DPT_WORKER_DOCTOR_NCCL_READ_H
#define DPT_WORKER_DOCTOR_NCCL_READ_H

#include "worker/doctor/finding.h"
#include "worker/doctor/nccl_log.h"

/* Reads the file line by line; lines beyond 4 KiB are cut. DPT_ENOENT, DPT_EIO: it cannot be read.
 * DPT_ECORRUPT: it has no line of NCCL. */
DPT_MUST_USE enum dpt_status dpt_nccl_log_read(const char *path, struct dpt_nccl_log *ret,
                                               struct dpt_err *err);

/* Adds lines: the transports between ranks, and NCCL's reasons. Pure. */
void dpt_nccl_log_judge(const struct dpt_nccl_log *log, struct dpt_findings *findings);

#endif
