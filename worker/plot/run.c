/* Reads the log of a run (run.h). */
#include "worker/plot/run.h"

#include "base/array.h"
#include "base/fs.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define METRICS "metrics.jsonl"
#define EVENTS  "events.jsonl"

enum { FILE_BYTES_MAX = INT_MAX };

/* The fields of a step's line, in the order of enum plot_quantity. */
static const char *const fields[PLOT_QUANTITIES] = {"loss", "tokens_per_s", "lr", "memory_bytes"};

/* Kinds of events.jsonl after which something was gone. */
static const char *const failures[] = {"rank_lost", "node_lost", "comm_error", "stalled"};

/* Takes a record of the file. DPT_EPROTO: the object is no such record. */
typedef enum dpt_status take_record(struct plot_run *run, const json_t *object,
                                    struct dpt_err *err);

static double number_of(const json_t *object, const char *field)
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
    const struct plot_evaluation evaluation = {step, number_of(object, "val_loss")};
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
    if (json_object_get(object, "val_loss"))
        return take_evaluation(run, object, point.step, err);
    if (json_object_get(object, "epoch"))
        return DPT_OK;
    if (!json_object_get(object, "loss"))
        return dpt_fail(err, DPT_EPROTO, "no loss");
    for (int i = 0; i < PLOT_QUANTITIES; i++)
        point.value[i] = number_of(object, fields[i]);
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

static enum dpt_status take_event(struct plot_run *run, const json_t *object, struct dpt_err *err)
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

/* Calls `take` for each whole line of the text. Lines that are no records are counted. */
static enum dpt_status take_lines(struct plot_run *run, struct plot_file *file, take_record *take,
                                  const char *text, size_t bytes, struct dpt_err *err)
{
    int64_t number = 0;
    const char *const text_end = text + bytes;
    while (text < text_end) {
        const char *newline = memchr(text, '\n', (size_t)(text_end - text));
        const char *end = newline ? newline : text_end;
        number++;
        json_t *object = json_loadb(text, (size_t)(end - text), 0, NULL);
        enum dpt_status status = json_is_object(object) ? take(run, object, err) : DPT_EPROTO;
        json_decref(object);
        if (status != DPT_OK && status != DPT_EPROTO)
            return status;
        /* An empty line comes before the line that follows a torn one. */
        if (status == DPT_EPROTO && end > text && file->lines_bad++ == 0)
            file->first_bad = number;
        text = end + 1;
    }
    return DPT_OK;
}

static enum dpt_status read_lines(struct plot_run *run, struct plot_file *file, take_record *take,
                                  struct dpt_err *err)
{
    char *text = NULL;
    size_t bytes = 0;
    DPT_TRY(dpt_fs_read_file(file->path, FILE_BYTES_MAX, &text, &bytes, err));
    const enum dpt_status status = take_lines(run, file, take, text, bytes, err);
    free(text);
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
    if (run->n_points == 0)
        return dpt_fail(err, DPT_EINVAL, "'%s' has no record of a step yet", run->metrics.path);
    return dpt_fs_exists(run->events.path) ? read_lines(run, &run->events, take_event, err)
                                           : DPT_OK;
}

void plot_run_free(struct plot_run *run)
{
    free(run->points);
    free(run->evaluations);
    free(run->marks);
    memset(run, 0, sizeof *run);
}
