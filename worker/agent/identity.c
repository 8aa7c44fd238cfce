/* Node id, host key, folder ids, user. */
#include "worker/agent/identity.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

static const char dir_id_name[] = ".dpt-dir-id";
enum { DIR_ID_TRIES = 3 };

static enum dpt_status random_hex(size_t n_bytes, char *ret, struct dpt_err *err)
{
    uint8_t bytes[16];
    DPT_ASSERT(n_bytes <= sizeof bytes);
    if (getrandom(bytes, n_bytes, 0) != (ssize_t)n_bytes)
        return dpt_fail_errno(err, errno, "draw a random id");
    for (size_t i = 0; i < n_bytes; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return DPT_OK;
}

enum dpt_status dpt_node_id_random(char *ret, struct dpt_err *err)
{
    return random_hex(6, ret, err);
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

uint64_t dpt_node_incarnation(void)
{
    return (uint64_t)(dpt_wall_seconds() * 1000.0);
}

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

/* 32 hex digits and a newline. */
static enum dpt_status read_dir_id(const char *path, char ret[DPT_DIR_ID_BYTES],
                                   struct dpt_err *err)
{
    char *text = NULL;
    size_t bytes;
    DPT_TRY(dpt_fs_read_file(path, 64, &text, &bytes, err));
    size_t digits = strspn(text, "0123456789abcdef");
    bool whole = digits == DPT_DIR_ID_BYTES - 1 && bytes == digits + 1 && text[digits] == '\n';
    if (whole) {
        memcpy(ret, text, digits);
        ret[digits] = '\0';
    }
    free(text);
    return whole
               ? DPT_OK
               : dpt_fail(err, DPT_ECORRUPT,
                          "'%s' does not hold a folder id: delete it, it will be made anew", path);
}

/* A file of our own with the id in it, then a link under the common name: the first link wins, and
 * nobody ever sees an empty file (as an O_EXCL file would be for a moment). */
static enum dpt_status make_dir_id(const char *dir, const char *path, struct dpt_err *err)
{
    char id[DPT_DIR_ID_BYTES + 1], own[DPT_CONFIG_PATH_BYTES + 64];
    DPT_TRY(random_hex(16, id, err));
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
    return status; /* somebody keeps deleting it */
}

void dpt_user_name(char *ret, size_t bytes)
{
    struct passwd entry, *found = NULL;
    char text[4096];
    if (getpwuid_r(getuid(), &entry, text, sizeof text, &found) == 0 && found != NULL)
        (void)snprintf(ret, bytes, "%s", found->pw_name);
    else
        (void)snprintf(ret, bytes, "uid %lu", (unsigned long)getuid());
}
