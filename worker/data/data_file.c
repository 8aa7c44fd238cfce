/* Files of data and their identity (data_file.h). */
#include "worker/data/data_file.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DATA_FILE_FLAGS = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY };

enum dpt_status dpt_data_file_identify(struct dpt_data_file *file, struct dpt_err *err)
{
    const int fd = open(file->path, DATA_FILE_FLAGS);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    struct stat st;
    const int saved_errno = fstat(fd, &st) != 0 ? errno : 0;
    (void)close(fd); /* opened for reading */
    if (saved_errno != 0)
        return dpt_fail_errno(err, saved_errno, "stat '%s'", file->path);
    if (!S_ISREG(st.st_mode))
        return dpt_fail(err, DPT_EIO, "'%s' is no regular file", file->path);
    file->bytes = st.st_size;
    file->device = st.st_dev;
    file->inode = st.st_ino;
    file->changed_s = st.st_mtim.tv_sec;
    file->changed_ns = st.st_mtim.tv_nsec;
    return DPT_OK;
}

static bool is_same(const struct dpt_data_file *file, const struct stat *st)
{
    return st->st_size == file->bytes && st->st_dev == file->device && st->st_ino == file->inode &&
           st->st_mtim.tv_sec == file->changed_s && st->st_mtim.tv_nsec == file->changed_ns;
}

/* The identity is checked after the read: a change between the two would go unseen otherwise. */
enum dpt_status dpt_data_file_read(const struct dpt_data_file *file, int64_t at, void *ret,
                                   size_t bytes, struct dpt_err *err)
{
    const int fd = open(file->path, DATA_FILE_FLAGS);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    struct stat st;
    enum dpt_status status = dpt_fs_pread_all(fd, ret, bytes, at, file->path, err);
    if (fstat(fd, &st) != 0)
        status = dpt_fail_errno(err, errno, "stat '%s'", file->path);
    else if (!is_same(file, &st))
        status = dpt_fail(err, DPT_ECORRUPT,
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
