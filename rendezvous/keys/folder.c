/* The key folder: who may read it, and its files. */
#include "rendezvous/keys/folder.h"

#include "base/clock.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char secret_form[] = "dpt secret key 1\n";
enum { OTHERS = S_IRWXG | S_IRWXO, LINE_BYTES_MAX = 1024, LOAD_TRIES = 3, LOCK_AGAIN_MS = 2 };

/* ---- who may read it ---- */

static enum dpt_status check_owner(const struct stat *st, const char *path, struct dpt_err *err)
{
    const bool folder = S_ISDIR(st->st_mode);
    if (st->st_uid != geteuid())
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' belongs to user %ld, not to this user (%ld), so its keys are not "
                        "used: name another folder with --key-dir or $DPT_KEY_DIR",
                        path, (long)st->st_uid, (long)geteuid());
    if ((st->st_mode & OTHERS) != 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has mode %04o, so other users have access to its keys: run chmod %s "
                        "'%s', and renew the keys if others may have read them",
                        path, (unsigned)(st->st_mode & 07777), folder ? "700" : "600", path);
    return DPT_OK;
}

/* A link, a file of another user, a folder of that name. */
static enum dpt_status fail_open(const char *path, const char *why, struct dpt_err *err)
{
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' cannot be read: %s. Make it a regular file of this user (%ld) with mode "
                    "0600, or name another folder with --key-dir or $DPT_KEY_DIR",
                    path, why, (long)geteuid());
}

/* *ret_fd is -1 if the file does not exist. */
static enum dpt_status open_own_file(const char *path, int *ret_fd, struct stat *ret_st,
                                     struct dpt_err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        *ret_fd = -1;
        return DPT_OK;
    }
    if (fd < 0)
        return fail_open(path, errno == ELOOP ? "it is a symbolic link" : strerror(errno), err);
    enum dpt_status status = DPT_OK;
    if (fstat(fd, ret_st) != 0 || !S_ISREG(ret_st->st_mode))
        status = fail_open(path, "it is no regular file", err);
    else
        status = check_owner(ret_st, path, err);
    if (status == DPT_OK)
        *ret_fd = fd;
    else
        (void)close(fd);
    return status;
}

enum dpt_status dpt_key_folder_open(const char *given, struct dpt_key_folder *ret,
                                    struct dpt_err *err)
{
    const char *environment = getenv("DPT_KEY_DIR"), *home = getenv("HOME");
    struct dpt_key_folder folder;
    char parent[PATH_MAX];
    struct stat st;
    int n;
    if (given == NULL && environment != NULL && environment[0] != '\0')
        given = environment;
    folder.is_default = given == NULL;
    if (given == NULL && (home == NULL || home[0] == '\0'))
        return dpt_fail(err, DPT_ECONFIG,
                        "there is no place for keys, because HOME is not set: name a folder with "
                        "--key-dir or $DPT_KEY_DIR");
    n = given != NULL ? snprintf(folder.path, sizeof folder.path, "%s", given)
                      : snprintf(folder.path, sizeof folder.path, "%s/.dpt", home);
    if (n < 0 || (size_t)n >= sizeof folder.path)
        return dpt_fail(err, DPT_ECONFIG, "the path of the key folder is too long");
    while (n > 1 && folder.path[n - 1] == '/')
        folder.path[--n] = '\0';
    DPT_TRY(dpt_fs_folder(folder.path, parent, err));
    if (dpt_fs_mkdirs(parent, err) != DPT_OK)
        return dpt_wrap(err, DPT_ECONFIG, "key folder (--key-dir, $DPT_KEY_DIR)");
    if (mkdir(folder.path, S_IRWXU) != 0 && errno != EEXIST)
        return dpt_fail(err, DPT_ECONFIG,
                        "create the key folder '%s': %s; name another with --key-dir or "
                        "$DPT_KEY_DIR",
                        folder.path, strerror(errno));
    if (stat(folder.path, &st) != 0 || !S_ISDIR(st.st_mode))
        return dpt_fail(err, DPT_ECONFIG, "the key folder '%s' is no folder", folder.path);
    DPT_TRY(check_owner(&st, folder.path, err));
    *ret = folder;
    return DPT_OK;
}

/* ---- files ---- */

static enum dpt_status path_of(const struct dpt_key_folder *folder, const char *name,
                               char ret[PATH_MAX], struct dpt_err *err)
{
    return dpt_fs_join(folder->path, name, ret, PATH_MAX, err) == DPT_OK ? DPT_OK : DPT_ECONFIG;
}

static int64_t ns_of(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static struct dpt_key_file_state state_of(const struct stat *st)
{
    return (struct dpt_key_file_state){.modified_ns = ns_of(&st->st_mtim),
                                       .changed_ns = ns_of(&st->st_ctim),
                                       .bytes = (int64_t)st->st_size,
                                       .inode = (uint64_t)st->st_ino};
}

struct dpt_key_file_state dpt_key_folder_state(const struct dpt_key_folder *folder,
                                               const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (path_of(folder, name, path, NULL) != DPT_OK || lstat(path, &st) != 0)
        return (struct dpt_key_file_state){0};
    return state_of(&st);
}

bool dpt_key_folder_is_same(struct dpt_key_file_state a, struct dpt_key_file_state b)
{
    return a.modified_ns == b.modified_ns && a.changed_ns == b.changed_ns && a.bytes == b.bytes &&
           a.inode == b.inode;
}

enum dpt_status dpt_key_folder_read(const struct dpt_key_folder *folder, const char *name,
                                    char **ret_text, struct dpt_key_file_state *ret_state,
                                    struct dpt_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    int fd = -1;
    DPT_TRY(path_of(folder, name, path, err));
    DPT_TRY(open_own_file(path, &fd, &st, err));
    struct dpt_key_file_state state = {0};
    size_t bytes = 0;
    enum dpt_status status = DPT_OK;
    if (fd >= 0) {
        state = state_of(&st);
        bytes = (size_t)st.st_size;
    }
    if (bytes > DPT_KEY_FILE_BYTES_MAX)
        status = dpt_fail(err, DPT_ECONFIG,
                          "'%s' has %zu bytes, at most %d are read: delete lines "
                          "that are not needed",
                          path, bytes, DPT_KEY_FILE_BYTES_MAX);
    char *text = status == DPT_OK ? calloc(1, bytes + 1) : NULL;
    if (status == DPT_OK && text == NULL)
        status = dpt_fail_nomem(err, "read '%s'", path);
    if (status == DPT_OK && fd >= 0)
        status = dpt_fs_pread_all(fd, text, bytes, 0, path, err);
    if (status == DPT_OK && strlen(text) != bytes) /* what follows would not be read */
        status = dpt_fail(err, DPT_ECONFIG, "'%s' has a zero byte at %zu: correct the file", path,
                          strlen(text));
    if (fd >= 0)
        (void)close(fd); /* opened for reading */
    if (status != DPT_OK) {
        free(text);
        return status;
    }
    *ret_text = text;
    if (ret_state != NULL)
        *ret_state = state;
    return DPT_OK;
}

/* Writes the text into a new file of the folder with mode 0600. The caller renames the file to
 * `path`, which messages name. */
static enum dpt_status write_temporary(const struct dpt_key_folder *folder, const char *path,
                                       const char *text, char ret_temporary[PATH_MAX],
                                       struct dpt_err *err)
{
    const int n =
        snprintf(ret_temporary, PATH_MAX, "%s/.new-%ld-XXXXXX", folder->path, (long)getpid());
    if (n < 0 || n >= PATH_MAX)
        return dpt_fail(err, DPT_ECONFIG, "the path of '%s' is too long", path);
    const int fd = mkostemp(ret_temporary, O_CLOEXEC); /* mode 0600 */
    if (fd < 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "create a file in the key folder '%s': %s; let this user (%ld) write "
                        "there, or name another folder with --key-dir or $DPT_KEY_DIR",
                        folder->path, strerror(errno), (long)geteuid());
    const enum dpt_status status = dpt_fs_write_and_close(fd, text, strlen(text), path, err);
    if (status != DPT_OK)
        (void)unlink(ret_temporary); /* the first error is reported */
    return status;
}

/* Creates the file with the text and mode 0600, under its final name at once. *ret_created is
 * false if another process has created it before. */
static enum dpt_status create_file(const struct dpt_key_folder *folder, const char *path,
                                   const char *text, bool *ret_created, struct dpt_err *err)
{
    char temporary[PATH_MAX];
    enum dpt_status status = DPT_OK;
    DPT_TRY(write_temporary(folder, path, text, temporary, err));
    *ret_created = link(temporary, path) == 0;
    if (!*ret_created && errno != EEXIST)
        status = dpt_fail(err, DPT_ECONFIG, "create '%s': %s", path, strerror(errno));
    (void)unlink(temporary); /* a file that stays does no harm */
    return status == DPT_OK ? dpt_fs_sync_dir(folder->path, err) : status;
}

enum dpt_status dpt_key_folder_find_secret(const struct dpt_key_folder *folder, const char *name,
                                           struct dpt_key *ret, bool *ret_found,
                                           struct dpt_err *err)
{
    struct dpt_key_file_state state;
    char *text = NULL;
    DPT_TRY(dpt_key_folder_read(folder, name, &text, &state, err));
    const bool found = state.inode != 0;
    const bool parsed = strncmp(text, secret_form, sizeof secret_form - 1) == 0 &&
                        dpt_key_parse(text + sizeof secret_form - 1, ret);
    free(text);
    if (parsed || !found) {
        *ret_found = found;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s/%s' holds no secret key of dpt: restore it from a copy, or move it away, "
                    "and the next start draws a new one",
                    folder->path, name);
}

enum dpt_status dpt_key_folder_secret(const struct dpt_key_folder *folder, const char *name,
                                      const struct dpt_key *fresh, struct dpt_key *ret,
                                      struct dpt_err *err)
{
    char path[PATH_MAX], fresh_text[sizeof secret_form + DPT_KEY_HEX_BYTES + 1];
    char hex[DPT_KEY_HEX_BYTES];
    DPT_TRY(path_of(folder, name, path, err));
    dpt_key_hex(fresh, hex);
    (void)snprintf(fresh_text, sizeof fresh_text, "%s%s\n", secret_form, hex);
    for (int i = 0; i < LOAD_TRIES; i++) {
        bool created = false, found = false;
        DPT_TRY(dpt_key_folder_find_secret(folder, name, ret, &found, err));
        if (found)
            return DPT_OK;
        DPT_TRY(create_file(folder, path, fresh_text, &created, err));
    }
    return dpt_fail(err, DPT_ECONFIG, "'%s' is removed again and again", path);
}

static enum dpt_status sync_file(const char *path, struct dpt_err *err)
{
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return dpt_fail(err, DPT_ECONFIG, "open '%s': %s", path, strerror(errno));
    const int failed = fsync(fd) != 0 ? errno : 0;
    (void)close(fd); /* everything is written */
    return failed == 0 ? DPT_OK : dpt_fail_errno(err, failed, "fsync '%s'", path);
}

/* Appends the line to `path`, which is open as `fd` with the state *before. *ret_after: the state
 * after the line; all zero if anything else has been written, too. */
static enum dpt_status append_line(int fd, const char *path, const char *line,
                                   const struct stat *before, struct dpt_key_file_state *ret_after,
                                   struct dpt_err *err)
{
    char last = '\n', whole[LINE_BYTES_MAX];
    struct stat after;
    if (before->st_size > 0)
        DPT_TRY(dpt_fs_pread_all(fd, &last, 1, before->st_size - 1, path, err));
    const int n = snprintf(whole, sizeof whole, "%s%s\n", last != '\n' ? "\n" : "", line);
    if (n < 0 || (size_t)n >= sizeof whole)
        return dpt_fail(err, DPT_EINVAL, "a line of %d bytes is too long for '%s'", n, path);
    if (before->st_size + n > DPT_KEY_FILE_BYTES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW,
                        "'%s' has %lld bytes, and with another line more than the %d that are "
                        "read: delete lines that are not needed, then try again",
                        path, (long long)before->st_size, DPT_KEY_FILE_BYTES_MAX);
    DPT_TRY(dpt_fs_append(path, whole, (size_t)n, err));
    /* Before the sync, so that a change during the sync is one after this state. */
    const bool is_alone = fstat(fd, &after) == 0 && after.st_size == before->st_size + n;
    *ret_after = is_alone ? state_of(&after) : (struct dpt_key_file_state){0};
    return sync_file(path, err); /* a lost 'deny' would let a machine in again */
}

enum dpt_status dpt_key_folder_append(const struct dpt_key_folder *folder, const char *name,
                                      const char *line, struct dpt_key_file_state *state,
                                      struct dpt_err *err)
{
    char path[PATH_MAX];
    struct dpt_key_file_state after;
    struct stat before;
    bool created = false;
    int fd = -1;
    DPT_TRY(path_of(folder, name, path, err));
    if (!dpt_fs_exists(path))
        DPT_TRY(create_file(folder, path, "", &created, err));
    DPT_TRY(open_own_file(path, &fd, &before, err));
    if (fd < 0)
        return dpt_fail(err, DPT_ECONFIG, "'%s' was removed before a line was appended", path);
    const enum dpt_status status = append_line(fd, path, line, &before, &after, err);
    (void)close(fd); /* opened for reading */
    if (status == DPT_OK && state != NULL)
        *state = dpt_key_folder_is_same(*state, state_of(&before)) ? after
                                                                   : (struct dpt_key_file_state){0};
    return status;
}

enum dpt_status dpt_key_folder_replace(const struct dpt_key_folder *folder, const char *name,
                                       const char *text, struct dpt_err *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    DPT_TRY(path_of(folder, name, path, err));
    DPT_TRY(write_temporary(folder, path, text, temporary, err));
    if (rename(temporary, path) == 0)
        return dpt_fs_sync_dir(folder->path, err); /* else a revoked token might come back */
    const enum dpt_status status =
        dpt_fail(err, DPT_ECONFIG, "create '%s': %s", path, strerror(errno));
    (void)unlink(temporary); /* the first error is reported */
    return status;
}

enum dpt_status dpt_key_folder_rename(const struct dpt_key_folder *folder, const char *from,
                                      const char *to, int64_t at_s, struct dpt_err *err)
{
    char from_path[PATH_MAX], to_path[PATH_MAX];
    const struct timespec times[] = {{.tv_sec = at_s}, {.tv_sec = at_s}};
    DPT_TRY(path_of(folder, from, from_path, err));
    DPT_TRY(path_of(folder, to, to_path, err));
    if (at_s > 0 && utimensat(AT_FDCWD, from_path, times, 0) != 0)
        return dpt_fail(err, DPT_ECONFIG, "set the time of '%s': %s", from_path, strerror(errno));
    if (rename(from_path, to_path) != 0)
        return dpt_fail(err, DPT_ECONFIG, "rename '%s': %s", from_path, strerror(errno));
    return dpt_fs_sync_dir(folder->path, err);
}

/* ---- one process at a time ---- */

enum dpt_status dpt_key_folder_lock(const struct dpt_key_folder *folder, int *ret_lock,
                                    struct dpt_err *err)
{
    char path[PATH_MAX];
    const int64_t until_ms = dpt_now_ms() + DPT_KEY_FOLDER_LOCK_MS;
    DPT_TRY(path_of(folder, "lock", path, err));
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return dpt_fail(err, DPT_ECONFIG, "open '%s': %s", path, strerror(errno));
    int failed = 0;
    while ((failed = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno) == EWOULDBLOCK &&
           dpt_now_ms() < until_ms)
        (void)poll(NULL, 0, LOCK_AGAIN_MS); /* holders write a file and go on */
    if (failed == 0 || failed == ENOLCK || failed == ENOTSUP || failed == ENOSYS) {
        *ret_lock = fd;
        return DPT_OK;
    }
    (void)close(fd); /* nothing was written */
    return dpt_fail(err, DPT_ECONFIG,
                    failed == EWOULDBLOCK
                        ? "'%s' is locked by another process of dpt%s: try again, or end that one"
                        : "lock '%s': %s",
                    path, failed == EWOULDBLOCK ? "" : strerror(failed));
}

void dpt_key_folder_unlock(int lock)
{
    (void)close(lock); /* which ends the lock; nothing was written */
}
