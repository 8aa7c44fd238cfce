/* Changes of the disk, each after the hook of tests. */
#include "worker/data/prepare/disk.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

int (*dpt_prepare_fault_hook)(const char *operation, const char *path);

static enum dpt_status ask_fault_hook(const char *operation, const char *path, struct dpt_err *err)
{
    const int failed = dpt_prepare_fault_hook ? dpt_prepare_fault_hook(operation, path) : 0;
    return failed ? dpt_fail_errno(err, failed, "%s '%s'", operation, path) : DPT_OK;
}

enum dpt_status dpt_disk_mkdirs(const char *path, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("create folder", path, err));
    return dpt_fs_mkdirs(path, err);
}

enum dpt_status dpt_disk_create(const char *path, int *ret_fd, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("create", path, err));
    DPT_TRY(dpt_disk_remove(path, err));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", path);
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_disk_write(int fd, const void *data, size_t bytes, int64_t at, const char *path,
                               struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("write", path, err));
    return dpt_fs_pwrite_all(fd, data, bytes, at, path, err);
}

enum dpt_status dpt_disk_sync(int fd, const char *path, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("fsync", path, err));
    return fsync(fd) == 0 ? DPT_OK : dpt_fail_errno(err, errno, "fsync '%s'", path);
}

enum dpt_status dpt_disk_truncate(int fd, int64_t bytes, const char *path, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("cut", path, err));
    return ftruncate(fd, bytes) == 0 ? DPT_OK : dpt_fail_errno(err, errno, "cut '%s'", path);
}

enum dpt_status dpt_disk_rename(const char *from, const char *to, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("rename", from, err));
    return rename(from, to) == 0 ? DPT_OK
                                 : dpt_fail_errno(err, errno, "rename '%s' to '%s'", from, to);
}

enum dpt_status dpt_disk_remove(const char *path, struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("remove", path, err));
    return unlink(path) == 0 || errno == ENOENT ? DPT_OK
                                                : dpt_fail_errno(err, errno, "remove '%s'", path);
}

enum dpt_status dpt_disk_write_file(const char *path, const void *data, size_t bytes,
                                    struct dpt_err *err)
{
    DPT_TRY(ask_fault_hook("write", path, err));
    return dpt_fs_write_file_atomic(path, data, bytes, err);
}
