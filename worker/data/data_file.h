/* A file of data that must stay the same while it is used: a file that changes during a run is an
 * error, because the run would continue on another trajectory. */
#ifndef DPT_WORKER_DATA_DATA_FILE_H
#define DPT_WORKER_DATA_DATA_FILE_H

#include "base/err.h"
#include "base/hash.h"

#include <stdint.h>

struct dpt_data_file {
    char *path;    /* owned by the caller; dpt_data_file_identify sets the other members */
    int64_t bytes; /* its size */
    uint64_t device, inode;
    int64_t changed_s, changed_ns; /* time of the last change */
};

/* Notes size, device, inode and time of the regular file `file->path`, which must be readable.
 * Never waits: a pipe is DPT_EIO. */
DPT_MUST_USE enum dpt_status dpt_data_file_identify(struct dpt_data_file *file,
                                                    struct dpt_err *err);

/* Reads `bytes` bytes from byte `at` on. DPT_ECORRUPT: the file was changed or replaced since
 * dpt_data_file_identify. Any thread. */
DPT_MUST_USE enum dpt_status dpt_data_file_read(const struct dpt_data_file *file, int64_t at,
                                                void *ret, size_t bytes, struct dpt_err *err);

/* Joins the identity of the file to `h`. */
struct dpt_hash128 dpt_data_file_stamp(const struct dpt_data_file *file, struct dpt_hash128 h);

#endif
