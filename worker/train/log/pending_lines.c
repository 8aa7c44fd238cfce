/* Lines that wait for the server's word (pending_lines.h). */
#include "worker/train/log/pending_lines.h"

#include "base/config.h"
#include "base/fs.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    bool waits;   /* this rank is to append it */
    bool settled; /* this rank has appended or spilled it, or found it in the file */
    struct dpt_runlog_place place;
    int64_t made_ms;
    size_t at, bytes; /* in text */
};

static bool is_event(const struct line *line)
{
    return line->place.kind == DPT_LINE_EVENT;
}

struct dpt_logbook {
    struct dpt_logbook_options options;
    char spill[3 * DPT_CONFIG_PATH_BYTES]; /* path of the spill file */
    bool writes, begun;
    int64_t bytes_before;        /* of the file, when the first generation here began */
    struct dpt_runlog_place end; /* what the file ends with, as far as is known here */
    bool stalled;                /* lines had to wait since one was appended */
    int64_t spilled;             /* lines */
    int waiting;                 /* lines */
    struct line lines[DPT_LOGBOOK_LINES_MAX];
    int n;
    char text[DPT_LOGBOOK_BYTES];
    size_t bytes;
};

enum dpt_status dpt_logbook_create(const struct dpt_logbook_options *options,
                                   struct dpt_logbook **ret, struct dpt_err *err)
{
    struct dpt_logbook *book = calloc(1, sizeof *book);
    if (!book)
        return dpt_fail_nomem(err, "lines of the run's log");
    book->options = *options;
    (void)snprintf(book->spill, sizeof book->spill, "%s/%s", options->spill_dir,
                   options->spill_name);
    *ret = book;
    return DPT_OK;
}

static struct dpt_runlog_line line_of(const struct dpt_logbook *book, const struct line *line)
{
    return (struct dpt_runlog_line){line->place, book->text + line->at, line->bytes};
}

static void settle_line(struct dpt_logbook *book, struct line *line)
{
    line->waits = false;
    line->settled = true;
    book->waiting--;
}

static void spill_line(struct dpt_logbook *book, struct line *line)
{
    struct dpt_err err;
    const struct dpt_runlog_line whole = line_of(book, line);
    settle_line(book, line);
    enum dpt_status status = dpt_fs_mkdirs(book->options.spill_dir, &err);
    if (status == DPT_OK)
        status = dpt_runlog_append_to(book->spill, &whole, &err);
    book->spilled += status == DPT_OK;
    book->options.appended(book->options.ctx, status, &err);
}

static void say_spilled(struct dpt_logbook *book)
{
    if (book->spilled > 0)
        dpt_log(DPT_LOG_WARN,
                "%lld lines for '%s' are in '%s': no server has said that this node still counted "
                "when it made them",
                (long long)book->spilled, book->options.dir, book->spill);
    book->spilled = 0;
}

static void spill_all(struct dpt_logbook *book)
{
    for (int i = 0; i < book->n; i++)
        if (book->lines[i].waits)
            spill_line(book, &book->lines[i]);
    say_spilled(book);
}

/* A file that ends with `last` has the line of `place`: not if a newer world went back and made the
 * step again, nor if an older one, whose state counts now, got further. A file that has not grown
 * since the first generation of this process has none of its lines: what it ends with is of an
 * earlier start of the run, whose generations may have had higher numbers. */
static bool is_there(const struct dpt_logbook *book, const struct dpt_runlog_place *place,
                     const struct dpt_runlog_place *last)
{
    if (last->file_bytes == book->bytes_before)
        return false;
    if (place->generation > last->generation)
        return false;
    return !dpt_runlog_is_after(place, last);
}

/* Lines that the writers of later generations have appended wait no more. */
static void drop_what_is_there(struct dpt_logbook *book)
{
    struct dpt_err err;
    struct dpt_runlog_place last;
    if (dpt_runlog_last(book->options.dir, &last, &err) != DPT_OK)
        return; /* all that waits is kept elsewhere */
    for (int i = 0; i < book->n; i++) {
        struct line *line = &book->lines[i];
        if (!is_event(line) && line->waits && is_there(book, &line->place, &last))
            settle_line(book, line);
    }
}

void dpt_logbook_destroy(struct dpt_logbook **book_p)
{
    struct dpt_logbook *book = *book_p;
    if (!book)
        return;
    if (!dpt_logbook_flush(book) && !book->writes)
        drop_what_is_there(book);
    spill_all(book);
    free(book);
    *book_p = NULL;
}

/* Drops the lines before `first`, and those of later steps. */
static void keep_from(struct dpt_logbook *book, int first, int64_t step_max)
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

/* The oldest quarter of the lines goes, so that it need not be done for every one; more where that
 * is little text. */
static void make_room(struct dpt_logbook *book, size_t bytes)
{
    while (book->n == DPT_LOGBOOK_LINES_MAX || book->bytes + bytes > DPT_LOGBOOK_BYTES) {
        const int first = book->n / 4 + 1;
        for (int i = 0; i < first; i++)
            if (book->lines[i].waits)
                spill_line(book, &book->lines[i]);
        keep_from(book, first, INT64_MAX);
    }
    say_spilled(book);
}

void dpt_logbook_add(struct dpt_logbook *book, const struct dpt_runlog_line *line, int64_t made_ms)
{
    DPT_ASSERT(line->bytes <= DPT_LOGBOOK_BYTES / 4);
    if (line->place.kind == DPT_LINE_EVENT && !book->writes)
        return;
    make_room(book, line->bytes);
    memcpy(book->text + book->bytes, line->text, line->bytes);
    book->lines[book->n++] = (struct line){.waits = book->writes,
                                           .place = line->place,
                                           .made_ms = made_ms,
                                           .at = book->bytes,
                                           .bytes = line->bytes};
    book->bytes += line->bytes;
    book->waiting += book->writes;
}

void dpt_logbook_begin(struct dpt_logbook *book, bool writes, int64_t step,
                       const struct dpt_runlog_place *last)
{
    if (!book->begun)
        book->bytes_before = last->file_bytes;
    book->begun = true;
    book->writes = writes;
    book->end = *last;
    book->stalled = false;
    keep_from(book, 0, step);
    book->waiting = 0;
    for (int i = 0; i < book->n; i++) {
        struct line *line = &book->lines[i];
        if (!is_event(line)) /* no other rank has those */
            line->waits = writes && !is_there(book, &line->place, last);
        book->waiting += line->waits;
    }
}

void dpt_logbook_end(struct dpt_logbook *book)
{
    (void)dpt_logbook_flush(book);
    book->writes = false;
}

void dpt_logbook_keep_unwritten(struct dpt_logbook *book)
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

bool dpt_logbook_has(const struct dpt_logbook *book, const struct dpt_runlog_place *place)
{
    for (int i = book->n - 1; i >= 0; i--)
        if (book->lines[i].place.kind == place->kind && book->lines[i].place.step == place->step)
            return true;
    return false;
}

/* Lines that waited may be of a world that a server which is gone had given up: then another has
 * written since. */
static bool has_foreign_end(struct dpt_logbook *book)
{
    struct dpt_err err;
    struct dpt_runlog_place last;
    if (!book->stalled || dpt_runlog_last(book->options.dir, &last, &err) != DPT_OK)
        return false; /* a file that cannot be read: the attempt to append says so */
    book->stalled = false;
    return dpt_runlog_is_after(&last, &book->end) || dpt_runlog_is_after(&book->end, &last) ||
           last.generation != book->end.generation;
}

bool dpt_logbook_flush(struct dpt_logbook *book)
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
            spill_all(book);
            break;
        }
        struct dpt_err err;
        const struct dpt_runlog_line whole = line_of(book, line);
        settle_line(book, line);
        const enum dpt_status status = dpt_runlog_append(book->options.dir, &whole, &err);
        if (status == DPT_OK && !is_event(line))
            book->end = line->place;
        book->options.appended(book->options.ctx, status, &err);
    }
    return book->waiting == 0;
}
