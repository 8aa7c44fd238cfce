/* The claim's files and its record (claim.h). */
#include "base/claim.h"

#include "base/fs.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CLAIM_PREFIX "OWNER."

enum { DIGITS = 8, NUMBER_MAX = 99999999, HOST_BYTES = 256, SPACE_BYTES = 128 };

/* ---- this process ---- */

/* Copies a text for a record as one line of printable ASCII. */
static void copy_plain(char *ret, size_t bytes, const char *text)
{
    size_t n = 0;
    for (; text[n] && n + 1 < bytes; n++)
        ret[n] = text[n] > ' ' && text[n] < 0x7f ? text[n] : '?';
    ret[n] = '\0';
}

/* Reads the boot and the PID namespace, in which a pid is unique; "?" if they are unknown. */
static void read_space(char ret[SPACE_BYTES])
{
    char boot[64], space[48] = "", text[SPACE_BYTES];
    const bool known = dpt_fs_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot) &&
                       readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0;
    (void)snprintf(text, sizeof text, "%s/%s", known ? boot : "?", space);
    copy_plain(ret, SPACE_BYTES, text);
}

/* Reads the clock ticks from boot to the process's start, as text; "" if the process has ended.
 * False: the start is unknown, because /proc hides it or no descriptor is free. */
static bool read_start(int pid, char ret[32])
{
    char path[64], text[1024];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    ret[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd);
    if (n <= 0)
        return kill(pid, 0) != 0 && errno == ESRCH;
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the program's name, before the ')', may have any byte */
    char state = 0;
    /* After the name: state, then 18 fields up to the start. */
    if (at &&
        sscanf(at + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
               "%*s %31s",
               &state, ret) == 2 &&
        state != 'Z' && state != 'X')
        return true;
    ret[0] = '\0';
    return state == 'Z' || state == 'X';
}

void dpt_claim_describe_self(struct dpt_claim_record *ret)
{
    char space[SPACE_BYTES], start[32], host[HOST_BYTES] = "?";
    const struct passwd *user = getpwuid(geteuid());
    struct tm utc;
    const time_t now = time(NULL);
    if (gethostname(host, sizeof host - 1) != 0)
        (void)snprintf(host, sizeof host, "?");
    copy_plain(ret->host, sizeof ret->host, host);
    if (user)
        copy_plain(ret->user, sizeof ret->user, user->pw_name);
    else
        (void)snprintf(ret->user, sizeof ret->user, "uid-%u", (unsigned)geteuid());
    ret->pid = getpid();
    read_space(space);
    (void)snprintf(ret->process, sizeof ret->process, "%s/%s", space,
                   read_start(ret->pid, start) ? start : "?");
    if (!gmtime_r(&now, &utc) ||
        strftime(ret->since, sizeof ret->since, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        (void)snprintf(ret->since, sizeof ret->since, "?");
}

bool dpt_claim_may_live(const struct dpt_claim_record *record)
{
    char space[SPACE_BYTES], start[32];
    read_space(space);
    const size_t n = strlen(space);
    if (strchr(space, '?') || strncmp(record->process, space, n) != 0 || record->process[n] != '/')
        return true;
    const char *theirs = record->process + n + 1;
    if (!read_start(record->pid, start))
        return true;
    return start[0] && (strcmp(theirs, "?") == 0 || strcmp(theirs, start) == 0);
}

/* ---- the record ---- */

/* Pads the text with blanks to its full size. `beat` makes the bytes of each write different. */
static enum dpt_status print_record(const struct dpt_claim_record *r,
                                    char ret[DPT_CLAIM_RECORD_BYTES], struct dpt_err *err)
{
    uint64_t beat;
    if (getrandom(&beat, sizeof beat, 0) != (ssize_t)sizeof beat)
        return dpt_fail_errno(err, errno, "random bytes for a claim");
    int n = snprintf(ret, DPT_CLAIM_RECORD_BYTES,
                     "run %s\ntoken %s\nserver %016" PRIx64
                     "\nhost %s\nuser %s\nprocess %s\npid %d\nsince %s\nlease_ms %" PRId64
                     "\nreleased %d\nbeat %016" PRIx64 "\n",
                     r->run, r->token, r->server, r->host, r->user, r->process, r->pid, r->since,
                     r->lease_ms, r->released, beat);
    DPT_ASSERT(n > 0 && n < DPT_CLAIM_RECORD_BYTES);
    memset(ret + n, ' ', (size_t)(DPT_CLAIM_RECORD_BYTES - n));
    ret[DPT_CLAIM_RECORD_BYTES - 1] = '\n';
    return DPT_OK;
}

/* `text` ends with a NUL after DPT_CLAIM_RECORD_BYTES. */
static bool parse_record(const char *text, struct dpt_claim_record *ret)
{
    struct dpt_claim_record r = {.pid = 0};
    int released = 0;
    uint64_t beat;
    const int n = sscanf(text,
                         "run %63s token %32s server %" SCNx64 " host %63s user %63s process %159s "
                         "pid %d since %31s lease_ms %" SCNd64 " released %d beat %" SCNx64,
                         r.run, r.token, &r.server, r.host, r.user, r.process, &r.pid, r.since,
                         &r.lease_ms, &released, &beat);
    if (n != 11 || r.lease_ms <= 0)
        return false;
    r.released = released != 0;
    *ret = r;
    return true;
}

/* ---- files ---- */

static enum dpt_status path_of(const char *dir, int64_t number, const char *suffix,
                               char ret[PATH_MAX], struct dpt_err *err)
{
    char name[96];
    (void)snprintf(name, sizeof name, CLAIM_PREFIX "%0*lld%s", DIGITS, (long long)number, suffix);
    return dpt_fs_join(dir, name, ret, PATH_MAX, err);
}

/* The number of OWNER.NNNNNNNN and of OWNER.NNNNNNNN.SUFFIX; 0 for other names. */
static int64_t claim_number_of(const char *name)
{
    const size_t prefix = sizeof CLAIM_PREFIX - 1;
    if (strncmp(name, CLAIM_PREFIX, prefix) != 0 || strspn(name + prefix, "0123456789") != DIGITS)
        return 0;
    return strtoll(name + prefix, NULL, 10);
}

static enum dpt_status find_highest(const char *dir, int64_t *ret, struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    int64_t most = 0;
    DPT_TRY(dpt_fs_list(dir, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        const int64_t number = claim_number_of(names[i]);
        if (number > most && strlen(names[i]) == sizeof CLAIM_PREFIX - 1 + DIGITS)
            most = number;
    }
    dpt_fs_list_free(&names, n);
    *ret = most;
    return DPT_OK;
}

static enum dpt_status read_record(int fd, const char *path, struct dpt_claim_seen *seen,
                                   struct dpt_err *err)
{
    char text[DPT_CLAIM_RECORD_BYTES + 1];
    const ssize_t n = pread(fd, text, DPT_CLAIM_RECORD_BYTES, 0);
    if (n < 0)
        return dpt_fail_errno(err, errno, "read '%s'", path);
    text[n] = '\0';
    seen->readable = n == DPT_CLAIM_RECORD_BYTES && parse_record(text, &seen->record);
    seen->digest = dpt_hash128(text, (size_t)n).lo;
    return DPT_OK;
}

/* Opens the file for each read: a shared file system then shows the writes of other hosts.
 * DPT_ENOENT: a later claim has removed the file. */
static enum dpt_status open_and_read(const char *path, struct dpt_claim_seen *seen,
                                     struct dpt_err *err)
{
    struct dpt_err why;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const enum dpt_status status =
        fd < 0 ? dpt_fail_errno(&why, errno, "open '%s'", path) : read_record(fd, path, seen, &why);
    if (fd >= 0)
        (void)close(fd); /* opened for reading */
    if (status != DPT_OK && why.saved_errno == ESTALE)
        why.status = DPT_ENOENT;
    return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
}

enum dpt_status dpt_claim_look(const char *dir, struct dpt_claim_seen *ret, struct dpt_err *err)
{
    enum { TRIES_MAX = 16 };
    char path[PATH_MAX];
    for (int i = 0; i < TRIES_MAX; i++) {
        struct dpt_claim_seen seen = {.number = 0};
        struct dpt_err why;
        DPT_TRY(find_highest(dir, &seen.number, err));
        if (seen.number > 0) {
            DPT_TRY(path_of(dir, seen.number, "", path, err));
            const enum dpt_status status = open_and_read(path, &seen, &why);
            if (status == DPT_ENOENT) /* another process took the folder over in between */
                continue;
            if (status != DPT_OK)
                return dpt_pass(err, &why);
            DPT_TRY(path_of(dir, seen.number, ".shared", path, err));
            seen.shared = dpt_fs_exists(path);
        }
        *ret = seen;
        return DPT_OK;
    }
    return dpt_fail(err, DPT_EIO, "the claim of '%s' was taken over %d times while it was read",
                    dir, TRIES_MAX);
}

static bool has_no_links(int error)
{
    return error == EPERM || error == ENOSYS || error == EOPNOTSUPP || error == EMLINK;
}

/* Gives the file `from` the name `to`, which must be free. If several processes try it, exactly one
 * succeeds. */
static enum dpt_status link_or_rename(const char *from, const char *to, struct dpt_err *err)
{
    int rc = link(from, to);
    if (rc != 0 && has_no_links(errno)) {
        rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
        if (rc != 0 && errno == EINVAL)
            return dpt_fail(
                err, DPT_EUNSUPPORTED,
                "'%s': this file system has neither hard links nor RENAME_NOREPLACE, "
                "so no run can own a folder there; name a folder on another file system",
                to);
    }
    if (rc != 0)
        return dpt_fail_errno(err, errno, "create '%s'", to);
    return DPT_OK;
}

/* Writes a new file with the whole record and makes it durable. */
static enum dpt_status write_new(const char *path, const char text[DPT_CLAIM_RECORD_BYTES],
                                 struct dpt_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", path);
    return dpt_fs_write_and_close(fd, text, DPT_CLAIM_RECORD_BYTES, path, err);
}

/* Removes the files of earlier claims. Errors are ignored: a file that stays is never read. */
static void remove_before(const char *dir, int64_t number)
{
    char **names = NULL, path[PATH_MAX];
    size_t n = 0;
    if (dpt_fs_list(dir, &names, &n, NULL) != DPT_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        const int64_t found = claim_number_of(names[i]);
        if (found > 0 && found < number &&
            dpt_fs_join(dir, names[i], path, sizeof path, NULL) == DPT_OK)
            (void)unlink(path);
    }
    dpt_fs_list_free(&names, n);
}

enum dpt_status dpt_claim_take(const char *dir, int64_t number,
                               const struct dpt_claim_record *record, struct dpt_err *err)
{
    char text[DPT_CLAIM_RECORD_BYTES], suffix[64], path[PATH_MAX], draft[PATH_MAX];
    if (number > NUMBER_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "'%s' has been claimed %d times", dir, NUMBER_MAX);
    /* Holders of one claim have one token and may create its file again at the same time. */
    uint32_t draw;
    if (getrandom(&draw, sizeof draw, 0) != (ssize_t)sizeof draw)
        return dpt_fail_errno(err, errno, "random bytes for a claim");
    (void)snprintf(suffix, sizeof suffix, ".%s.%08" PRIx32, record->token, draw);
    DPT_TRY(path_of(dir, number, "", path, err));
    DPT_TRY(path_of(dir, number, suffix, draft, err));
    DPT_TRY(print_record(record, text, err));
    enum dpt_status status = write_new(draft, text, err);
    if (status == DPT_OK)
        status = link_or_rename(draft, path, err);
    (void)unlink(draft);
    DPT_TRY(status);
    int64_t most = 0;
    DPT_TRY(find_highest(dir, &most, err));
    /* Others have taken and removed this number while this process was suspended. */
    if (most > number) {
        (void)unlink(path);
        return dpt_fail(err, DPT_EEXIST, "'%s' was claimed %lld times meanwhile", dir,
                        (long long)most);
    }
    remove_before(dir, number);
    return dpt_fs_sync_dir(dir, err);
}

enum dpt_status dpt_claim_share(const char *dir, int64_t number, struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(path_of(dir, number, ".shared", path, err));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", path);
    (void)close(fd); /* nothing was written */
    return DPT_OK;
}

static enum dpt_status fail_superseded(const char *dir, const struct dpt_claim_seen *seen,
                                       struct dpt_err *err)
{
    const struct dpt_claim_record *r = &seen->record;
    if (!seen->readable)
        return dpt_fail(err, DPT_EREFUSED, "'%s' was taken over by another run", dir);
    return dpt_fail(
        err, DPT_EREFUSED,
        "'%s' was taken over by a worker of run %s (host %s, user %s, pid %d, since %s)", dir,
        r->run, r->host, r->user, r->pid, r->since);
}

/* DPT_EREFUSED: the folder has a claim later than `number`. With number 0: the folder has any
 * claim, so the call succeeds only in a folder that was emptied. */
static enum dpt_status check_later(const char *dir, int64_t number, struct dpt_err *err)
{
    struct dpt_claim_seen seen;
    int64_t most = 0;
    DPT_TRY(find_highest(dir, &most, err));
    if (most <= number)
        return DPT_OK;
    DPT_TRY(dpt_claim_look(dir, &seen, err));
    return number == 0 && seen.number == 0 ? DPT_OK : fail_superseded(dir, &seen, err);
}

static bool is_anothers(const struct dpt_claim_seen *seen, const char *token)
{
    return seen->readable && strcmp(seen->record.token, token) != 0;
}

/* To be called if the folder was emptied. One of the holders creates the claim again, unless
 * another run saw the empty folder and was quicker. */
static enum dpt_status take_again(const char *dir, int64_t number,
                                  const struct dpt_claim_record *record, struct dpt_err *err)
{
    struct dpt_claim_seen seen;
    struct dpt_err why;
    const enum dpt_status status = dpt_claim_take(dir, number, record, &why);
    if (status != DPT_EEXIST)
        return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
    DPT_TRY(dpt_claim_look(dir, &seen, err));
    if (seen.number == 0) /* the folder was emptied once more: the next renewal tries again */
        return dpt_pass(err, &why);
    if (seen.number != number || is_anothers(&seen, record->token))
        return fail_superseded(dir, &seen, err);
    return DPT_OK;
}

/* Writes the claim's file, which is open as `fd`, and closes it. An unreadable record counts as a
 * record of this claim, because a holder that has ended left it half written. */
static enum dpt_status rewrite_record(int fd, const char *dir,
                                      const struct dpt_claim_record *record, const char *path,
                                      struct dpt_err *err)
{
    char text[DPT_CLAIM_RECORD_BYTES];
    struct dpt_claim_seen seen = {.number = 0};
    enum dpt_status status = print_record(record, text, err);
    if (status == DPT_OK)
        status = read_record(fd, path, &seen, err);
    if (status == DPT_OK && is_anothers(&seen, record->token))
        status = fail_superseded(dir, &seen, err);
    if (status == DPT_OK)
        status = dpt_fs_pwrite_all(fd, text, DPT_CLAIM_RECORD_BYTES, 0, path, err);
    if (close(fd) != 0 && status == DPT_OK)
        status = dpt_fail_errno(err, errno, "close '%s'", path);
    return status;
}

enum dpt_status dpt_claim_renew(const char *dir, int64_t number,
                                const struct dpt_claim_record *record, struct dpt_err *err)
{
    char path[PATH_MAX];
    struct dpt_err why;
    DPT_TRY(path_of(dir, number, "", path, err));
    /* The file is opened and closed each time, because a shared file system then shows the write to
     * other hosts. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ESTALE)) {
        DPT_TRY(check_later(dir, 0, err));
        return take_again(dir, number, record, err);
    }
    const enum dpt_status status = fd < 0 ? dpt_fail_errno(&why, errno, "open '%s'", path)
                                          : rewrite_record(fd, dir, record, path, &why);
    /* Checked after a failure, too: if the record does not change, another run may take the
     * folder. */
    const enum dpt_status later = check_later(dir, number, err);
    return status == DPT_OK || later == DPT_EREFUSED ? later : dpt_pass(err, &why);
}

enum dpt_status dpt_claim_check(const char *dir, int64_t number, const char *token,
                                struct dpt_err *err)
{
    char path[PATH_MAX];
    struct dpt_claim_seen seen = {.number = number};
    struct dpt_err why;
    DPT_TRY(path_of(dir, number, "", path, err));
    const enum dpt_status status = open_and_read(path, &seen, &why);
    if (status == DPT_ENOENT)
        return check_later(dir, 0, err);
    if (status != DPT_OK)
        return dpt_pass(err, &why);
    if (is_anothers(&seen, token))
        return fail_superseded(dir, &seen, err);
    return check_later(dir, number, err);
}
