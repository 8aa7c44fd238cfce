/* The files of a journal before SQLite opens them. SQLite takes a write-ahead log up to its last
 * whole transaction, drops what follows without a word, and overwrites it; beside an empty database
 * it deletes the log. The form of the log: https://www.sqlite.org/fileformat2.html#walformat,
 * sections 4.1 and 4.2. Its numbers are big-endian. */
#include "rendezvous/store/internal.h"

#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LOG_HEADER_BYTES = 32,
    FRAME_HEADER_BYTES = 24,
    PAGE_BYTES_MAX = 65536,
    MAGIC = 0x377f0682, /* the lowest bit set: sums over big-endian numbers */
    WAL_MODE = 2,       /* in bytes 18 and 19 of a database */
};

struct wal {
    const char *path; /* of the database */
    int fd;
    int64_t bytes;
    bool big_endian;
    uint32_t page_bytes, salts[2], sums[2];
};

static uint32_t number_at(const uint8_t *from, bool big_endian)
{
    const uint32_t b[4] = {from[0], from[1], from[2], from[3]};
    return big_endian ? b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3]
                      : b[3] << 24 | b[2] << 16 | b[1] << 8 | b[0];
}

/* Section 4.2; `bytes` is a multiple of 8. */
static void add_to_sums(struct wal *wal, const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        wal->sums[0] += number_at(data + i, wal->big_endian) + wal->sums[1];
        wal->sums[1] += number_at(data + i + 4, wal->big_endian) + wal->sums[0];
    }
}

static bool sums_are(const struct wal *wal, const uint8_t *stored)
{
    return number_at(stored, true) == wal->sums[0] && number_at(stored + 4, true) == wal->sums[1];
}

/* A header is written and synced before the first frame, so beside frames it is whole. */
static enum dpt_status read_log_header(struct wal *wal, struct dpt_err *err)
{
    uint8_t header[LOG_HEADER_BYTES];
    DPT_TRY(dpt_fs_pread_all(wal->fd, header, sizeof header, 0, wal->path, err));
    wal->big_endian = (header[3] & 1) != 0;
    wal->page_bytes = number_at(header + 8, true);
    wal->salts[0] = number_at(header + 16, true);
    wal->salts[1] = number_at(header + 20, true);
    add_to_sums(wal, header, 24);
    const bool is_sized = wal->page_bytes >= 512 && wal->page_bytes <= PAGE_BYTES_MAX &&
                          (wal->page_bytes & (wal->page_bytes - 1)) == 0;
    if ((number_at(header, true) & ~1U) != MAGIC || !is_sized || !sums_are(wal, header + 24))
        return store_fail_damaged(wal->path, err, "the header of its '-wal' file is wrong");
    return DPT_OK;
}

/* A transaction is written when the one before it is durable. So if a frame is wrong, the log may
 * have no more of it than the rest of that transaction: the power failed. If a frame follows the
 * end of that transaction, a durable one is damaged. Frames of an earlier round of the log have
 * other salts; a damaged salt leaves the other one. */
static enum dpt_status check_frames(struct wal *wal, uint8_t *frame, struct dpt_err *err)
{
    const size_t bytes = FRAME_HEADER_BYTES + (size_t)wal->page_bytes;
    bool is_whole = true, has_ended = false;
    int64_t wrong = 0;
    for (int64_t n = 1, at = LOG_HEADER_BYTES; at + (int64_t)bytes <= wal->bytes;
         n++, at += (int64_t)bytes) {
        DPT_TRY(dpt_fs_pread_all(wal->fd, frame, bytes, at, wal->path, err));
        const bool first = number_at(frame + 8, true) == wal->salts[0],
                   second = number_at(frame + 12, true) == wal->salts[1];
        if (is_whole) {
            add_to_sums(wal, frame, 8);
            add_to_sums(wal, frame + FRAME_HEADER_BYTES, wal->page_bytes);
            is_whole = first && second && sums_are(wal, frame + 16);
            wrong = is_whole ? 0 : n;
        }
        if (is_whole || (!first && !second))
            continue;
        if (has_ended)
            return store_fail_damaged(
                wal->path, err, "frame %lld of its '-wal' file is wrong, and decisions follow it",
                (long long)wrong);
        has_ended = number_at(frame + 4, true) != 0; /* the size of the database: a commit */
    }
    return DPT_OK;
}

static enum dpt_status check_log(struct wal *wal, struct dpt_err *err)
{
    if (wal->bytes <= LOG_HEADER_BYTES)
        return DPT_OK;
    DPT_TRY(read_log_header(wal, err));
    uint8_t *frame = malloc(FRAME_HEADER_BYTES + (size_t)wal->page_bytes);
    if (frame == NULL)
        return dpt_fail_nomem(err, "read the journal '%s'", wal->path);
    const enum dpt_status status = check_frames(wal, frame, err);
    free(frame);
    return status;
}

/* With another mode SQLite would not read the log. */
static enum dpt_status check_mode(const char *path, struct dpt_err *err)
{
    uint8_t modes[2] = {0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open the journal '%s'", path);
    const enum dpt_status status = dpt_fs_pread_all(fd, modes, sizeof modes, 18, path, err);
    (void)close(fd);
    DPT_TRY(status);
    return modes[0] == WAL_MODE && modes[1] == WAL_MODE
               ? DPT_OK
               : store_fail_damaged(path, err, "its header does not know its '-wal' file");
}

/* 0: there is no such file, or it is empty. */
static int64_t size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : 0;
}

enum dpt_status store_check_files(const char *path, int64_t committed, struct dpt_err *err)
{
    char log[PATH_MAX];
    if (snprintf(log, sizeof log, "%s-wal", path) >= (int)sizeof log)
        return dpt_fail(err, DPT_ECONFIG, "the path of the journal '%s' is too long", path);
    const int64_t bytes = size_of(path), log_bytes = size_of(log);
    if (bytes == 0 && (log_bytes > 0 || committed > 0))
        return store_fail_damaged(path, err, "it is missing or empty beside its '%s' file",
                                  log_bytes > 0 ? "-wal" : "-newest");
    if (bytes < 100 || log_bytes == 0) /* SQLite tells what is no database */
        return DPT_OK;
    struct wal wal = {.path = path, .fd = open(log, O_RDONLY | O_CLOEXEC), .bytes = log_bytes};
    if (wal.fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", log);
    enum dpt_status status = check_log(&wal, err);
    if (status == DPT_OK)
        status = check_mode(path, err);
    (void)close(wal.fd);
    return status;
}
