/* Writes the trace of a rank and a window as a file, as torch.profiler's handler for TensorBoard
 * does: DIR/profile/STRATEGY/rank_R/worker_R.TIME.pt.trace.json.gz, compressed. */
#ifndef DPT_WORKER_TRACE_TRACE_FILE_H
#define DPT_WORKER_TRACE_TRACE_FILE_H

#include "worker/trace/kineto.h"

/* Makes the folders, writes a temporary file and renames it, so that the file is complete or
 * absent. wall_ns is the TIME in its name. ret_path (PATH_MAX bytes) is the file's path. A file
 * that failed is removed. DPT_ENOSPC, DPT_EIO and others of the system. */
DPT_MUST_USE enum dpt_status dpt_trace_file_write(const char *dir,
                                                  const struct dpt_kineto_trace *trace,
                                                  int64_t wall_ns, char *ret_path,
                                                  struct dpt_err *err);

#endif
