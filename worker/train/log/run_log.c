/* The run's log as the rank sees it: who writes it, when it may, and what a predecessor could not
 * write (pending_lines.h). */
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNCONFIRMED_BYTES_MAX = 256 << 20, EVENTS_BYTES_MAX = 64 << 20 };

static bool interrupted(void *ctx)
{
    const struct dpt_rank *r = ctx;
    return dpt_link_interrupted(r->link, r->gen.number);
}

static void hold(void *ctx, const struct dpt_runlog_line *line)
{
    struct dpt_rank *r = ctx;
    dpt_logbook_add(r->book, line, dpt_now_ms());
}

/* What the server has confirmed was made by a world that counted; and what is made so shortly after
 * that is, too, since nobody is expelled within the grace. */
static bool may_append(void *ctx, int64_t made_ms)
{
    const struct dpt_rank *r = ctx;
    const int64_t confirmed_ms = dpt_link_confirmed_ms(r->link);
    return dpt_link_may_write(r->link) &&
           (made_ms <= confirmed_ms || dpt_now_ms() < confirmed_ms + r->grace_ms);
}

static void appended(void *ctx, enum dpt_status status, const struct dpt_err *err)
{
    rank_check_log(ctx, status, err);
}

enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    const char *dir = r->config->log.dir;
    char folder[2 * DPT_CONFIG_PATH_BYTES], name[64];
    if (!dir[0])
        return DPT_OK;
    (void)snprintf(folder, sizeof folder, "%s/node-%s", dir, start->node);
    (void)snprintf(name, sizeof name, "rank-%d.unconfirmed.jsonl", start->local_rank);
    const struct dpt_logbook_options options = {.dir = dir,
                                                .spill_dir = folder,
                                                .spill_name = name,
                                                .may_append = may_append,
                                                .appended = appended,
                                                .ctx = r};
    r->log = (struct dpt_runlog){.dir = dir, .hold = hold, .ctx = r};
    return dpt_logbook_create(&options, &r->book, err);
}

bool rank_keeps_log(const struct dpt_rank *r)
{
    return r->book && r->gen.begun;
}

void rank_flush_log(struct dpt_rank *r)
{
    if (r->book)
        (void)dpt_logbook_flush(r->book);
}

void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err)
{
    if (status != DPT_OK)
        rank_check_log(r, status, err);
    rank_flush_log(r);
}

void rank_end_log(struct dpt_rank *r)
{
    if (r->book)
        dpt_logbook_end(r->book);
}

bool rank_settles_log(struct dpt_rank *r)
{
    if (!r->book || !r->gen.writes_log ||
        !dpt_link_await_confirmed(r->link, r->grace_ms, interrupted, r))
        return false;
    rank_flush_log(r);
    return true;
}

/* ---- the line of an epoch ---- */

void rank_log_epoch(struct dpt_rank *r)
{
    struct dpt_err err;
    const struct dpt_epoch_record e = {
        .run = r->config->run,
        .epoch = r->step / r->config->train.epoch_steps,
        .epochs = r->config->train.epochs,
        .step = r->step,
        .first_step = r->epoch.from + 1,
        .avg_loss = dpt_epoch_loss(&r->epoch),
        .seconds = r->epoch.seconds,
        .samples_per_s = dpt_epoch_samples_per_s(&r->epoch, r->config->train.global_batch),
        .generation = r->gen.number,
        .world_size = r->gen.world_size};
    if (rank_keeps_log(r))
        rank_add_line(r, dpt_runlog_epoch(&r->log, &e, &err), &err);
}

void rank_log_missed_epoch(struct dpt_rank *r)
{
    struct dpt_err err;
    struct dpt_runlog_place last = {.step = -1};
    const struct dpt_runlog_place place = {.step = r->step, .is_epoch = true};
    if (!rank_ends_epoch(r) || !rank_keeps_log(r) || dpt_logbook_has_epoch(r->book, r->step))
        return;
    if (r->gen.writes_log)
        rank_check_log(r, dpt_runlog_last(r->config->log.dir, &last, &err), &err);
    if (dpt_runlog_is_after(&place, &last))
        rank_log_epoch(r);
}

/* ---- lines that no server has confirmed before a rescue ---- */

static bool is_unconfirmed(const char *name)
{
    static const char suffix[] = ".unconfirmed.jsonl";
    const size_t n = strlen(name), m = sizeof suffix - 1;
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* What is done with one file of such lines. */
typedef void visit_unconfirmed(void *ctx, const char *path);

static void visit_folder(const char *folder, visit_unconfirmed *visit, void *ctx)
{
    char **names = NULL, path[PATH_MAX];
    size_t n_names = 0;
    if (dpt_fs_list(folder, &names, &n_names, NULL) != DPT_OK)
        return; /* a file of that name, not ours */
    for (size_t i = 0; i < n_names; i++)
        if (is_unconfirmed(names[i]) &&
            dpt_fs_join(folder, names[i], path, sizeof path, NULL) == DPT_OK)
            visit(ctx, path);
    dpt_fs_list_free(&names, n_names);
}

/* Those of all nodes. */
static void visit_all(struct dpt_rank *r, visit_unconfirmed *visit, void *ctx)
{
    char **names = NULL, folder[PATH_MAX];
    size_t n_names = 0;
    struct dpt_err err;
    const enum dpt_status status = dpt_fs_list(r->config->log.dir, &names, &n_names, &err);
    if (status != DPT_OK) {
        rank_check_log(r, status, &err);
        return;
    }
    for (size_t i = 0; i < n_names; i++)
        if (strncmp(names[i], "node-", 5) == 0 &&
            dpt_fs_join(r->config->log.dir, names[i], folder, sizeof folder, NULL) == DPT_OK)
            visit_folder(folder, visit, ctx);
    dpt_fs_list_free(&names, n_names);
}

/* Moves the lines of steps up to `step` to the front; returns how many bytes they are. What is no
 * whole line goes. */
static size_t keep_lines(char *text, size_t bytes, int64_t step)
{
    size_t kept = 0;
    for (char *line = text, *end; (end = memchr(line, '\n', bytes)) != NULL; line = end + 1) {
        const size_t n = (size_t)(end + 1 - line);
        bytes -= n;
        if (dpt_runlog_place_of(line, n - 1).step > step)
            continue;
        memmove(text + kept, line, n);
        kept += n;
    }
    return kept;
}

static void forget_in(void *ctx, const char *path)
{
    const struct dpt_rank *r = ctx;
    char *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    enum dpt_status status = dpt_fs_read_file(path, UNCONFIRMED_BYTES_MAX, &text, &bytes, &err);
    const size_t kept = status == DPT_OK ? keep_lines(text, bytes, r->step) : 0;
    if (status == DPT_OK && kept == 0 && unlink(path) != 0)
        status = dpt_fail_errno(&err, errno, "remove '%s'", path);
    else if (status == DPT_OK && kept > 0 && kept < bytes)
        status = dpt_fs_write_file_atomic(path, text, kept, &err);
    free(text);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_WARN,
                "lines after step %lld of a history that is not gone on with stay: %s",
                (long long)r->step, err.text);
}

struct unconfirmed_line {
    struct dpt_runlog_place place;
    size_t order; /* that it was found in */
    char *text;   /* owned; begins and ends with a newline, as what is appended does */
    size_t bytes;
};

/* What a writer completes the file with. */
struct completion {
    struct dpt_rank *r;
    struct dpt_runlog_place last;   /* of the file, and of what was added to it */
    struct unconfirmed_line *lines; /* owned */
    size_t n, n_max;
};

static enum dpt_status make_room(struct completion *to, struct dpt_err *err)
{
    const size_t n_max = to->n_max > 0 ? 2 * to->n_max : 1024;
    if (to->n < to->n_max)
        return DPT_OK;
    void *lines = realloc(to->lines, n_max * sizeof *to->lines);
    if (!lines)
        return dpt_fail(err, DPT_ENOMEM, "lines that no server has confirmed: out of memory");
    to->lines = lines;
    to->n_max = n_max;
    return DPT_OK;
}

/* Keeps a line, if the file ends before it and the run goes on after it. */
static enum dpt_status gather_line(struct completion *to, const char *line, size_t bytes,
                                   struct dpt_err *err)
{
    const struct dpt_runlog_place place = dpt_runlog_place_of(line, bytes);
    if (place.step < 0 || place.step > to->r->step || bytes + 3 > DPT_RUNLOG_LINE_BYTES_MAX ||
        !dpt_runlog_is_after(&place, &to->last))
        return DPT_OK;
    DPT_TRY(make_room(to, err));
    char *text = malloc(bytes + 3);
    if (!text)
        return dpt_fail(err, DPT_ENOMEM, "lines that no server has confirmed: out of memory");
    (void)snprintf(text, bytes + 3, "\n%.*s\n", (int)bytes, line);
    to->lines[to->n] = (struct unconfirmed_line){place, to->n, text, bytes + 2};
    to->n++;
    return DPT_OK;
}

/* The file stays: the next start may go on from an older rescue. */
static void gather_from(void *ctx, const char *path)
{
    struct completion *to = ctx;
    char *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    enum dpt_status status = dpt_fs_read_file(path, UNCONFIRMED_BYTES_MAX, &text, &bytes, &err);
    for (const char *line = text, *end;
         status == DPT_OK && (end = memchr(line, '\n', bytes)) != NULL; line = end + 1) {
        status = gather_line(to, line, (size_t)(end - line), &err);
        bytes -= (size_t)(end + 1 - line);
    }
    free(text);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_WARN, "metrics.jsonl may lack steps before the rescue: %s", err.text);
}

static int by_place(const void *a, const void *b)
{
    const struct unconfirmed_line *x = a, *y = b;
    if (dpt_runlog_is_after(&x->place, &y->place))
        return 1;
    if (dpt_runlog_is_after(&y->place, &x->place))
        return -1;
    if (x->place.made_s != y->place.made_s) /* of another history, if not the same */
        return x->place.made_s < y->place.made_s ? 1 : -1;
    return (x->order > y->order) - (x->order < y->order);
}

/* In order: what one node has may begin before, end after, and overlap what another has. Of one
 * step the line that was made last counts. */
static void append_gathered(struct completion *to)
{
    size_t n = 0;
    if (to->n > 0)
        qsort(to->lines, to->n, sizeof *to->lines, by_place);
    for (size_t i = 0; i < to->n; i++) {
        const struct unconfirmed_line *line = &to->lines[i];
        const struct dpt_runlog_line whole = {DPT_RUNLOG_METRICS, line->place, line->text,
                                              line->bytes};
        if (!dpt_runlog_is_after(&line->place, &to->last))
            continue;
        dpt_logbook_add(to->r->book, &whole, dpt_now_ms());
        rank_flush_log(to->r);
        to->last = line->place;
        n++;
    }
    if (n > 0)
        dpt_log(DPT_LOG_INFO,
                "metrics.jsonl is completed with %zu lines that no server had confirmed", n);
}

/* The world whose state the rescue is made its lines without a server. Under the contract the steps
 * of any other have the same ones, so those that the file lacks are taken. */
static void complete_log(struct dpt_rank *r, const struct dpt_runlog_place *last)
{
    struct completion to = {.r = r, .last = *last};
    visit_all(r, gather_from, &to);
    append_gathered(&to);
    for (size_t i = 0; i < to.n; i++)
        free(to.lines[i].text);
    free(to.lines);
}

void rank_complete_history(struct dpt_rank *r)
{
    const char *dir = r->config->log.dir;
    char path[PATH_MAX], *events = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    if (!dir[0] || (r->step == 0 && strcmp(r->gen.cause_kind, "start") == 0))
        return; /* what is there is of a run before this one */
    enum dpt_status status = dpt_fs_join(dir, "events.jsonl", path, sizeof path, &err);
    if (status == DPT_OK)
        status = dpt_fs_read_file(path, EVENTS_BYTES_MAX, &events, &bytes, &err);
    if (status == DPT_OK)
        status = dpt_history_add_events(&r->history, events, bytes, &err);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "the run's history is that of its checkpoint: %s", err.text);
    free(events);
}

void rank_begin_log(struct dpt_rank *r)
{
    struct dpt_err err;
    struct dpt_runlog_place last = {.step = -1};
    if (!r->book)
        return;
    const enum dpt_status status = dpt_runlog_last(r->config->log.dir, &last, &err);
    if (r->gen.writes_log)
        rank_check_log(r, status, &err);
    dpt_logbook_begin(r->book, r->gen.writes_log, r->step, &last);
    /* So that later lines are those of the history that goes on from here alone. */
    if (r->gen.writes_log && r->reread_state)
        visit_all(r, forget_in, r);
    if (r->gen.writes_log && r->loaded_rescue && status == DPT_OK)
        complete_log(r, &last);
    r->loaded_rescue = r->reread_state = false;
    rank_flush_log(r);
}
