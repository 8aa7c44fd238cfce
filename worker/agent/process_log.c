/* The output of a rank: from its pipe to its file, with warnings and errors repeated on stderr. */
#include "worker/agent/process_log.h"

#include "base/fs.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum dpt_status dpt_process_log_init(struct dpt_process_log *log, const char *log_dir,
                                     const char *node, int local_rank, int echo_fd,
                                     struct dpt_err *err)
{
    *log = (struct dpt_process_log){.file_fd = -1, .echo_fd = echo_fd, .local_rank = local_rank};
    int written =
        snprintf(log->path, sizeof log->path, "%s/node-%s/rank-%d.log", log_dir, node, local_rank);
    if (written < 0 || (size_t)written >= sizeof log->path)
        return dpt_fail(err, DPT_ECONFIG, "log.dir '%s' is too long a path", log_dir);
    log->held = malloc(DPT_RANK_LOG_HELD_BYTES);
    return log->held != NULL ? DPT_OK : dpt_fail_nomem(err, "buffer for a rank's log");
}

static void give_file_up(struct dpt_process_log *log, const char *why)
{
    if (!log->failed)
        dpt_log(DPT_LOG_WARN,
                "cannot write '%s': %s; what the rank prints is dropped and counted from now on",
                log->path, why);
    log->failed = true;
}

static void append_to_log_file(struct dpt_process_log *log, const char *data, size_t bytes)
{
    if (log->failed)
        log->dropped_bytes += bytes;
    if (log->failed || bytes == 0)
        return;
    if (log->file_fd < 0) {
        char folder[sizeof log->path];
        memcpy(folder, log->path, sizeof folder);
        *strrchr(folder, '/') = '\0';
        struct dpt_err err;
        if (dpt_fs_mkdirs(folder, &err) != DPT_OK) {
            give_file_up(log, err.text);
            return;
        }
        log->file_fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (log->file_fd < 0) {
            give_file_up(log, strerror(errno));
            return;
        }
    }
    while (bytes > 0) {
        ssize_t done = write(log->file_fd, data, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            give_file_up(log, done < 0 ? strerror(errno) : "nothing was written");
            return;
        }
        data += done;
        bytes -= (size_t)done;
    }
}

/* Holds the bytes back. Drops the oldest bytes if there is no room. */
static void hold_back(struct dpt_process_log *log, const char *data, size_t bytes)
{
    size_t room = DPT_RANK_LOG_HELD_BYTES - log->held_bytes;
    if (bytes > room) {
        size_t drop = bytes - room;
        memmove(log->held, log->held + drop, log->held_bytes - drop);
        log->held_bytes -= drop;
        log->held_lost += drop;
    }
    memcpy(log->held + log->held_bytes, data, bytes);
    log->held_bytes += bytes;
}

/* The letter of the level in a line of dpt_log, `2026-01-02T03:04:05.678Z I …`; 0: the line has
 * another form. */
static char level_of(const char *line, size_t bytes)
{
    enum { TIME_BYTES = sizeof "2026-01-02T03:04:05.678Z" - 1 };
    bool ours = bytes > TIME_BYTES + 2 && line[4] == '-' && line[10] == 'T' &&
                line[TIME_BYTES - 1] == 'Z' && line[TIME_BYTES] == ' ' &&
                line[TIME_BYTES + 2] == ' ';
    return ours ? line[TIME_BYTES + 1] : '\0';
}

/* Keeps the text of an error line, which begins after its prefix (": "). */
static void remember_error(struct dpt_process_log *log, const char *line, size_t bytes)
{
    const char *text = memmem(line + 24, bytes - 24, ": ", 2);
    text = text != NULL ? text + 2 : line;
    size_t length = bytes - (size_t)(text - line);
    length -= length > 0 && text[length - 1] == '\n';
    (void)snprintf(log->last_error, sizeof log->last_error, "%.*s", (int)length, text);
}

static void echo_line(const struct dpt_process_log *log, const char *line, size_t bytes)
{
    char text[DPT_RANK_LOG_LINE_BYTES + 64];
    int length = snprintf(text, sizeof text, "[local rank %d] %.*s%s", log->local_rank, (int)bytes,
                          line, line[bytes - 1] == '\n' ? "" : "\n");
    if (length < 0)
        return;
    size_t text_bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    dpt_log_repeat(log->echo_fd, text, text_bytes); /* one write: lines never mix */
}

static void store_line(struct dpt_process_log *log, bool may_write)
{
    if (log->line_bytes == 0)
        return;
    char level = level_of(log->line, log->line_bytes);
    if (level == 'E')
        remember_error(log, log->line, log->line_bytes);
    if (level != 'I' && level != 'D')
        echo_line(log, log->line, log->line_bytes);
    if (may_write)
        append_to_log_file(log, log->line, log->line_bytes);
    else
        hold_back(log, log->line, log->line_bytes);
    log->line_bytes = 0;
}

bool dpt_process_log_read(struct dpt_process_log *log, int fd, bool may_write)
{
    if (may_write)
        dpt_process_log_release(log);
    for (int i = 0; i < DPT_RANK_LOG_READS_MAX; i++) {
        char buf[DPT_RANK_LOG_LINE_BYTES];
        ssize_t got = read(fd, buf, sizeof buf);
        if (got < 0)
            return errno == EAGAIN || errno == EINTR;
        if (got == 0)
            return false;
        for (ssize_t k = 0; k < got; k++) {
            log->line[log->line_bytes++] = buf[k];
            if (buf[k] == '\n' || log->line_bytes == sizeof log->line)
                store_line(log, may_write);
        }
    }
    return true;
}

void dpt_process_log_release(struct dpt_process_log *log)
{
    if (log->held_bytes == 0)
        return;
    if (log->held_lost > 0) {
        char text[96];
        int bytes =
            snprintf(text, sizeof text,
                     "(%zu bytes lost while this node was not allowed to write)\n", log->held_lost);
        append_to_log_file(log, text, (size_t)bytes);
    }
    append_to_log_file(log, log->held, log->held_bytes);
    log->held_bytes = log->held_lost = 0;
}

void dpt_process_log_discard(struct dpt_process_log *log)
{
    log->held_bytes = log->held_lost = log->line_bytes = 0;
}

void dpt_process_log_fini(struct dpt_process_log *log, bool may_write)
{
    if (log->held == NULL)
        return;
    if (may_write)
        dpt_process_log_release(log);
    store_line(log, may_write);
    if (log->dropped_bytes > 0)
        dpt_log(DPT_LOG_WARN, "%zu bytes of '%s' were dropped", log->dropped_bytes, log->path);
    if (log->file_fd >= 0)
        close(log->file_fd);
    free(log->held);
    *log = (struct dpt_process_log){.file_fd = -1};
}
