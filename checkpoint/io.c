/* Opens and makes folders by descriptor; the system calls of the write path (io.h). */
#include "checkpoint/io.h"

#include "base/fs.h"
#include "checkpoint/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int (*dpt_fault_hook)(enum dpt_fault_op op, const char *path);

/* True: a test makes the operation fail with the errno that is now set. */
static bool is_faulty(enum dpt_fault_op op, const char *path)
{
    const int injected = dpt_fault_hook ? dpt_fault_hook(op, path) : 0;
    if (injected)
        errno = injected;
    return injected != 0;
}

enum dpt_status dpt_folder_open(const char *path, struct dpt_folder *ret, struct dpt_err *err)
{
    ret->fd = -1;
    if (strlen(path) >= sizeof ret->path)
        return dpt_fail(err, DPT_EOVERFLOW, "path of %zu bytes is too long", strlen(path));
    (void)snprintf(ret->path, sizeof ret->path, "%s", path);
    ret->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (ret->fd < 0)
        return dpt_fail_errno(err, errno, "open folder '%s'", path);
    return DPT_OK;
}

enum dpt_status dpt_folder_open_in(const struct dpt_folder *parent, const char *name,
                                   struct dpt_folder *ret, struct dpt_err *err)
{
    ret->fd = -1;
    DPT_TRY(dpt_fs_join(parent->path, name, ret->path, sizeof ret->path, err));
    ret->fd = openat(parent->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (ret->fd < 0)
        return dpt_fail_errno(err, errno, "open folder '%s'", ret->path);
    return DPT_OK;
}

enum dpt_status dpt_folder_open_if_present(const char *path, struct dpt_folder *ret,
                                           struct dpt_err *err)
{
    struct dpt_err why;
    const enum dpt_status status = dpt_folder_open(path, ret, &why);
    return status == DPT_OK || status == DPT_ENOENT ? DPT_OK : dpt_pass(err, &why);
}

/* Creates one level; the folder above it exists. */
static enum dpt_status make_level(const char *path, const char *above, struct dpt_err *err)
{
    struct dpt_folder folder;
    if (is_faulty(DPT_FAULT_MKDIR, path) || (mkdir(path, 0777) != 0 && errno != EEXIST))
        return dpt_fail_errno(err, errno, "create folder '%s'", path);
    DPT_TRY(dpt_folder_open(above, &folder, err));
    enum dpt_status status = dpt_folder_sync(&folder, err);
    dpt_folder_close(&folder);
    return status;
}

enum dpt_status dpt_folder_make_all(const char *path, struct dpt_err *err)
{
    char level[PATH_MAX], above[PATH_MAX];
    const size_t n = strlen(path);
    if (n == 0 || n >= sizeof level)
        return dpt_fail(err, DPT_EINVAL, "create folder '%s': the path is %s", path,
                        n == 0 ? "empty" : "too long");
    (void)snprintf(above, sizeof above, "%s", path[0] == '/' ? "/" : ".");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(level, path, i);
        level[i] = '\0';
        /* Opening the level later reports a name that is not a folder. */
        if (!dpt_fs_exists(level))
            DPT_TRY(make_level(level, above, err));
        memcpy(above, level, i + 1);
    }
    return DPT_OK;
}

enum dpt_status dpt_folder_make(const struct dpt_folder *parent, const char *name,
                                struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(parent->path, name, path, sizeof path, err));
    if (is_faulty(DPT_FAULT_MKDIR, path) ||
        (mkdirat(parent->fd, name, 0777) != 0 && errno != EEXIST))
        return dpt_fail_errno(err, errno, "create folder '%s'", path);
    return DPT_OK;
}

enum dpt_status dpt_folder_sync(const struct dpt_folder *folder, struct dpt_err *err)
{
    return dpt_io_sync(folder->fd, folder->path, err);
}

void dpt_folder_close(struct dpt_folder *folder)
{
    if (folder->fd >= 0)
        (void)close(folder->fd); /* opened for reading */
    folder->fd = -1;
}

/* openat of "name" or "inner/name" that follows no links. On failure returns -1 and sets errno. */
static int open_below(int folder_fd, const char *name, int flags)
{
    const char *slash = strchr(name, '/');
    if (!slash)
        return openat(folder_fd, name, flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    char inner[NAME_MAX + 1];
    size_t n = (size_t)(slash - name);
    if (n >= sizeof inner || strchr(slash + 1, '/')) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(inner, name, n);
    inner[n] = '\0';
    int inner_fd = openat(folder_fd, inner, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (inner_fd < 0)
        return -1;
    int fd = openat(inner_fd, slash + 1, flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    int saved_errno = errno;
    (void)close(inner_fd);
    errno = saved_errno;
    return fd;
}

enum dpt_status dpt_io_open(const struct dpt_folder *folder, const char *name, int *ret_fd,
                            int64_t *ret_bytes, char *ret_path, struct dpt_err *err)
{
    DPT_TRY(dpt_fs_join(folder->path, name, ret_path, PATH_MAX, err));
    int fd = open_below(folder->fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno == ELOOP ? dpt_fail(err, DPT_ECORRUPT,
                                         "'%s' is a symbolic link, which is not followed", ret_path)
                              : dpt_fail_errno(err, errno, "open '%s'", ret_path);
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is no regular file", ret_path);
    }
    *ret_fd = fd;
    *ret_bytes = st.st_size;
    return DPT_OK;
}

enum dpt_status dpt_io_create(const struct dpt_folder *folder, const char *name, int *ret_fd,
                              char *ret_path, struct dpt_err *err)
{
    DPT_TRY(dpt_fs_join(folder->path, name, ret_path, PATH_MAX, err));
    int fd = -1;
    if (!is_faulty(DPT_FAULT_CREATE, ret_path))
        fd = open_below(folder->fd, name, O_WRONLY | O_CREAT | O_EXCL);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", ret_path);
    *ret_fd = fd;
    return DPT_OK;
}

/* Sets the size at once, so that writers may write in any order. If the file system cannot reserve
 * space, sets the size alone. */
static enum dpt_status allocate_file(int fd, int64_t bytes, const char *path, struct dpt_err *err)
{
    bool failed =
        is_faulty(DPT_FAULT_ALLOCATE, path) || (bytes > 0 && fallocate(fd, 0, 0, bytes) != 0);
    if (failed && (errno == EOPNOTSUPP || errno == ENOSYS))
        failed = ftruncate(fd, bytes) != 0;
    return failed ? dpt_fail_errno(err, errno, "make room for the %lld bytes of '%s'",
                                   (long long)bytes, path)
                  : DPT_OK;
}

enum dpt_status dpt_io_create_shared(const struct dpt_folder *folder, const char *name,
                                     int64_t bytes, int *ret_fd, char *ret_path,
                                     struct dpt_err *err)
{
    struct stat st;
    DPT_TRY(dpt_fs_join(folder->path, name, ret_path, PATH_MAX, err));
    if (is_faulty(DPT_FAULT_CREATE, ret_path))
        return dpt_fail_errno(err, errno, "create '%s'", ret_path);
    int fd = open_below(folder->fd, name, O_WRONLY | O_CREAT | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 && (errno == ELOOP || errno == EISDIR || errno == ENXIO))
        return dpt_fail(err, DPT_EEXIST,
                        "create '%s': the name belongs to a link or to no regular file", ret_path);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", ret_path);
    enum dpt_status status = DPT_OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1 || st.st_size > bytes)
        status =
            dpt_fail(err, DPT_EEXIST, "create '%s': the name belongs to another file", ret_path);
    if (status == DPT_OK)
        status = allocate_file(fd, bytes, ret_path, err);
    if (status != DPT_OK) {
        (void)close(fd); /* nothing was written */
        return status;
    }
    *ret_fd = fd;
    return DPT_OK;
}

enum dpt_status dpt_io_write(int fd, const void *data, size_t bytes, int64_t offset,
                             const char *path, struct dpt_err *err)
{
    size_t done = 0;
    const int flags = fcntl(fd, F_GETFL);
    bool failed = is_faulty(DPT_FAULT_WRITE, path);
    if (!failed && flags >= 0 && (flags & O_DIRECT) != 0) {
        /* Tries one direct write. The remaining bytes go through the page cache: those after a
         * short write, or all bytes if the device needs another alignment. */
        const ssize_t n = pwrite(fd, data, bytes, offset);
        failed = n < 0 && errno != EINVAL && errno != EINTR;
        done = n > 0 ? (size_t)n : 0;
    }
    if (failed)
        return dpt_fail_errno(err, errno, "write '%s' at byte %lld", path, (long long)offset);
    if (done < bytes)
        dpt_io_direct(fd, false);
    return dpt_fs_pwrite_all(fd, (const char *)data + done, bytes - done, offset + (int64_t)done,
                             path, err);
}

void dpt_io_direct(int fd, bool on)
{
    const int flags = fcntl(fd, F_GETFL);
    /* Ignores a failure: buffered writes are slower, but as durable after fsync. */
    if (flags >= 0)
        (void)fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

enum dpt_status dpt_io_sync(int fd, const char *path, struct dpt_err *err)
{
    if (is_faulty(DPT_FAULT_FSYNC, path) || fsync(fd) != 0)
        return dpt_fail_errno(err, errno, "fsync '%s'", path);
    return DPT_OK;
}

enum dpt_status dpt_io_close(int *fd, const char *path, struct dpt_err *err)
{
    bool failed = is_faulty(DPT_FAULT_CLOSE, path);
    failed = close(*fd) != 0 || failed;
    *fd = -1;
    if (failed)
        return dpt_fail_errno(err, errno, "close '%s'", path);
    return DPT_OK;
}

enum dpt_status dpt_io_read_small(const struct dpt_folder *folder, const char *name,
                                  size_t bytes_max, char **ret_text, size_t *ret_bytes,
                                  struct dpt_err *err)
{
    char path[PATH_MAX];
    int fd = -1;
    int64_t bytes = 0;
    DPT_TRY(dpt_io_open(folder, name, &fd, &bytes, path, err));
    enum dpt_status status = DPT_OK;
    char *text = NULL;
    if ((uint64_t)bytes > bytes_max)
        status = dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes, more than the limit of %zu",
                          path, (long long)bytes, bytes_max);
    else if (!(text = malloc((size_t)bytes + 1)))
        status = dpt_fail_nomem(err, "read '%s'", path);
    if (status == DPT_OK)
        status = dpt_fs_pread_all(fd, text, (size_t)bytes, 0, path, err);
    (void)close(fd); /* opened for reading */
    if (status != DPT_OK) {
        free(text);
        return status;
    }
    text[bytes] = '\0';
    *ret_text = text;
    *ret_bytes = (size_t)bytes;
    return DPT_OK;
}

enum dpt_status dpt_io_write_small(const struct dpt_folder *folder, const char *name,
                                   const void *data, size_t bytes, struct dpt_err *err)
{
    char temporary[NAME_MAX + 1], path[PATH_MAX];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp", name);
    DPT_ASSERT(n > 0 && (size_t)n < sizeof temporary); /* names.h: all names are short */
    int fd = -1;
    DPT_TRY(dpt_io_create(folder, temporary, &fd, path, err));
    enum dpt_status status = dpt_io_write(fd, data, bytes, 0, path, err);
    if (status == DPT_OK)
        status = dpt_io_sync(fd, path, err);
    if (status != DPT_OK) {
        (void)close(fd); /* the first error is the one to report */
        return status;
    }
    DPT_TRY(dpt_io_close(&fd, path, err));
    return dpt_io_rename(folder, temporary, name, err);
}

enum dpt_status dpt_io_rename(const struct dpt_folder *folder, const char *from, const char *to,
                              struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(folder->path, to, path, sizeof path, err));
    if (is_faulty(DPT_FAULT_RENAME, path) || renameat(folder->fd, from, folder->fd, to) != 0)
        return dpt_fail_errno(err, errno, "rename '%s' to '%s'", from, path);
    return DPT_OK;
}

enum dpt_status dpt_io_exchange(const struct dpt_folder *folder, const char *a, const char *b,
                                struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(folder->path, b, path, sizeof path, err));
    if (!is_faulty(DPT_FAULT_EXCHANGE, path) &&
        renameat2(folder->fd, a, folder->fd, b, RENAME_EXCHANGE) == 0)
        return DPT_OK;
    if (errno == EINVAL || errno == ENOSYS || errno == EXDEV)
        return dpt_fail(err, DPT_EUNSUPPORTED, "the file system of '%s' cannot swap names",
                        folder->path);
    return dpt_fail_errno(err, errno, "swap '%s' with '%s'", a, path);
}

enum dpt_status dpt_io_remove_tree(const struct dpt_folder *folder, const char *name,
                                   struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(folder->path, name, path, sizeof path, err));
    if (is_faulty(DPT_FAULT_REMOVE_TREE, path))
        return dpt_fail_errno(err, errno, "remove '%s'", path);
    return dpt_fs_remove_tree(path, err);
}
