/* The files of a run (run_files.h). */
#include "worker/train/log/run_files.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define METRICS "metrics.jsonl"
#define EVENTS  "events.jsonl"

enum { TEXT_BYTES = 1024 };

/* A NaN may have a sign, which printf prints. */
static const char *name_of_not_finite(double value)
{
    return isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

/* Writes a double as JSON. 17 digits give back the same bits. JSON has no NaN and no infinity: they
 * become "nan", "inf" and "-inf". */
static const char *number_text(double value, char buf[32])
{
    if (isfinite(value))
        (void)snprintf(buf, 32, "%.17g", value);
    else
        (void)snprintf(buf, 32, "\"%s\"", name_of_not_finite(value));
    return buf;
}

/* Whether the file ends within a line, because a full disk or a power failure cut the last
 * record. */
static bool ends_within_line(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false; /* the file is absent, or its error comes again when the line is appended */
    struct stat st;
    char last = '\n';
    bool within = fstat(fd, &st) == 0 && st.st_size > 0 &&
                  pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n';
    (void)close(fd);
    return within;
}

/* Appends the line in one write. */
enum dpt_status dpt_run_file_append_to(const char *path, const struct dpt_run_file_line *line,
                                       struct dpt_err *err)
{
    size_t skip = ends_within_line(path) ? 0 : 1;
    return dpt_fs_append(path, line->text + skip, line->bytes - skip, err);
}

enum dpt_status dpt_run_file_append(const char *dir, const struct dpt_run_file_line *line,
                                    struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32];
    const char *name = line->place.kind == DPT_LINE_EVENT ? EVENTS : METRICS;
    DPT_TRY(dpt_fs_join(dir, name, path, sizeof path, err));
    return dpt_run_file_append_to(path, line, err);
}

static enum dpt_status put_line(const struct dpt_run_files *log,
                                const struct dpt_run_file_line *line, struct dpt_err *err)
{
    if (!log->hold)
        return dpt_run_file_append(log->dir, line, err);
    log->hold(log->ctx, line);
    return DPT_OK;
}

/* Writes a line of metrics.jsonl with these fields and the fields that every line has. */
DPT_PRINTF(4, 5)
static enum dpt_status put_metrics(const struct dpt_run_files *log, struct dpt_run_file_place place,
                                   struct dpt_err *err, const char *fmt, ...)
{
    char fields[768], line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(fields, sizeof fields, fmt, ap);
    va_end(ap);
    DPT_ASSERT(n > 0 && n < (int)sizeof fields);
    n = snprintf(line, sizeof line,
                 "\n{\"step\": %lld, %s, \"generation\": %llu, \"world_size\": %d, "
                 "\"run\": \"%s\", \"time\": %.3f}\n",
                 (long long)place.step, fields, (unsigned long long)log->generation,
                 log->world_size, log->run, dpt_wall_seconds());
    DPT_ASSERT(n > 0 && n < (int)sizeof line);
    place.generation = log->generation;
    const struct dpt_run_file_line whole = {place, line, (size_t)n};
    return put_line(log, &whole, err);
}

enum dpt_status dpt_run_file_metrics(const struct dpt_run_files *log, const struct dpt_metrics *m,
                                     struct dpt_err *err)
{
    char loss[32], lr[32], norm[32], scale[32], scaler[96] = "", skipped[48] = "";
    if (m->is_scaled)
        (void)snprintf(scaler, sizeof scaler, ", \"scale\": %s", number_text(m->scale, scale));
    if (m->is_scaled || m->may_skip)
        (void)snprintf(skipped, sizeof skipped, ", \"skipped_steps\": %lld",
                       (long long)m->skipped_steps);
    return put_metrics(
        log, (struct dpt_run_file_place){.step = m->step}, err,
        "\"loss\": %s, \"lr\": %s, \"grad_norm\": %s, \"tokens\": %lld, \"tokens_per_s\": %.1f, "
        "\"step_ms\": %.3f, \"wait_ms\": %.3f, \"sent_bytes\": %lld, \"memory_bytes\": %lld%s%s",
        number_text(m->loss, loss), number_text(m->lr, lr), number_text(m->grad_norm, norm),
        (long long)m->tokens, m->tokens_per_s, m->step_ms, m->wait_ms, (long long)m->sent_bytes,
        (long long)m->memory_bytes, scaler, skipped);
}

static double accuracy_of(int64_t right, int64_t samples)
{
    return (double)right / (double)samples;
}

enum dpt_status dpt_run_file_eval(const struct dpt_run_files *log, const struct dpt_eval_record *e,
                                  struct dpt_err *err)
{
    char loss[32], ms[32], share[32], of[128];
    (void)snprintf(ms, sizeof ms, "%.3f", e->ms);
    if (e->samples > 0)
        (void)snprintf(of, sizeof of, "\"val_accuracy\": %s, \"val_samples\": %lld",
                       number_text(accuracy_of(e->right, e->samples), share),
                       (long long)e->samples);
    else
        (void)snprintf(of, sizeof of, "\"val_tokens\": %lld", (long long)e->tokens);
    return put_metrics(log,
                       (struct dpt_run_file_place){.step = e->step, .kind = DPT_LINE_EVALUATION},
                       err, "\"val_loss\": %s, %s, \"val_ms\": %s", number_text(e->val_loss, loss),
                       of, isfinite(e->ms) ? ms : "null");
}

enum dpt_status dpt_run_file_epoch(const struct dpt_run_files *log,
                                   const struct dpt_epoch_record *e, struct dpt_err *err)
{
    char loss[32];
    return put_metrics(log, (struct dpt_run_file_place){.step = e->step, .kind = DPT_LINE_EPOCH},
                       err,
                       "\"epoch\": %lld, \"epochs\": %lld, \"avg_loss\": %s, \"first_step\": %lld, "
                       "\"seconds\": %.3f, \"samples_per_s\": %.1f",
                       (long long)e->epoch, (long long)e->epochs, number_text(e->avg_loss, loss),
                       (long long)e->first_step, e->seconds, e->samples_per_s);
}

json_t *dpt_run_file_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* Prints the object between newlines. Takes the object; the text is owned by the caller. */
static enum dpt_status print_json(json_t *object, size_t flags, const char *dir, const char *name,
                                  char **ret_text, struct dpt_err *err)
{
    char *json = object ? json_dumps(object, flags) : NULL;
    json_decref(object);
    int bytes = json ? asprintf(ret_text, "\n%s\n", json) : -1;
    free(json);
    return bytes < 0 ? dpt_fail_nomem(err, "write '%s/%s'", dir, name) : DPT_OK;
}

enum dpt_status dpt_run_file_write_json(json_t *object, const char *dir, const char *name,
                                        struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32], *text = NULL;
    DPT_TRY(print_json(object, JSON_INDENT(2), dir, name, &text, err));
    enum dpt_status status = dpt_fs_join(dir, name, path, sizeof path, err);
    if (status == DPT_OK)
        status = dpt_fs_write_file_atomic(path, text + 1, strlen(text + 1), err);
    free(text);
    return status;
}

/* Writes the object as a line of events.jsonl. Takes the object. */
static enum dpt_status put_event(json_t *object, const struct dpt_run_files *log,
                                 struct dpt_err *err)
{
    char *text = NULL;
    DPT_TRY(print_json(object, JSON_COMPACT, log->dir, EVENTS, &text, err));
    const struct dpt_run_file_line line = {
        {.step = -1, .kind = DPT_LINE_EVENT}, text, strlen(text)};
    enum dpt_status status = put_line(log, &line, err);
    free(text);
    return status;
}

/* Makes a JSON string of a path or a message. Either may be invalid UTF-8, which JSON does not
 * allow. */
static json_t *text_json(const char *text)
{
    json_t *string = json_string(text);
    if (string)
        return string;
    char plain[TEXT_BYTES];
    size_t n = 0;
    for (; text[n] && n + 1 < sizeof plain; n++)
        plain[n] = (char)((unsigned char)text[n] < 0x80 ? text[n] : '?');
    plain[n] = '\0';
    return json_string(plain);
}

enum dpt_status dpt_run_file_event(const struct dpt_run_files *log,
                                   const struct dpt_event_record *e, struct dpt_err *err)
{
    json_t *object = json_pack(
        "{s:s, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:i, s:I, s:s, s:f}", "kind",
        e->kind, "generation", (json_int_t)log->generation, "cause", text_json(e->cause),
        "detect_ms", e->detect_ms, "abort_ms", e->abort_ms, "rendezvous_ms", e->rendezvous_ms,
        "rebuild_ms", e->rebuild_ms, "restore_ms", e->restore_ms, "total_ms", e->total_ms,
        "steps_lost", (json_int_t)e->steps_lost, "resume_step", (json_int_t)e->resume_step,
        "world_size", log->world_size, "sends_bytes", (json_int_t)e->sends_bytes, "redundancy",
        e->redundancy, "time", dpt_wall_seconds());
    return put_event(object, log, err);
}

/* A JSON value of a double. JSON has no NaN and no infinity: they become strings as "nan" or
 * "inf". */
static json_t *number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_string(name_of_not_finite(value));
}

enum dpt_status dpt_run_file_divergence(const struct dpt_run_files *log,
                                        const struct dpt_divergence_record *d, struct dpt_err *err)
{
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:s, s:I, s:i, s:f}", "kind", "diverged", "generation",
        (json_int_t)log->generation, "step", (json_int_t)d->step, "loss", number_json(d->loss),
        "grad_norm", number_json(d->grad_norm), "action", d->action, "in_row",
        (json_int_t)d->in_row, "world_size", log->world_size, "time", dpt_wall_seconds());
    return put_event(object, log, err);
}

/* Adds the members of `more` to the object; takes both. NULL: out of memory. */
static json_t *join_objects(json_t *object, json_t *more)
{
    if (json_object_update(object, more) != 0) {
        json_decref(object);
        object = NULL;
    }
    json_decref(more);
    return object;
}

static json_t *accuracy_json(int64_t right, int64_t samples)
{
    return json_pack("{s:f, s:I}", "val_accuracy", accuracy_of(right, samples), "val_samples",
                     (json_int_t)samples);
}

enum dpt_status dpt_run_file_summary(const char *dir, const struct dpt_summary *s,
                                     struct dpt_err *err)
{
    const Dpt__RunSummary *told = &s->told;
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:I, s:f, s:f, s:f, s:f, s:i, s:I, s:i, s:s, s:I, s:I, s:I, "
        "s:i, s:I, s:f}",
        "run", s->run, "start_step", (json_int_t)told->start_step, "steps", (json_int_t)told->steps,
        "loss", dpt_run_file_real(told->loss), "val_loss", dpt_run_file_real(told->val_loss),
        "tokens", (json_int_t)s->tokens, "total_s", s->total_s, "step_ms", told->step_ms,
        "samples_per_s", told->samples_per_s, "tokens_per_s", told->tokens_per_s,
        "checkpoints_saved", (int)told->checkpoints_saved, "saved_step",
        (json_int_t)told->saved_step, "recoveries", (int)told->recoveries, "weights_hash",
        told->weights_hash, "generations", (json_int_t)s->generations, "steps_lost",
        (json_int_t)told->steps_lost, "skipped_steps", (json_int_t)s->skipped_steps, "world_size",
        s->world_size, "peak_bytes_per_rank", (json_int_t)told->peak_bytes_per_rank, "time",
        dpt_wall_seconds());
    if (told->val_samples > 0)
        object = join_objects(object, accuracy_json(told->val_right, told->val_samples));
    if (told->dollars > 0)
        object = join_objects(object, json_pack("{s:f, s:f, s:f}", "node_hours",
                                                (double)told->node_ms / (3600 * 1e3), "dollars",
                                                told->dollars, "dollars_per_1m_tokens",
                                                told->dollars_per_1m_tokens));
    return dpt_run_file_write_json(object, dir, "summary.json", err);
}

enum dpt_status dpt_run_file_evaluation(const struct dpt_run_files *log,
                                        const struct dpt_eval_record *e, const char *weights_hash,
                                        struct dpt_err *err)
{
    json_t *object = json_pack("{s:s, s:I, s:o, s:o, s:s, s:I, s:i, s:f}", "run", log->run, "step",
                               (json_int_t)e->step, "val_loss", dpt_run_file_real(e->val_loss),
                               "val_ms", dpt_run_file_real(e->ms), "weights_hash", weights_hash,
                               "generation", (json_int_t)log->generation, "world_size",
                               log->world_size, "time", dpt_wall_seconds());
    json_t *more = e->samples > 0
                       ? accuracy_json(e->right, e->samples)
                       : json_pack("{s:o, s:I}", "perplexity", dpt_run_file_real(exp(e->val_loss)),
                                   "val_tokens", (json_int_t)e->tokens);
    return dpt_run_file_write_json(join_objects(object, more), log->dir, "evaluation.json", err);
}

struct dpt_run_file_place dpt_run_file_place_of(const char *line, size_t bytes)
{
    struct dpt_run_file_place place = {.step = -1};
    json_t *object = json_loadb(line, bytes, 0, NULL);
    json_t *step = object ? json_object_get(object, "step") : NULL;
    if (json_is_integer(step) && json_integer_value(step) >= 0 && !json_object_get(object, "kind"))
        place = (struct dpt_run_file_place){
            .step = (int64_t)json_integer_value(step),
            .kind = json_object_get(object, "val_loss") ? DPT_LINE_EVALUATION
                    : json_object_get(object, "epoch")  ? DPT_LINE_EPOCH
                                                        : DPT_LINE_STEP,
            .generation = (uint64_t)json_integer_value(json_object_get(object, "generation")),
            .made_s = json_number_value(json_object_get(object, "time"))};
    json_decref(object);
    return place;
}

bool dpt_run_file_is_after(const struct dpt_run_file_place *a, const struct dpt_run_file_place *b)
{
    return a->step != b->step ? a->step > b->step : a->kind > b->kind;
}

/* Finds the last whole record in the text. The text may hold any bytes: a machine that lost power
 * leaves zeros. */
static struct dpt_run_file_place last_in(const char *text, size_t bytes)
{
    struct dpt_run_file_place last = {.step = -1};
    const char *end = memrchr(text, '\n', bytes);
    while (end && last.step < 0) {
        const char *before = memrchr(text, '\n', (size_t)(end - text));
        const char *line = before ? before + 1 : text;
        last = dpt_run_file_place_of(line, (size_t)(end - line));
        end = before;
    }
    return last;
}

enum dpt_status dpt_runlog_read_end(const char *dir, size_t bytes_max, char *ret_text,
                                    size_t *ret_bytes, int64_t *ret_file_bytes, struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32];
    DPT_TRY(dpt_fs_join(dir, METRICS, path, sizeof path, err));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *ret_bytes = 0;
        *ret_file_bytes = 0;
        return DPT_OK;
    }
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    struct stat st;
    enum dpt_status status = DPT_OK;
    if (fstat(fd, &st) != 0)
        status = dpt_fail_errno(err, errno, "stat '%s'", path);
    size_t bytes = 0;
    if (status == DPT_OK) {
        bytes = (size_t)st.st_size < bytes_max ? (size_t)st.st_size : bytes_max;
        status = dpt_fs_pread_all(fd, ret_text, bytes, st.st_size - (int64_t)bytes, path, err);
    }
    (void)close(fd);
    DPT_TRY(status);
    *ret_bytes = bytes;
    *ret_file_bytes = (int64_t)st.st_size;
    return DPT_OK;
}

enum dpt_status dpt_run_file_last(const char *dir, struct dpt_run_file_place *ret,
                                  struct dpt_err *err)
{
    char tail[DPT_RUN_FILE_LINE_BYTES_MAX];
    size_t bytes;
    int64_t file_bytes;
    DPT_TRY(dpt_runlog_read_end(dir, sizeof tail, tail, &bytes, &file_bytes, err));
    *ret = last_in(tail, bytes);
    ret->file_bytes = file_bytes;
    return DPT_OK;
}
