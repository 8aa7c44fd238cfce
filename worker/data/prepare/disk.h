/* What dpt-data encode does to the disk, each call through the seam of fault.h. */
#ifndef DPT_WORKER_DATA_PREPARE_DISK_H
#define DPT_WORKER_DATA_PREPARE_DISK_H

#include "base/err.h"
#include "worker/data/prepare/fault.h"

#include <stddef.h>
#include <stdint.h>

DPT_MUST_USE enum dpt_status dpt_disk_mkdirs(const char *path, struct dpt_err *err);
/* An empty file for writing and reading; what was there under that name is gone. */
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
