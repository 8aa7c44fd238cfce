/* TensorBoard event files (event_file.h). */
#include "worker/train/log/event_file.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/log/event_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "events.out.tfevents."

enum {
    HOST_BYTES = 65,
    REPEATED_LINES = 4,             /* lines of metrics.jsonl that a file repeats, at least */
    LINES_MAX = REPEATED_LINES + 2, /* whole steps: a step has three lines at most */
    /* The end of metrics.jsonl is read in larger and larger parts, from the first length to the
     * second, until these lines are found. */
    END_BYTES_MIN = DPT_RUN_FILE_LINE_BYTES_MAX,
    END_BYTES_MAX = 16 << 20,
    END_GROWTH = 16
};

/* The newest lines of metrics.jsonl that count, newest first. */
struct newest_lines {
    struct dpt_run_file_line lines[LINES_MAX];
    int n;
    char *text; /* owned */
};

/* The number of the newest event file in the folder, also of another program's; 0: there is none.
 * `ret_name` of NAME_MAX + 1 bytes: its name. */
static enum dpt_status find_newest(const char *dir, long long *ret_number, char *ret_name,
                                   struct dpt_err *err)
{
    char **names = NULL;
    size_t n_names = 0;
    long long newest = 0;
    DPT_TRY(dpt_fs_list(dir, &names, &n_names, err));
    ret_name[0] = '\0';
    for (size_t i = 0; i < n_names; i++) {
        if (strncmp(names[i], PREFIX, sizeof PREFIX - 1) != 0)
            continue;
        const long long number = strtoll(names[i] + sizeof PREFIX - 1, NULL, 10);
        if (number < newest || number == LLONG_MAX)
            continue;
        newest = number;
        (void)snprintf(ret_name, NAME_MAX + 1, "%s", names[i]);
    }
    dpt_fs_list_free(&names, n_names);
    *ret_number = newest;
    return DPT_OK;
}

void dpt_event_file_begin(struct dpt_event_file *file, bool writes)
{
    char newest[NAME_MAX + 1];
    long long number;
    struct dpt_err err;
    if (!file->path[0])
        return;
    const char *own = strrchr(file->path, '/') + 1;
    if (!writes || find_newest(file->dir, &number, newest, &err) != DPT_OK ||
        strcmp(newest, own) != 0)
        file->path[0] = '\0';
}

/* Makes the path of a file that comes after all event files in the folder. */
static enum dpt_status make_path(const char *dir, char ret_path[PATH_MAX], struct dpt_err *err)
{
    char name[NAME_MAX + 1], host[HOST_BYTES];
    long long newest;
    DPT_TRY(find_newest(dir, &newest, name, err));
    const long long now = (long long)dpt_wall_seconds();
    if (gethostname(host, sizeof host) != 0)
        (void)snprintf(host, sizeof host, "unknown");
    host[sizeof host - 1] = '\0'; /* a name that was cut has no end */
    (void)snprintf(name, sizeof name, PREFIX "%010lld.%s.%ld", now > newest ? now : newest + 1,
                   host, (long)getpid());
    return dpt_fs_join(dir, name, ret_path, PATH_MAX, err);
}

/* Takes lines from the end of the text. A line counts if all counted lines after it have later
 * places: a step that was computed again replaces its lines and those of later steps. True: the
 * lines are those of whole steps. */
static bool take_newest_lines(struct newest_lines *newest, size_t bytes, bool is_cut)
{
    const char *const text = newest->text;
    newest->n = 0;
    for (const char *end = memrchr(text, '\n', bytes), *before; end; end = before) {
        before = memrchr(text, '\n', (size_t)(end - text));
        const char *at = before ? before + 1 : text;
        const struct dpt_run_file_line line = {dpt_run_file_place_of(at, (size_t)(end - at)), at,
                                               (size_t)(end + 1 - at)};
        const struct dpt_run_file_place *last =
            newest->n > 0 ? &newest->lines[newest->n - 1].place : NULL;
        if (line.place.step < 0 || (last && !dpt_run_file_is_after(last, &line.place)))
            continue;
        if (newest->n >= REPEATED_LINES && line.place.step < last->step)
            return true;
        newest->lines[newest->n++] = line;
    }
    return !is_cut;
}

/* Drops the lines of the oldest step, of which some may be missing. */
static void drop_oldest_step(struct newest_lines *newest)
{
    if (newest->n == 0)
        return;
    const int64_t step = newest->lines[newest->n - 1].place.step;
    while (newest->n > 0 && newest->lines[newest->n - 1].place.step == step)
        newest->n--;
}

/* The text is owned by the caller, also after a failure. */
static enum dpt_status find_newest_lines(const char *dir, struct newest_lines *ret,
                                         struct dpt_err *err)
{
    size_t bytes;
    int64_t file_bytes;
    bool is_whole = false;
    for (size_t max = END_BYTES_MIN; !is_whole && max <= END_BYTES_MAX; max *= END_GROWTH) {
        free(ret->text);
        ret->text = malloc(max);
        if (!ret->text)
            return dpt_fail_nomem(err, "end of metrics.jsonl, for an event file");
        DPT_TRY(dpt_runlog_read_end(dir, max, ret->text, &bytes, &file_bytes, err));
        is_whole = take_newest_lines(ret, bytes, file_bytes > (int64_t)bytes);
    }
    if (!is_whole)
        drop_oldest_step(ret);
    return DPT_OK;
}

/* Writes the first records of a file. `start`: the step of its START, if there are lines. */
static enum dpt_status write_first_records(const char *path, const struct newest_lines *newest,
                                           int64_t start, struct dpt_err *err)
{
    struct dpt_event_records records;
    const double now = dpt_wall_seconds();
    records.bytes = 0;
    dpt_event_add_version(&records, now);
    if (newest->n > 0)
        dpt_event_add_start(&records, now, start);
    for (int i = newest->n - 1; i >= 0; i--)
        dpt_event_add_line(&records, &newest->lines[i]);
    return dpt_fs_append(path, records.data, records.bytes, err);
}

/* Writes the newest lines of metrics.jsonl to the new file. If the whole steps among them cannot be
 * found, writes `line` alone. */
static enum dpt_status write_newest(struct dpt_event_file *file, struct newest_lines *newest,
                                    const struct dpt_run_file_line *line, struct dpt_err *err)
{
    int64_t start = 0;
    DPT_TRY(find_newest_lines(file->dir, newest, err));
    if (newest->n > 0) {
        start = newest->lines[newest->n - 1].place.step;
    } else if (line) {
        newest->lines[newest->n++] = *line;
        /* The step's own line, which comes before an epoch or an evaluation, stays. */
        start = line->place.step + (line->place.kind != DPT_LINE_STEP);
    }
    DPT_TRY(write_first_records(file->path, newest, start, err));
    /* A file without lines has no START: the next line goes back, so that one comes before it. */
    file->end = (struct dpt_run_file_place){.step = INT64_MAX};
    if (newest->n > 0)
        file->end = newest->lines[0].place;
    return DPT_OK;
}

/* Begins a file with the newest lines of metrics.jsonl. `line`: the last of them, just appended;
 * NULL: none was. */
static enum dpt_status begin_file(struct dpt_event_file *file, const struct dpt_run_file_line *line,
                                  struct dpt_err *err)
{
    struct newest_lines newest = {.n = 0};
    DPT_TRY(make_path(file->dir, file->path, err));
    const enum dpt_status status = write_newest(file, &newest, line, err);
    free(newest.text);
    if (status != DPT_OK) {
        /* Else a file without a record would stay for each line that is lost. */
        (void)unlink(file->path);
        file->path[0] = '\0';
    }
    return status;
}

void dpt_event_file_prepare(struct dpt_event_file *file)
{
    struct dpt_err err;
    if (!file->path[0] && begin_file(file, NULL, &err) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "no event file yet: %s; the next line tries again", err.text);
}

enum dpt_status dpt_event_file_add(struct dpt_event_file *file,
                                   const struct dpt_run_file_line *line, struct dpt_err *err)
{
    struct dpt_event_records records;
    const bool goes_back = !dpt_run_file_is_after(&line->place, &file->end);
    /* A START drops whole steps, so a line in the middle of one needs the lines before it. */
    if (!file->path[0] || (goes_back && line->place.kind != DPT_LINE_STEP))
        return begin_file(file, line, err);
    records.bytes = 0;
    if (goes_back)
        dpt_event_add_start(&records, dpt_wall_seconds(), line->place.step);
    dpt_event_add_line(&records, line);
    DPT_TRY(dpt_fs_append(file->path, records.data, records.bytes, err));
    file->end = line->place;
    return DPT_OK;
}
