/* Node id, secret and incarnation, host key, folder ids. */
#include "worker/agent/identity.h"

#include "base/fs.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char dir_id_name[] = ".dpt-dir-id", hex_digits[] = "0123456789abcdef";
enum { DIR_ID_TRIES = 3 };

enum dpt_status dpt_random_hex(size_t n_bytes, char *ret, struct dpt_err *err)
{
    uint8_t bytes[16];
    DPT_ASSERT(n_bytes <= sizeof bytes);
    if (getrandom(bytes, n_bytes, 0) != (ssize_t)n_bytes)
        return dpt_fail_errno(err, errno, "draw a random id");
    for (size_t i = 0; i < n_bytes; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return DPT_OK;
}

enum dpt_status dpt_node_id_check(const char *node_id, struct dpt_err *err)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t length = strlen(node_id);
    if (length == 0 || length >= DPT_CONFIG_NAME_BYTES || strspn(node_id, allowed) != length ||
        strchr("._-", node_id[0]) != NULL)
        return dpt_fail(
            err, DPT_ECONFIG,
            "--node-id '%s': use 1 … %d letters of a-z and A-Z, digits, '.', '_' or '-', beginning "
            "with a letter or digit",
            node_id, DPT_CONFIG_NAME_BYTES - 1);
    return DPT_OK;
}

/* ---- secret and incarnation ---- */

enum {
    IDENTITY_BYTES_MAX = 512,
    /* Incarnations reserved for one process. */
    INCARNATIONS_OF_A_PROCESS = 1 << 20
};

static const char identity_name[] = "identity";
/* Secret; first incarnation of the newest process; that process's id and host, for messages. */
static const char identity_form[] = "%s %020" PRIu64 " %ld on %s\n";

enum dpt_status dpt_identity_draw(int64_t wall_ms, struct dpt_identity *ret, struct dpt_err *err)
{
    struct dpt_identity identity = {.incarnation = wall_ms > 0 ? (uint64_t)wall_ms : 1, .fd = -1};
    if (getrandom(identity.secret, sizeof identity.secret, 0) != (ssize_t)sizeof identity.secret)
        return dpt_fail_errno(err, errno, "draw this node's secret");
    *ret = identity;
    return DPT_OK;
}

void dpt_identity_fini(struct dpt_identity *identity)
{
    if (identity->fd >= 0)
        close(identity->fd);
    identity->fd = -1;
}

/* Reads the file's line, without its newline. *ret_bytes: length of the file. */
static enum dpt_status read_identity_line(int fd, const char *path, char line[IDENTITY_BYTES_MAX],
                                          ssize_t *ret_bytes, struct dpt_err *err)
{
    memset(line, 0, IDENTITY_BYTES_MAX);
    const ssize_t bytes = pread(fd, line, IDENTITY_BYTES_MAX - 1, 0);
    if (bytes < 0)
        return dpt_fail_errno(err, errno, "read '%s'", path);
    line[strcspn(line, "\n")] = '\0';
    *ret_bytes = bytes;
    return DPT_OK;
}

/* The rest of the line after the incarnation: the process that has the file. */
static const char *owner_in_line(const char *line)
{
    const char *owner = strchr(line, ' ');
    owner = owner == NULL ? NULL : strchr(owner + 1, ' ');
    return owner == NULL || owner[1] == '\0' ? "unknown" : owner + 1;
}

/* Locks the file, so that at most one process of an id lives in a folder. On a file system without
 * locks only the server decides: the newer process replaces the older one. */
static enum dpt_status lock_identity(int fd, const char *path, struct dpt_err *err)
{
    char line[IDENTITY_BYTES_MAX];
    ssize_t bytes;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == ENOTSUP || errno == ENOSYS)
        return DPT_OK;
    if (errno != EWOULDBLOCK)
        return dpt_fail_errno(err, errno, "lock '%s'", path);
    DPT_TRY(read_identity_line(fd, path, line, &bytes, err));
    return dpt_fail(err, DPT_ECONFIG,
                    "--node-id: a process of this node id works here already (process %s; it holds "
                    "'%s'): end it, or give this one another --node-id",
                    owner_in_line(line), path);
}

/* Reads the secret and the incarnation from the line. False: the line is not complete. */
static bool parse_identity(const char *line, struct dpt_identity *ret)
{
    enum { HEX = 2 * sizeof ret->secret, DIGITS = 20 };
    if (strspn(line, hex_digits) != HEX || line[HEX] != ' ' ||
        strspn(line + HEX + 1, "0123456789") != DIGITS || line[HEX + 1 + DIGITS] != ' ')
        return false;
    for (size_t i = 0; i < sizeof ret->secret; i++)
        (void)sscanf(line + 2 * i, "%2hhx", &ret->secret[i]);
    errno = 0;
    ret->incarnation = strtoull(line + HEX + 1, NULL, 10);
    return errno == 0 && ret->incarnation > 0 && ret->incarnation <= UINT64_MAX / 2;
}

static enum dpt_status write_identity(const struct dpt_identity *identity, const char *path,
                                      struct dpt_err *err)
{
    char line[IDENTITY_BYTES_MAX], hex[2 * sizeof identity->secret + 1], host[256] = "";
    for (size_t i = 0; i < sizeof identity->secret; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", identity->secret[i]);
    (void)gethostname(host, sizeof host - 1);
    const int bytes = snprintf(line, sizeof line, identity_form, hex, identity->incarnation,
                               (long)getpid(), host);
    DPT_ASSERT(bytes > 0 && (size_t)bytes < sizeof line);
    DPT_TRY(dpt_fs_pwrite_all(identity->fd, line, (size_t)bytes, 0, path, err));
    if (ftruncate(identity->fd, bytes) != 0 || fsync(identity->fd) != 0)
        return dpt_fail_errno(err, errno, "write '%s'", path);
    return DPT_OK;
}

/* `identity` has the file open and holds drawn values for a new file. The line is read after the
 * lock is taken: another process of this id may write it before. */
static enum dpt_status take_identity(struct dpt_identity *identity, const char *path,
                                     struct dpt_err *err)
{
    char line[IDENTITY_BYTES_MAX];
    ssize_t bytes;
    struct dpt_identity former = {.fd = -1};
    DPT_TRY(lock_identity(identity->fd, path, err));
    DPT_TRY(read_identity_line(identity->fd, path, line, &bytes, err));
    if (bytes > 0) {
        if (!parse_identity(line, &former))
            return dpt_fail(
                err, DPT_ECORRUPT,
                "'%s' does not hold a node's secret: delete it; the next start makes a new one",
                path);
        memcpy(identity->secret, former.secret, sizeof identity->secret);
        if (identity->incarnation < former.incarnation + INCARNATIONS_OF_A_PROCESS)
            identity->incarnation = former.incarnation + INCARNATIONS_OF_A_PROCESS;
    }
    return write_identity(identity, path, err);
}

enum dpt_status dpt_identity_open(const char *log_dir, const char *node_id, int64_t wall_ms,
                                  struct dpt_identity *ret, struct dpt_err *err)
{
    char folder[DPT_CONFIG_NAME_BYTES + 8], dir[DPT_CONFIG_PATH_BYTES + DPT_CONFIG_NAME_BYTES + 8];
    char path[sizeof dir + sizeof identity_name];
    struct dpt_identity identity;
    (void)snprintf(folder, sizeof folder, "node-%s", node_id);
    DPT_TRY(dpt_fs_join(log_dir, folder, dir, sizeof dir, err));
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    DPT_TRY(dpt_fs_join(dir, identity_name, path, sizeof path, err));
    DPT_TRY(dpt_identity_draw(wall_ms, &identity, err));
    identity.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (identity.fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    enum dpt_status status = take_identity(&identity, path, err);
    if (status == DPT_OK)
        *ret = identity;
    else
        dpt_identity_fini(&identity);
    return status;
}

/* ---- host, folders ---- */

enum dpt_status dpt_host_key(const char *host_group, char ret[DPT_HOST_KEY_BYTES],
                             struct dpt_err *err)
{
    char boot_id[64] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL)
        return dpt_fail_errno(err, errno, "read /proc/sys/kernel/random/boot_id");
    bool read = fgets(boot_id, sizeof boot_id, file) != NULL;
    (void)fclose(file);
    boot_id[strcspn(boot_id, "\n")] = '\0';
    if (!read || boot_id[0] == '\0')
        return dpt_fail(err, DPT_EIO, "/proc/sys/kernel/random/boot_id is empty");
    struct stat net;
    if (stat("/proc/self/ns/net", &net) != 0)
        return dpt_fail_errno(err, errno, "network namespace of this process");
    char key[256];
    int bytes = snprintf(key, sizeof key, "%s %" PRIuMAX " %" PRIuMAX " %s", boot_id,
                         (uintmax_t)net.st_dev, (uintmax_t)net.st_ino, host_group);
    DPT_ASSERT(bytes > 0 && (size_t)bytes < sizeof key);
    dpt_hash128_hex(dpt_hash128(key, (size_t)bytes), ret);
    return DPT_OK;
}

/* Reads a file of 32 hex digits and a newline. */
static enum dpt_status read_dir_id(const char *path, char ret[DPT_DIR_ID_BYTES],
                                   struct dpt_err *err)
{
    char *text = NULL;
    size_t bytes;
    DPT_TRY(dpt_fs_read_file(path, 64, &text, &bytes, err));
    size_t digits = strspn(text, hex_digits);
    bool whole = digits == DPT_DIR_ID_BYTES - 1 && bytes == digits + 1 && text[digits] == '\n';
    if (whole) {
        memcpy(ret, text, digits);
        ret[digits] = '\0';
    }
    free(text);
    return whole ? DPT_OK
                 : dpt_fail(
                       err, DPT_ECORRUPT,
                       "'%s' does not hold a folder id: delete it; the next start makes a new one",
                       path);
}

/* Writes the id to a private file and links that file under the common name. So the first link
 * wins, and the common file is never empty. */
static enum dpt_status make_dir_id(const char *dir, const char *path, struct dpt_err *err)
{
    char id[DPT_DIR_ID_BYTES + 1], own[DPT_CONFIG_PATH_BYTES + 64];
    DPT_TRY(dpt_random_hex(16, id, err));
    int length = snprintf(own, sizeof own, "%s/%s.%s", dir, dir_id_name, id);
    DPT_ASSERT(length > 0 && (size_t)length < sizeof own);
    memcpy(id + DPT_DIR_ID_BYTES - 1, "\n", 2);
    int fd = open(own, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "create '%s'", own);
    enum dpt_status status = dpt_fs_pwrite_all(fd, id, strlen(id), 0, own, err);
    if (status == DPT_OK && fsync(fd) != 0)
        status = dpt_fail_errno(err, errno, "fsync '%s'", own);
    close(fd);
    if (status == DPT_OK && link(own, path) != 0 && errno != EEXIST)
        status = dpt_fail_errno(err, errno, "create '%s'", path);
    (void)unlink(own);
    return status;
}

enum dpt_status dpt_dir_id(const char *dir, char ret[DPT_DIR_ID_BYTES], struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32];
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    DPT_TRY(dpt_fs_join(dir, dir_id_name, path, sizeof path, err));
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < DIR_ID_TRIES; i++) {
        status = read_dir_id(path, ret, err);
        if (status != DPT_ENOENT)
            return status;
        DPT_TRY(make_dir_id(dir, path, err));
    }
    return status; /* another process keeps deleting the file */
}
