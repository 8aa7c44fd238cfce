/* Lines that wait for the server's confirmation (pending_lines.h). */
#include "worker/train/log/pending_lines.h"

#include "base/config.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/log/event_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    bool waits;   /* this rank must append the line */
    bool settled; /* this rank has appended or spilled it, or found it in the file */
    struct dpt_run_file_place place;
    int64_t made_ms;
    size_t at, bytes; /* where the line is in `text` */
};

static bool is_event(const struct line *line)
{
    return line->place.kind == DPT_LINE_EVENT;
}

struct dpt_pending {
    struct dpt_pending_options options;
    char spill[3 * DPT_CONFIG_PATH_BYTES]; /* path of the spill file */
    bool writes, begun;
    int64_t bytes_before;          /* length of the file when the first generation here began */
    struct dpt_run_file_place end; /* last known line of the file */
    struct dpt_event_file event_file;
    bool stalled;    /* lines have waited since the last one was appended */
    int64_t spilled; /* lines spilled since the last warning */
    int waiting;     /* number of lines that wait */
    struct line lines[DPT_PENDING_LINES_MAX];
    int n;
    char text[DPT_PENDING_BYTES];
    size_t bytes;
};

enum dpt_status dpt_pending_create(const struct dpt_pending_options *options,
                                   struct dpt_pending **ret, struct dpt_err *err)
{
    struct dpt_pending *book = calloc(1, sizeof *book);
    if (!book)
        return dpt_fail_nomem(err, "lines of the run's log");
    book->options = *options;
    (void)snprintf(book->spill, sizeof book->spill, "%s/%s", options->spill_dir,
                   options->spill_name);
    book->options.spill_name = NULL;
    book->event_file.dir = options->dir;
    *ret = book;
    return DPT_OK;
}

static struct dpt_run_file_line line_of(const struct dpt_pending *book, const struct line *line)
{
    return (struct dpt_run_file_line){line->place, book->text + line->at, line->bytes};
}

static void settle_line(struct dpt_pending *book, struct line *line)
{
    line->waits = false;
    line->settled = true;
    book->waiting--;
}

static void spill_line(struct dpt_pending *book, struct line *line)
{
    struct dpt_err err;
    const struct dpt_run_file_line whole = line_of(book, line);
    settle_line(book, line);
    enum dpt_status status = dpt_fs_mkdirs(book->options.spill_dir, &err);
    if (status == DPT_OK)
        status = dpt_run_file_append_to(book->spill, &whole, &err);
    book->spilled += status == DPT_OK;
    book->options.appended(book->options.ctx, status, &err);
}

static void log_spilled(struct dpt_pending *book)
{
    if (book->spilled > 0)
        dpt_log(DPT_LOG_WARN,
                "%lld lines for '%s' are in '%s': no server has confirmed that this node was a "
                "member when it made them",
                (long long)book->spilled, book->options.dir, book->spill);
    book->spilled = 0;
}

static void spill_waiting_lines(struct dpt_pending *book)
{
    for (int i = 0; i < book->n; i++)
        if (book->lines[i].waits)
            spill_line(book, &book->lines[i]);
    log_spilled(book);
}

/* Whether a file that ends with `last` has the line of `place`. The file lacks the line if `place`
 * has a newer generation, which went back and computed the step again. The file lacks all lines of
 * this process if it has not grown since the first generation here. In that case `last` is from an
 * earlier start of the run, whose generations may have had higher numbers. */
static bool file_has_line(const struct dpt_pending *book, const struct dpt_run_file_place *place,
                          const struct dpt_run_file_place *last)
{
    if (last->file_bytes == book->bytes_before)
        return false;
    if (place->generation > last->generation)
        return false;
    return !dpt_run_file_is_after(place, last);
}

/* Settles waiting lines that the writers of later generations have appended. */
static void settle_lines_in_file(struct dpt_pending *book)
{
    struct dpt_err err;
    struct dpt_run_file_place last;
    if (dpt_run_file_last(book->options.dir, &last, &err) != DPT_OK)
        return; /* all waiting lines go to the spill file then */
    for (int i = 0; i < book->n; i++) {
        struct line *line = &book->lines[i];
        if (!is_event(line) && line->waits && file_has_line(book, &line->place, &last))
            settle_line(book, line);
    }
}

void dpt_pending_destroy(struct dpt_pending **book_p)
{
    struct dpt_pending *book = *book_p;
    if (!book)
        return;
    if (!dpt_pending_flush(book) && !book->writes)
        settle_lines_in_file(book);
    spill_waiting_lines(book);
    free(book);
    *book_p = NULL;
}

/* Drops the lines before index `first`, and the lines of steps after step_max. */
static void keep_lines_from(struct dpt_pending *book, int first, int64_t step_max)
{
    int n = 0;
    size_t bytes = 0;
    for (int i = first; i < book->n; i++) {
        struct line line = book->lines[i];
        if (!is_event(&line) && line.place.step > step_max)
            continue;
        memmove(book->text + bytes, book->text + line.at, line.bytes);
        line.at = bytes;
        bytes += line.bytes;
        book->lines[n++] = line;
    }
    book->n = n;
    book->bytes = bytes;
}

/* Makes room for `bytes`. Drops a quarter of the lines at once, oldest first, so that not every new
 * line moves the text. Repeats this until the bytes fit. */
static void drop_oldest_lines(struct dpt_pending *book, size_t bytes)
{
    while (book->n == DPT_PENDING_LINES_MAX || book->bytes + bytes > DPT_PENDING_BYTES) {
        const int first = book->n / 4 + 1;
        for (int i = 0; i < first; i++)
            if (book->lines[i].waits)
                spill_line(book, &book->lines[i]);
        keep_lines_from(book, first, INT64_MAX);
    }
    log_spilled(book);
}

void dpt_pending_add(struct dpt_pending *book, const struct dpt_run_file_line *line,
                     int64_t made_ms)
{
    DPT_ASSERT(line->bytes <= DPT_PENDING_BYTES / 4);
    if (line->place.kind == DPT_LINE_EVENT && !book->writes)
        return;
    drop_oldest_lines(book, line->bytes);
    memcpy(book->text + book->bytes, line->text, line->bytes);
    book->lines[book->n++] = (struct line){.waits = book->writes,
                                           .place = line->place,
                                           .made_ms = made_ms,
                                           .at = book->bytes,
                                           .bytes = line->bytes};
    book->bytes += line->bytes;
    book->waiting += book->writes;
}

void dpt_pending_begin(struct dpt_pending *book, bool writes, int64_t step,
                       const struct dpt_run_file_place *last)
{
    if (!book->begun)
        book->bytes_before = last->file_bytes;
    book->begun = true;
    book->writes = writes;
    book->end = *last;
    book->stalled = false;
    dpt_event_file_begin(&book->event_file, writes);
    keep_lines_from(book, 0, step);
    book->waiting = 0;
    for (int i = 0; i < book->n; i++) {
        struct line *line = &book->lines[i];
        /* No other rank has the events: they wait here until they are appended. */
        if (!is_event(line))
            line->waits = writes && !file_has_line(book, &line->place, last);
        book->waiting += line->waits;
    }
}

void dpt_pending_end(struct dpt_pending *book)
{
    (void)dpt_pending_flush(book);
    book->writes = false;
}

void dpt_pending_keep_unwritten(struct dpt_pending *book)
{
    DPT_ASSERT(!book->writes);
    for (int i = 0; i < book->n; i++) {
        struct line *line = &book->lines[i];
        if (is_event(line) || line->waits || line->settled)
            continue;
        line->waits = true;
        book->waiting++;
    }
}

bool dpt_pending_has(const struct dpt_pending *book, const struct dpt_run_file_place *place)
{
    for (int i = book->n - 1; i >= 0; i--)
        if (book->lines[i].place.kind == place->kind && book->lines[i].place.step == place->step)
            return true;
    return false;
}

/* Whether another world has appended to the file. Then lines that waited may belong to a world that
 * an earlier server had expelled. */
static bool has_foreign_end(struct dpt_pending *book)
{
    struct dpt_err err;
    struct dpt_run_file_place last;
    /* A file that cannot be read fails again, with its error, when a line is appended. */
    if (!book->stalled || dpt_run_file_last(book->options.dir, &last, &err) != DPT_OK)
        return false;
    book->stalled = false;
    return dpt_run_file_is_after(&last, &book->end) || dpt_run_file_is_after(&book->end, &last) ||
           last.generation != book->end.generation;
}

/* Appends a line to the files that have it. */
static enum dpt_status append_line(struct dpt_pending *book, const struct line *line,
                                   struct dpt_err *err)
{
    const struct dpt_run_file_line whole = line_of(book, line);
    DPT_TRY(dpt_run_file_append(book->options.dir, &whole, err));
    if (is_event(line)) {
        /* A generation's line is appended before its first step. */
        if (book->options.tensorboard && book->writes)
            dpt_event_file_prepare(&book->event_file);
        return DPT_OK;
    }
    book->end = line->place;
    return book->options.tensorboard ? dpt_event_file_add(&book->event_file, &whole, err) : DPT_OK;
}

bool dpt_pending_flush(struct dpt_pending *book)
{
    for (int i = 0; i < book->n && book->waiting > 0; i++) {
        struct line *line = &book->lines[i];
        if (!line->waits || (!book->writes && !is_event(line)))
            continue;
        if (!book->options.may_append(book->options.ctx, line->made_ms)) {
            book->stalled = true;
            return false;
        }
        if (book->writes && has_foreign_end(book)) {
            spill_waiting_lines(book);
            break;
        }
        struct dpt_err err;
        settle_line(book, line);
        const enum dpt_status status = append_line(book, line, &err);
        book->options.appended(book->options.ctx, status, &err);
    }
    return book->waiting == 0;
}
