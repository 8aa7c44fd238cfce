/* DIR/journal.sqlite-newest: number and checksum of the newest record that is committed. It is
 * written after the commit and before a message tells of it, without an fsync. So it never knows
 * more than the journal, and after kill -9 it knows all that was sent: if records of the journal
 * are lost, a start notices, whichever they are. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 20 + 1 + DPT_HASH_HEX_BYTES }; /* "NUMBER HEX\n" */

static enum dpt_status join_path(const char *path, char ret[PATH_MAX], struct dpt_err *err)
{
    return snprintf(ret, PATH_MAX, "%s-newest", path) < PATH_MAX
               ? DPT_OK
               : dpt_fail(err, DPT_ECONFIG, "the path of the journal '%s' is too long", path);
}

enum dpt_status store_newest_read(const char *path, struct newest *ret, struct dpt_err *err)
{
    char name[PATH_MAX], line[LINE_BYTES + 2] = "", *end = line;
    struct newest newest = {0};
    DPT_TRY(join_path(path, name, err));
    const int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return dpt_fail_errno(err, errno, "open '%s'", name);
    const ssize_t bytes = fd >= 0 ? read(fd, line, LINE_BYTES + 1) : 0;
    if (fd >= 0)
        (void)close(fd);
    if (bytes < 0)
        return dpt_fail_errno(err, errno, "read '%s'", name);
    if (line[0] != '\0') /* else the power failed before it was first on the disk */
        newest.seq = strtoll(line, &end, 10);
    if (line[0] != '\0' &&
        (bytes != LINE_BYTES || strspn(line, "0123456789") != 20 || end != line + 20 ||
         *end != ' ' || line[LINE_BYTES - 1] != '\n' || newest.seq < 0))
        return dpt_fail(err, DPT_ECORRUPT,
                        "the file '%s' is damaged: all was left as it is; remove this file, then "
                        "start the server again: the journal beside it has checksums of its own",
                        name);
    if (newest.seq > 0)
        memcpy(newest.hex, end + 1, DPT_HASH_HEX_BYTES - 1);
    *ret = newest;
    return DPT_OK;
}

enum dpt_status store_newest_open(const char *path, int *ret_fd, struct dpt_err *err)
{
    char name[PATH_MAX];
    DPT_TRY(join_path(path, name, err));
    const int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", name);
    *ret_fd = fd;
    return DPT_OK;
}

void store_newest_write(int fd, const char *path, int64_t seq, struct dpt_hash128 sum)
{
    char line[LINE_BYTES + 1], hex[DPT_HASH_HEX_BYTES];
    struct dpt_err err;
    dpt_hash128_hex(sum, hex);
    (void)snprintf(line, sizeof line, "%020" PRId64 " %s\n", seq, hex);
    /* If it fails, the file knows less, which is no lie: the commit itself is durable. */
    if (dpt_fs_pwrite_all(fd, line, LINE_BYTES, 0, path, &err) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "%s", err.text);
}
