/* What the log folder of a run tells about a hang (run_log.h). */
#include "worker/doctor/run_log.h"

#include "base/fs.h"
#include "base/median.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TAIL_BYTES = 256 << 10, SUMMARY_BYTES_MAX = 1 << 20 };

/* A line is late after this many intervals, but not before LATE_S. */
#define LATE_INTERVALS 10.0
#define LATE_S         5.0

static const char section[] = "run";

/* ---- ends of files ---- */

/* Reads the end of a regular file into `ret`, from the beginning of a line on. */
static enum dpt_status read_tail(const char *path, char ret[TAIL_BYTES + 1], struct dpt_err *err)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%.200s'", path);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return dpt_fail(err, DPT_EIO, "'%.200s' is not a regular file", path);
    }
    const int64_t skipped = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
    const size_t bytes = (size_t)(st.st_size - skipped);
    const enum dpt_status status = dpt_fs_pread_all(fd, ret, bytes, skipped, path, err);
    (void)close(fd);
    if (status != DPT_OK)
        return status;
    ret[bytes] = '\0';
    const char *line = skipped > 0 ? strchr(ret, '\n') : NULL;
    if (line)
        memmove(ret, line + 1, strlen(line + 1) + 1);
    return DPT_OK;
}

/* Calls `take` with each JSON object of the lines; other lines are skipped. */
static void for_each_record(char *text, void (*take)(void *ctx, const json_t *object), void *ctx)
{
    for (char *line = text; line && *line != '\0';) {
        char *end = strchr(line, '\n');
        if (end)
            *end = '\0';
        json_t *object = json_loads(line, 0, NULL);
        if (json_is_object(object))
            take(ctx, object);
        json_decref(object);
        line = end ? end + 1 : NULL;
    }
}

/* ---- records ---- */

struct steps {
    struct dpt_run_log *log;
    double time[DPT_RUN_LOG_LINES_MAX]; /* ring: line i is at i modulo its length */
    int n;
};

static void take_step(void *ctx, const json_t *object)
{
    struct steps *steps = ctx;
    const json_t *step = json_object_get(object, "step"), *time = json_object_get(object, "time");
    if (!json_is_integer(step) || !json_is_number(time) || !json_object_get(object, "loss"))
        return;
    steps->log->step = (int64_t)json_integer_value(step);
    steps->log->step_s = json_number_value(time);
    steps->log->generation = (int64_t)json_integer_value(json_object_get(object, "generation"));
    steps->time[steps->n++ % DPT_RUN_LOG_LINES_MAX] = json_number_value(time);
}

static void take_log_event(void *ctx, const json_t *object)
{
    struct dpt_run_log *log = ctx;
    const char *kind = json_string_value(json_object_get(object, "kind"));
    const char *cause = json_string_value(json_object_get(object, "cause"));
    if (!kind)
        return;
    (void)snprintf(log->event, sizeof log->event, "%.60s%s%.180s", kind, cause ? ": " : "",
                   cause ? cause : "");
    log->event_s = json_number_value(json_object_get(object, "time"));
}

static double median_interval(const struct steps *steps)
{
    double intervals[DPT_RUN_LOG_LINES_MAX];
    const int n = steps->n < DPT_RUN_LOG_LINES_MAX ? steps->n : DPT_RUN_LOG_LINES_MAX;
    for (int i = 1; i < n; i++) {
        const int at = steps->n - n + i;
        intervals[i - 1] =
            steps->time[at % DPT_RUN_LOG_LINES_MAX] - steps->time[(at - 1) % DPT_RUN_LOG_LINES_MAX];
    }
    return n < 2 ? 0 : dpt_median(intervals, n - 1);
}

/* The time of summary.json; 0: there is none, or it cannot be read. */
static double summary_time(const char *dir)
{
    char path[PATH_MAX], *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    if (dpt_fs_join(dir, "summary.json", path, sizeof path, &err) != DPT_OK ||
        dpt_fs_read_file(path, SUMMARY_BYTES_MAX, &text, &bytes, &err) != DPT_OK)
        return 0;
    json_t *object = json_loadb(text, bytes, 0, NULL);
    const double time = json_number_value(json_object_get(object, "time"));
    json_decref(object);
    free(text);
    return time;
}

enum dpt_status dpt_run_log_read(const char *dir, struct dpt_run_log *ret, struct dpt_err *err)
{
    static char text[TAIL_BYTES + 1];
    char path[PATH_MAX];
    struct steps steps = {.log = ret};
    struct dpt_err ignored;
    *ret = (struct dpt_run_log){.step = -1};
    DPT_TRY(dpt_fs_join(dir, "metrics.jsonl", path, sizeof path, err));
    DPT_TRY(read_tail(path, text, err));
    for_each_record(text, take_step, &steps);
    if (steps.n == 0)
        return dpt_fail(err, DPT_ECORRUPT, "the end of '%.200s' has no line of a step", path);
    ret->lines = steps.n < DPT_RUN_LOG_LINES_MAX ? steps.n : DPT_RUN_LOG_LINES_MAX;
    ret->interval_s = median_interval(&steps);
    ret->ended = summary_time(dir) >= ret->step_s;
    DPT_TRY(dpt_fs_join(dir, "events.jsonl", path, sizeof path, err));
    if (read_tail(path, text, &ignored) == DPT_OK) /* an old run has none */
        for_each_record(text, take_log_event, ret);
    return DPT_OK;
}

/* ---- the judgement ---- */

static bool is_late(const struct dpt_run_log *log, double now_s)
{
    const double age_s = now_s - log->step_s, allowed_s = LATE_INTERVALS * log->interval_s;
    return !log->ended && age_s > LATE_S && age_s > allowed_s;
}

void dpt_run_log_judge(const struct dpt_run_log *log, double now_s, struct dpt_findings *findings)
{
    const bool late = is_late(log, now_s);
    struct dpt_finding *line = dpt_findings_add(
        findings, late ? DPT_FINDING_FAIL : DPT_FINDING_OK, section, "newest step",
        "%" PRId64 " (generation %" PRId64 "), written %.1f s ago; before, a line came every %.2f "
        "s%s",
        log->step, log->generation, now_s - log->step_s, log->interval_s,
        log->ended ? "; the run has ended" : "");
    if (late)
        dpt_finding_set_remedy(line, "while the server runs, dpt-doctor hang --server HOST:PORT "
                                     "names the rank that is behind; else look at the workers' "
                                     "terminals and node-ID/rank-R.log here");
    if (log->event[0] != '\0')
        (void)dpt_findings_add(findings, DPT_FINDING_INFO, section, "newest event",
                               "%s, %.1f s ago", log->event, now_s - log->event_s);
}

json_t *dpt_run_log_json(const struct dpt_run_log *log, double now_s)
{
    return json_pack("{s:b, s:b, s:I, s:f, s:f, s:o}", "hangs", is_late(log, now_s), "ended",
                     log->ended, "step", (json_int_t)log->step, "age_s", now_s - log->step_s,
                     "interval_s", log->interval_s, "event", dpt_finding_json_text(log->event));
}
