/* A file of data, and a check that it is still the same: a file that changes during a run is an
 * error, not another trajectory. */
#ifndef DPT_WORKER_DATA_FILE_H
#define DPT_WORKER_DATA_FILE_H

#include "base/err.h"
#include "base/hash.h"

#include <stdint.h>

struct dpt_data_file {
    char *path;    /* owned by the caller; the other members are set by the first opening */
    int64_t bytes; /* its size */
    uint64_t device, inode;
    int64_t changed_s, changed_ns;
};

/* Opens the regular file `file->path` for reading and notes which one it is. Does not wait: a pipe
 * is DPT_EIO. */
DPT_MUST_USE enum dpt_status dpt_data_file_open_first(struct dpt_data_file *file, int *ret_fd,
                                                      struct dpt_err *err);

/* Opens it again; DPT_ECORRUPT: it is another, or was changed. */
DPT_MUST_USE enum dpt_status dpt_data_file_open(const struct dpt_data_file *file, int *ret_fd,
                                                struct dpt_err *err);

/* Joins the identity of the file to `h`. */
struct dpt_hash128 dpt_data_file_stamp(const struct dpt_data_file *file, struct dpt_hash128 h);

#endif
