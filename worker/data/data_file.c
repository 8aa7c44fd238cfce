/* Files of data and their identity (data_file.h). */
#include "worker/data/data_file.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static enum dpt_status open_and_stat(const char *path, int *ret_fd, struct stat *ret,
                                     struct dpt_err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    if (fstat(fd, ret) != 0) {
        const int saved_errno = errno;
        (void)close(fd);
        return dpt_fail_errno(err, saved_errno, "stat '%s'", path);
    }
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_data_file_identify(struct dpt_data_file *file, struct dpt_err *err)
{
    struct stat st;
    int fd = -1;
    DPT_TRY(open_and_stat(file->path, &fd, &st, err));
    (void)close(fd); /* opened for reading */
    if (!S_ISREG(st.st_mode))
        return dpt_fail(err, DPT_EIO, "'%s' is no regular file", file->path);
    file->bytes = st.st_size;
    file->device = st.st_dev;
    file->inode = st.st_ino;
    file->changed_s = st.st_mtim.tv_sec;
    file->changed_ns = st.st_mtim.tv_nsec;
    return DPT_OK;
}

enum dpt_status dpt_data_file_read(const struct dpt_data_file *file, int64_t at, void *ret,
                                   size_t bytes, struct dpt_err *err)
{
    struct stat st;
    int fd = -1;
    DPT_TRY(open_and_stat(file->path, &fd, &st, err));
    const bool same = st.st_size == file->bytes && st.st_dev == file->device &&
                      st.st_ino == file->inode && st.st_mtim.tv_sec == file->changed_s &&
                      st.st_mtim.tv_nsec == file->changed_ns;
    const enum dpt_status status =
        same ? dpt_fs_pread_all(fd, ret, bytes, at, file->path, err)
             : dpt_fail(err, DPT_ECORRUPT,
                        "'%s' was changed while in use; put the former file back and start again",
                        file->path);
    (void)close(fd); /* opened for reading */
    return status;
}

struct dpt_hash128 dpt_data_file_stamp(const struct dpt_data_file *file, struct dpt_hash128 h)
{
    const struct dpt_hash128 place = {file->device, file->inode};
    const struct dpt_hash128 bytes = {(uint64_t)file->bytes, 0};
    const struct dpt_hash128 changed = {(uint64_t)file->changed_s, (uint64_t)file->changed_ns};
    return dpt_hash128_join(dpt_hash128_join(dpt_hash128_join(h, place), bytes), changed);
}
