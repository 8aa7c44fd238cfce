/* Files of data: which one was opened first (file.h). */
#include "worker/data/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_for_reading(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

enum dpt_status dpt_data_file_open_first(struct dpt_data_file *file, int *ret_fd,
                                         struct dpt_err *err)
{
    struct stat st;
    int fd = open_for_reading(file->path);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return dpt_fail(err, DPT_EIO, "'%s' is no regular file", file->path);
    }
    file->bytes = st.st_size;
    file->device = st.st_dev;
    file->inode = st.st_ino;
    file->changed_s = st.st_mtim.tv_sec;
    file->changed_ns = st.st_mtim.tv_nsec;
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_data_file_open(const struct dpt_data_file *file, int *ret_fd,
                                   struct dpt_err *err)
{
    struct stat st;
    int fd = open_for_reading(file->path);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    if (fstat(fd, &st) != 0 || st.st_size != file->bytes || st.st_dev != file->device ||
        st.st_ino != file->inode || st.st_mtim.tv_sec != file->changed_s ||
        st.st_mtim.tv_nsec != file->changed_ns) {
        (void)close(fd);
        return dpt_fail(err, DPT_ECORRUPT,
                        "'%s' was changed while the run reads it; put the former file "
                        "back and start again",
                        file->path);
    }
    *ret_fd = fd;
    return DPT_OK;
}

struct dpt_hash128 dpt_data_file_stamp(const struct dpt_data_file *file, struct dpt_hash128 h)
{
    const struct dpt_hash128 place = {file->device, file->inode};
    const struct dpt_hash128 bytes = {(uint64_t)file->bytes, 0};
    const struct dpt_hash128 changed = {(uint64_t)file->changed_s, (uint64_t)file->changed_ns};
    return dpt_hash128_join(dpt_hash128_join(dpt_hash128_join(h, place), bytes), changed);
}
