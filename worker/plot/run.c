/* Reads the log of a run (run.h). */
#include "worker/plot/run.h"

#include "base/array.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define METRICS "metrics.jsonl"
#define EVENTS  "events.jsonl"

enum { LINE_BYTES_MAX = 1 << 20 };

/* The fields of a step's line, in the order of enum plot_quantity. */
static const char *const fields[PLOT_QUANTITIES] = {"loss", "tokens_per_s", "lr", "memory_bytes"};

/* Kinds of events.jsonl after which something was gone. */
static const char *const failures[] = {"rank_lost", "node_lost", "comm_error", "stalled"};

/* Takes a record of the file. DPT_EPROTO: the object is no such record. */
typedef enum dpt_status take_record(struct plot_run *run, const json_t *object,
                                    struct dpt_err *err);

static double number_in_record(const json_t *object, const char *field)
{
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

/* Forgets what a step that is computed again replaces. */
static void go_back(struct plot_run *run, int64_t step)
{
    while (run->n_points > 0 && run->points[run->n_points - 1].step >= step)
        run->n_points--;
    while (run->n_evaluations > 0 && run->evaluations[run->n_evaluations - 1].step >= step)
        run->n_evaluations--;
}

static enum dpt_status take_evaluation(struct plot_run *run, const json_t *object, int64_t step,
                                       struct dpt_err *err)
{
    const struct plot_evaluation evaluation = {step, number_in_record(object, "val_loss")};
    if (!dpt_array_reserve(&run->evaluations, &run->evaluations_room, run->n_evaluations + 1,
                           sizeof *run->evaluations))
        return dpt_fail_nomem(err, "evaluations of '%s'", run->metrics.path);
    while (run->n_evaluations > 0 && run->evaluations[run->n_evaluations - 1].step >= step)
        run->n_evaluations--;
    run->evaluations[run->n_evaluations++] = evaluation;
    return DPT_OK;
}

static enum dpt_status take_metrics(struct plot_run *run, const json_t *object, struct dpt_err *err)
{
    const json_t *step = json_object_get(object, "step");
    if (!json_is_integer(step) || json_integer_value(step) < 0)
        return dpt_fail(err, DPT_EPROTO, "no step");
    struct plot_point point = {.step = (int64_t)json_integer_value(step)};
    if (!json_object_get(object, "loss")) {
        if (json_object_get(object, "val_loss"))
            return take_evaluation(run, object, point.step, err);
        return json_object_get(object, "avg_loss") ? DPT_OK /* the end of an epoch */
                                                   : dpt_fail(err, DPT_EPROTO, "no loss");
    }
    for (int i = 0; i < PLOT_QUANTITIES; i++)
        point.value[i] = number_in_record(object, fields[i]);
    if (number_in_record(object, "step_ms") == 0) /* the writing rank did not measure the step */
        point.value[PLOT_THROUGHPUT] = (double)NAN;
    const char *name = json_string_value(json_object_get(object, "run"));
    if (name)
        (void)snprintf(run->name, sizeof run->name, "%s", name);
    go_back(run, point.step);
    if (!dpt_array_reserve(&run->points, &run->points_room, run->n_points + 1, sizeof *run->points))
        return dpt_fail_nomem(err, "steps of '%s'", run->metrics.path);
    run->points[run->n_points++] = point;
    return DPT_OK;
}

static bool is_failure(const char *kind)
{
    for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
        if (strcmp(kind, failures[i]) == 0)
            return true;
    return false;
}

static enum dpt_status add_mark(struct plot_run *run, const struct plot_mark *mark,
                                struct dpt_err *err)
{
    if (!dpt_array_reserve(&run->marks, &run->marks_room, run->n_marks + 1, sizeof *run->marks))
        return dpt_fail_nomem(err, "events of '%s'", run->events.path);
    run->marks[run->n_marks++] = *mark;
    return DPT_OK;
}

static enum dpt_status take_run_event(struct plot_run *run, const json_t *object,
                                      struct dpt_err *err)
{
    const char *kind = json_string_value(json_object_get(object, "kind"));
    const char *cause = json_string_value(json_object_get(object, "cause"));
    const long long generation = json_integer_value(json_object_get(object, "generation"));
    struct plot_mark mark = {.step = 0};
    if (!kind)
        return dpt_fail(err, DPT_EPROTO, "no kind");
    const bool diverged = strcmp(kind, "diverged") == 0;
    const json_t *step = json_object_get(object, diverged ? "step" : "resume_step");
    if (!json_is_integer(step))
        return dpt_fail(err, DPT_EPROTO, "no step");
    mark.step = (int64_t)json_integer_value(step);
    if (strcmp(kind, "redundancy") == 0)
        return DPT_OK; /* begins no generation */
    if (strcmp(kind, "start") == 0 && mark.step == 0) {
        run->n_marks = 0; /* the events before it are those of an earlier run */
        return DPT_OK;
    }
    mark.is_failure = diverged || is_failure(kind);
    if (diverged)
        (void)snprintf(mark.text, sizeof mark.text, "step %lld diverged", (long long)mark.step);
    else
        (void)snprintf(mark.text, sizeof mark.text, "generation %lld: %s%s%s", generation, kind,
                       cause && cause[0] ? ", " : "", cause ? cause : "");
    return add_mark(run, &mark, err);
}

/* Opens a regular file. */
static enum dpt_status open_file(const char *path, FILE **ret, struct dpt_err *err)
{
    struct stat st;
    /* O_NONBLOCK: without it, open() of a named pipe that has no writer would wait. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    const bool is_regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    FILE *file = is_regular ? fdopen(fd, "r") : NULL;
    if (!file) {
        (void)close(fd); /* nothing was written */
        return is_regular ? dpt_fail_nomem(err, "read '%s'", path)
                          : dpt_fail(err, DPT_EIO, "'%s' is not a regular file", path);
    }
    *ret = file;
    return DPT_OK;
}

/* Reads a line without its newline, of a longer line the first LINE_BYTES_MAX bytes. The last line
 * may lack its newline. False: the file has ended, or an error has occurred. */
static bool read_line(FILE *file, char line[LINE_BYTES_MAX], size_t *ret_bytes)
{
    int c;
    size_t n = 0;
    while ((c = getc(file)) != EOF && c != '\n')
        if (n < LINE_BYTES_MAX)
            line[n++] = (char)c;
    *ret_bytes = n;
    return !ferror(file) && (c == '\n' || n > 0);
}

/* Takes one line. Lines that are not records are counted. */
static enum dpt_status take_line(struct plot_run *run, struct plot_file *file, take_record *take,
                                 const char *line, size_t bytes, struct dpt_err *err)
{
    file->lines++;
    if (bytes == 0) /* it comes before the line that follows a torn one */
        return DPT_OK;
    json_t *object = json_loadb(line, bytes, 0, NULL);
    const enum dpt_status status = json_is_object(object) ? take(run, object, err) : DPT_EPROTO;
    json_decref(object);
    file->records += status == DPT_OK;
    if (status == DPT_EPROTO && file->lines_bad++ == 0)
        file->first_bad = file->lines;
    return status == DPT_EPROTO ? DPT_OK : status;
}

static enum dpt_status read_lines(struct plot_run *run, struct plot_file *file, take_record *take,
                                  struct dpt_err *err)
{
    static char line[LINE_BYTES_MAX];
    FILE *in = NULL;
    size_t bytes;
    enum dpt_status status = DPT_OK;
    DPT_TRY(open_file(file->path, &in, err));
    while (status == DPT_OK && read_line(in, line, &bytes))
        status = take_line(run, file, take, line, bytes, err);
    if (ferror(in))
        status = dpt_fail_errno(err, errno, "read '%s'", file->path);
    (void)fclose(in); /* opened for reading */
    return status;
}

/* Finds the two files of the run, and a name for a run whose lines have none. */
static enum dpt_status find_files(const char *path, struct plot_run *run, struct dpt_err *err)
{
    struct stat st;
    char folder[PATH_MAX];
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        (void)snprintf(folder, sizeof folder, "%s", path);
        DPT_TRY(dpt_fs_join(path, METRICS, run->metrics.path, sizeof run->metrics.path, err));
    } else {
        if (strlen(path) >= sizeof run->metrics.path)
            return dpt_fail(err, DPT_EOVERFLOW, "a path of %zu bytes is too long", strlen(path));
        (void)snprintf(run->metrics.path, sizeof run->metrics.path, "%s", path);
        DPT_TRY(dpt_fs_folder(path, folder, err));
    }
    (void)snprintf(run->name, sizeof run->name, "%.*s", PLOT_TEXT_BYTES - 1, path);
    return dpt_fs_join(folder, EVENTS, run->events.path, sizeof run->events.path, err);
}

enum dpt_status plot_run_read(const char *path, struct plot_run *run, struct dpt_err *err)
{
    memset(run, 0, sizeof *run);
    DPT_TRY(find_files(path, run, err));
    DPT_TRY(read_lines(run, &run->metrics, take_metrics, err));
    if (run->n_points == 0 && run->metrics.lines_bad > 0)
        return dpt_fail(err, DPT_EINVAL,
                        "'%s' has no record of a step: line %lld is not a JSON object with "
                        "\"step\" and \"loss\"",
                        run->metrics.path, (long long)run->metrics.first_bad);
    if (run->n_points == 0 && run->metrics.records > 0)
        return dpt_fail(err, DPT_EINVAL, "'%s' has %lld line%s, none of a step", run->metrics.path,
                        (long long)run->metrics.records, run->metrics.records == 1 ? "" : "s");
    if (run->n_points == 0)
        return dpt_fail(err, DPT_EINVAL, "'%s' has no record of a step yet", run->metrics.path);
    return dpt_fs_exists(run->events.path) ? read_lines(run, &run->events, take_run_event, err)
                                           : DPT_OK;
}

void plot_run_free(struct plot_run *run)
{
    free(run->points);
    free(run->evaluations);
    free(run->marks);
    memset(run, 0, sizeof *run);
}
