/* Files: whole transfers, atomic replacement, folders. */
#include "base/fs.h"

#include "base/array.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    TREE_DEPTH_MAX = 16,
    NAMES_MAX = 1000000,
    TEMPORARY_TRIES_MAX = 16,
    /* The most bytes of one read(2) or write(2). The limit of Linux is 2 GiB - 4 KiB. */
    TRANSFER_BYTES_MAX = 1 << 30,
    READ_BYTES_MIN = 4096 /* room for one read(2) of a file of unknown length */
};

static size_t transfer_bytes(size_t bytes)
{
    return bytes < TRANSFER_BYTES_MAX ? bytes : TRANSFER_BYTES_MAX;
}

enum dpt_status dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset, const char *path,
                                 struct dpt_err *err)
{
    char *to = buf;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, transfer_bytes(bytes), offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dpt_fail_errno(err, errno, "read '%s' at byte %lld", path, (long long)offset);
        if (n == 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s' ends at byte %lld where %zu more are expected",
                            path, (long long)offset, bytes);
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return DPT_OK;
}

enum dpt_status dpt_fs_pwrite_all(int fd, const void *buf, size_t bytes, int64_t offset,
                                  const char *path, struct dpt_err *err)
{
    const char *from = buf;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, transfer_bytes(bytes), offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dpt_fail_errno(err, errno, "write '%s' at byte %lld", path, (long long)offset);
        if (n == 0)
            return dpt_fail(err, DPT_EIO, "write '%s' at byte %lld: nothing was taken", path,
                            (long long)offset);
        from += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return DPT_OK;
}

/* Reads `fd` (a file or a pipe) to its end, but at most bytes_max bytes. */
static enum dpt_status read_to_end(int fd, const char *path, size_t bytes_max, char **ret_text,
                                   size_t *ret_bytes, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    size_t room = 0, used = 0;
    char *text = NULL;
    for (;;) {
        if (!dpt_array_reserve(&text, &room, used + READ_BYTES_MIN, 1)) {
            status = dpt_fail_nomem(err, "read '%s'", path);
            goto out;
        }
        ssize_t n = read(fd, text + used, transfer_bytes(room - used - 1));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = dpt_fail_errno(err, errno, "read '%s'", path);
            goto out;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used > bytes_max) {
            status = dpt_fail(err, DPT_EOVERFLOW, "'%s' is larger than the limit of %zu bytes",
                              path, bytes_max);
            goto out;
        }
    }
    text[used] = '\0';
    *ret_text = text;
    *ret_bytes = used;
    text = NULL;
out:
    free(text);
    return status;
}

bool dpt_fs_read_line(const char *path, char *ret, size_t ret_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(ret, (int)ret_bytes, file) != NULL;
    (void)fclose(file); /* opened for reading */
    if (!read)
        return false;
    const size_t length = strcspn(ret, "\n");
    const bool whole = ret[length] == '\n' || length + 1 < ret_bytes;
    ret[length] = '\0';
    return whole;
}

enum dpt_status dpt_fs_read_file(const char *path, size_t bytes_max, char **ret_text,
                                 size_t *ret_bytes, struct dpt_err *err)
{
    struct stat st;
    /* O_NONBLOCK: without it, open() of a named pipe that has no writer would wait. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    enum dpt_status status = fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
                                 ? read_to_end(fd, path, bytes_max, ret_text, ret_bytes, err)
                                 : dpt_fail(err, DPT_EIO, "'%s' is no regular file", path);
    (void)close(fd); /* nothing was written */
    return status;
}

enum dpt_status dpt_fs_read_stream(const char *path, size_t bytes_max, char **ret_text,
                                   size_t *ret_bytes, struct dpt_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    enum dpt_status status = read_to_end(fd, path, bytes_max, ret_text, ret_bytes, err);
    (void)close(fd); /* nothing was written */
    return status;
}

enum dpt_status dpt_fs_folder(const char *path, char ret_dir[PATH_MAX], struct dpt_err *err)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (n >= PATH_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "path of %zu bytes is too long", n);
    if (!slash) {
        (void)snprintf(ret_dir, PATH_MAX, ".");
    } else if (n == 0) {
        (void)snprintf(ret_dir, PATH_MAX, "/");
    } else {
        memcpy(ret_dir, path, n);
        ret_dir[n] = '\0';
    }
    return DPT_OK;
}

/* Opens a new file beside `path`, under a name that no other process uses. */
static int open_temporary(const char *path, char ret_name[PATH_MAX])
{
    static atomic_uint serial;
    for (int tries = 0; tries < TEMPORARY_TRIES_MAX; tries++) {
        struct timespec now;
        (void)clock_gettime(CLOCK_REALTIME, &now);
        int n = snprintf(ret_name, PATH_MAX, "%s.tmp-%ld-%u-%lx%lx", path, (long)getpid(),
                         atomic_fetch_add(&serial, 1), (unsigned long)now.tv_sec,
                         (unsigned long)now.tv_nsec);
        if (n < 0 || n >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(ret_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

enum dpt_status dpt_fs_write_and_close(int fd, const void *data, size_t bytes, const char *path,
                                       struct dpt_err *err)
{
    enum dpt_status status = dpt_fs_pwrite_all(fd, data, bytes, 0, path, err);
    if (status == DPT_OK && fsync(fd) != 0)
        status = dpt_fail_errno(err, errno, "fsync '%s'", path);
    if (close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, errno, "close '%s'", path);
    return status;
}

enum dpt_status dpt_fs_write_file_atomic(const char *path, const void *data, size_t bytes,
                                         struct dpt_err *err)
{
    char dir[PATH_MAX], temporary[PATH_MAX];
    DPT_TRY(dpt_fs_folder(path, dir, err));
    int fd = open_temporary(path, temporary);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create a temporary file for '%s'", path);

    enum dpt_status status = dpt_fs_write_and_close(fd, data, bytes, temporary, err);
    if (status == DPT_OK && rename(temporary, path) != 0)
        status = dpt_fail_errno(err, errno, "rename '%s' to '%s'", temporary, path);
    if (status != DPT_OK) {
        (void)unlink(temporary); /* an error here is not reported: the first one is */
        return status;
    }
    return dpt_fs_sync_dir(dir, err);
}

/* Removes the `n` bytes that were just appended, unless another writer has appended since. If that
 * fails, the bytes stay. The caller reports an error in any case. */
static void remove_appended(int fd, ssize_t n)
{
    struct stat st;
    const off_t end = lseek(fd, 0, SEEK_CUR);
    if (end < n || fstat(fd, &st) != 0 || st.st_size != end)
        return;
    int ignored = ftruncate(fd, end - n);
    (void)ignored;
}

enum dpt_status dpt_fs_append(const char *path, const void *data, size_t bytes, struct dpt_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s' to append", path);
    enum dpt_status status = DPT_OK;
    ssize_t n;
    do {
        n = write(fd, data, bytes);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        status = dpt_fail_errno(err, errno, "append to '%s'", path);
    } else if ((size_t)n != bytes) { /* a full disk or a file size limit */
        status = dpt_fail(err, DPT_ENOSPC, "append to '%s': only %zd of %zu bytes were written",
                          path, n, bytes);
        remove_appended(fd, n);
    }
    if (close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, errno, "close '%s'", path);
    return status;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

enum dpt_status dpt_fs_mkdirs(const char *path, struct dpt_err *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof part)
        return dpt_fail(err, DPT_EINVAL, "create folder '%s': the path is %s", path,
                        n == 0 ? "empty" : "too long");
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char saved = part[i];
        part[i] = '\0';
        if (mkdir(part, 0777) != 0) {
            int saved_errno = errno;
            /* mkdir of an existing folder may fail with EEXIST, EROFS or EACCES. */
            if (!is_folder(part))
                return dpt_fail_errno(err, saved_errno == EEXIST ? ENOTDIR : saved_errno,
                                      "create folder '%s'", part);
        }
        part[i] = saved;
    }
    return DPT_OK;
}

enum dpt_status dpt_fs_sync_dir(const char *path, struct dpt_err *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open folder '%s'", path);
    enum dpt_status status = DPT_OK;
    if (fsync(fd) != 0)
        status = dpt_fail_errno(err, errno, "fsync folder '%s'", path);
    (void)close(fd); /* opened for reading */
    return status;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Removes the entries of the folder that is open as `fd`, and closes `fd`. `path` is the tree's
 * root, for errors. ENOENT is not an error: another process has removed the entry or the folder. */
static enum dpt_status remove_inside(int fd, const char *path, int depth, struct dpt_err *err)
{
    if (depth >= TREE_DEPTH_MAX) {
        (void)close(fd);
        return dpt_fail(err, DPT_EOVERFLOW, "remove '%s': more than %d levels deep", path,
                        TREE_DEPTH_MAX);
    }
    DIR *dir = fdopendir(fd);
    if (!dir) {
        int saved_errno = errno;
        (void)close(fd);
        return dpt_fail_errno(err, saved_errno, "list a folder below '%s'", path);
    }
    enum dpt_status status = DPT_OK;
    while (status == DPT_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno != 0 && errno != ENOENT)
                status = dpt_fail_errno(err, errno, "list a folder below '%s'", path);
            break;
        }
        if (is_dots(entry->d_name))
            continue;
        struct stat st;
        if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
            if (errno != ENOENT)
                status = dpt_fail_errno(err, errno, "look at '%s' below '%s'", entry->d_name, path);
            continue;
        }
        if (S_ISDIR(st.st_mode)) {
            int inner = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (inner >= 0)
                status = remove_inside(inner, path, depth + 1, err);
            else if (errno != ENOENT)
                status = dpt_fail_errno(err, errno, "open '%s' below '%s'", entry->d_name, path);
        }
        int flags = S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0;
        if (status == DPT_OK && unlinkat(fd, entry->d_name, flags) != 0 && errno != ENOENT)
            status = dpt_fail_errno(err, errno, "remove '%s' below '%s'", entry->d_name, path);
    }
    (void)closedir(dir);
    return status;
}

enum dpt_status dpt_fs_remove_tree(const char *path, struct dpt_err *err)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? DPT_OK : dpt_fail_errno(err, errno, "look at '%s'", path);
    if (!S_ISDIR(st.st_mode)) {
        if (unlink(path) != 0 && errno != ENOENT)
            return dpt_fail_errno(err, errno, "remove '%s'", path);
        return DPT_OK;
    }
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? DPT_OK : dpt_fail_errno(err, errno, "open folder '%s'", path);
    DPT_TRY(remove_inside(fd, path, 0, err));
    if (rmdir(path) != 0 && errno != ENOENT)
        return dpt_fail_errno(err, errno, "remove '%s'", path);
    return DPT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Grows the array and adds a copy of `name`. */
static enum dpt_status add_name(char ***names, size_t *n, size_t *room, const char *name,
                                const char *path, struct dpt_err *err)
{
    if (*n == NAMES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "folder '%s' holds more than %d names", path,
                        NAMES_MAX);
    char *copy = dpt_array_reserve(names, room, *n + 1, sizeof **names) ? strdup(name) : NULL;
    if (!copy)
        return dpt_fail_nomem(err, "list folder '%s'", path);
    (*names)[(*n)++] = copy;
    return DPT_OK;
}

enum dpt_status dpt_fs_list(const char *path, char ***ret_names, size_t *ret_n, struct dpt_err *err)
{
    DIR *dir = opendir(path);
    if (!dir)
        return dpt_fail_errno(err, errno, "open folder '%s'", path);
    char **names = NULL;
    size_t n = 0, room = 0;
    enum dpt_status status = DPT_OK;
    while (status == DPT_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno != 0)
                status = dpt_fail_errno(err, errno, "list folder '%s'", path);
            break;
        }
        if (!is_dots(entry->d_name))
            status = add_name(&names, &n, &room, entry->d_name, path, err);
    }
    (void)closedir(dir);
    if (status != DPT_OK) {
        dpt_fs_list_free(&names, n);
        return status;
    }
    if (n > 0)
        qsort(names, n, sizeof *names, compare_names);
    *ret_names = names;
    *ret_n = n;
    return DPT_OK;
}

void dpt_fs_list_free(char ***names, size_t n)
{
    if (!*names)
        return;
    for (size_t i = 0; i < n; i++)
        free((*names)[i]);
    free(*names);
    *names = NULL;
}

bool dpt_fs_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool dpt_fs_has_ending(const char *path, const char *endings)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    const size_t n = dot && dot != name ? strlen(dot + 1) : 0;
    for (const char *at = endings; *at && n > 0; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == n && strncasecmp(at, dot + 1, n) == 0)
            return true;
    return false;
}

enum dpt_status dpt_fs_join(const char *dir, const char *name, char *ret_path, size_t path_bytes,
                            struct dpt_err *err)
{
    size_t dir_n = strlen(dir), name_n = strlen(name);
    size_t slash = dir_n > 0 && dir[dir_n - 1] != '/' ? 1 : 0;
    if (dir_n + slash + name_n >= path_bytes)
        return dpt_fail(err, DPT_EOVERFLOW, "path '%s/%s' is longer than %zu bytes", dir, name,
                        path_bytes - 1);
    memcpy(ret_path, dir, dir_n);
    if (slash)
        ret_path[dir_n] = '/';
    memcpy(ret_path + dir_n + slash, name, name_n);
    ret_path[dir_n + slash + name_n] = '\0';
    return DPT_OK;
}
