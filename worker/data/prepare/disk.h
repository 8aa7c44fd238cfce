/* The calls by which dpt-data encode changes the disk. A test can end the process in any of them,
 * or let it fail. */
#ifndef DPT_WORKER_DATA_PREPARE_DISK_H
#define DPT_WORKER_DATA_PREPARE_DISK_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* For tests; NULL normally. Called by one thread before each operation ("write", "fsync", "rename",
 * …) on `path`. 0: the operation happens; an errno: it fails with that instead. */
extern int (*dpt_prepare_fault_hook)(const char *operation, const char *path);

DPT_MUST_USE enum dpt_status dpt_disk_mkdirs(const char *path, struct dpt_err *err);
/* Creates an empty file for writing and reading, in place of one of the same name. */
DPT_MUST_USE enum dpt_status dpt_disk_create(const char *path, int *ret_fd, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_disk_write(int fd, const void *data, size_t bytes, int64_t at,
                                            const char *path, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_disk_sync(int fd, const char *path, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_disk_truncate(int fd, int64_t bytes, const char *path,
                                               struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_disk_rename(const char *from, const char *to, struct dpt_err *err);
/* An absent file is fine. */
DPT_MUST_USE enum dpt_status dpt_disk_remove(const char *path, struct dpt_err *err);
/* dpt_fs_write_file_atomic. */
DPT_MUST_USE enum dpt_status dpt_disk_write_file(const char *path, const void *data, size_t bytes,
                                                 struct dpt_err *err);

#endif
