/* metrics.jsonl, events.jsonl, summary.json, evaluation.json, accounts of memory. */
#include "worker/train/runlog.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD_BYTES_MAX = 4096, TEXT_BYTES = 1024 };

/* A double as JSON: 17 digits give back the same bits; JSON has no NaN and no infinity. */
static const char *number(double value, char buf[32])
{
    if (isfinite(value))
        (void)snprintf(buf, 32, "%.17g", value);
    else
        (void)snprintf(buf, 32, "%s",
                       isnan(value) ? "\"nan\""
                       : value > 0  ? "\"inf\""
                                    : "\"-inf\"");
    return buf;
}

/* True when the file ends within a line: a full disk or a power failure cut the last record. */
static bool ends_within_line(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false; /* absent; if it is something worse, appending says so */
    struct stat st;
    char last = '\n';
    bool within = fstat(fd, &st) == 0 && st.st_size > 0 &&
                  pread(fd, &last, 1, st.st_size - 1) == 1 && last != '\n';
    (void)close(fd);
    return within;
}

/* Appends a record in one write. `text` is a newline, then the record with its own newline: the
 * first one is used to end what the file ends with, if that is no whole line. */
static enum dpt_status append_record(const char *path, const char *text, size_t bytes,
                                     struct dpt_err *err)
{
    size_t skip = ends_within_line(path) ? 0 : 1;
    return dpt_fs_append(path, text + skip, bytes - skip, err);
}

enum dpt_status dpt_runlog_metrics(const char *dir, const struct dpt_metrics *m,
                                   struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32], line[1024], loss[32], lr[32], norm[32], scale[32];
    char scaler[96] = "";
    DPT_TRY(dpt_fs_join(dir, "metrics.jsonl", path, sizeof path, err));
    if (m->is_scaled)
        (void)snprintf(scaler, sizeof scaler, "\"scale\": %s, \"skipped_steps\": %lld, ",
                       number(m->scale, scale), (long long)m->skipped_steps);
    int n = snprintf(
        line, sizeof line,
        "\n{\"step\": %lld, \"loss\": %s, \"lr\": %s, \"grad_norm\": %s, \"tokens\": %lld, "
        "\"tokens_per_s\": %.1f, \"step_ms\": %.3f, \"wait_ms\": %.3f, \"sent_bytes\": %lld, "
        "%s\"generation\": %llu, \"world_size\": %d, \"time\": %.3f}\n",
        (long long)m->step, number(m->loss, loss), number(m->lr, lr), number(m->grad_norm, norm),
        (long long)m->tokens, m->tokens_per_s, m->step_ms, m->wait_ms, (long long)m->sent_bytes,
        scaler, (unsigned long long)m->generation, m->world_size, dpt_wall_seconds());
    DPT_ASSERT(n > 0 && n < (int)sizeof line);
    return append_record(path, line, (size_t)n, err);
}

enum dpt_status dpt_runlog_eval(const char *dir, const struct dpt_eval_record *e,
                                struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32], line[1024], loss[32], ms[32];
    DPT_TRY(dpt_fs_join(dir, "metrics.jsonl", path, sizeof path, err));
    (void)snprintf(ms, sizeof ms, "%.3f", e->ms);
    int n = snprintf(line, sizeof line,
                     "\n{\"step\": %lld, \"val_loss\": %s, \"val_tokens\": %lld, \"val_ms\": %s, "
                     "\"generation\": %llu, \"world_size\": %d, \"time\": %.3f}\n",
                     (long long)e->step, number(e->val_loss, loss), (long long)e->tokens,
                     isfinite(e->ms) ? ms : "null", (unsigned long long)e->generation,
                     e->world_size, dpt_wall_seconds());
    DPT_ASSERT(n > 0 && n < (int)sizeof line);
    return append_record(path, line, (size_t)n, err);
}

/* Takes the object; appends it as a line, or makes it the whole file. */
static enum dpt_status write_json(json_t *object, const char *dir, const char *name, bool append,
                                  struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES + 32], *text = NULL;
    char *json = object ? json_dumps(object, append ? JSON_COMPACT : JSON_INDENT(2)) : NULL;
    json_decref(object);
    int bytes = json ? asprintf(&text, "\n%s\n", json) : -1;
    free(json);
    if (bytes < 0)
        return dpt_fail(err, DPT_ENOMEM, "write '%s/%s': out of memory", dir, name);
    enum dpt_status status = dpt_fs_join(dir, name, path, sizeof path, err);
    if (status == DPT_OK)
        status = append ? append_record(path, text, (size_t)bytes, err)
                        : dpt_fs_write_file_atomic(path, text + 1, (size_t)bytes - 1, err);
    free(text);
    return status;
}

/* A text of others as JSON, which is UTF-8 only: a path or a message need not be. */
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

enum dpt_status dpt_runlog_event(const char *dir, const struct dpt_event_record *e,
                                 struct dpt_err *err)
{
    json_t *object = json_pack(
        "{s:s, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:i, s:I, s:s, s:f}", "kind",
        e->kind, "generation", (json_int_t)e->generation, "cause", text_json(e->cause), "detect_ms",
        e->detect_ms, "abort_ms", e->abort_ms, "rendezvous_ms", e->rendezvous_ms, "rebuild_ms",
        e->rebuild_ms, "restore_ms", e->restore_ms, "total_ms", e->total_ms, "steps_lost",
        (json_int_t)e->steps_lost, "resume_step", (json_int_t)e->resume_step, "world_size",
        e->world_size, "sends_bytes", (json_int_t)e->sends_bytes, "redundancy", e->redundancy,
        "time", dpt_wall_seconds());
    return write_json(object, dir, "events.jsonl", true, err);
}

enum dpt_status dpt_runlog_summary(const char *dir, const struct dpt_summary *s,
                                   struct dpt_err *err)
{
    json_t *loss = isfinite(s->loss) ? json_real(s->loss) : json_null();
    json_t *val_loss = isfinite(s->val_loss) ? json_real(s->val_loss) : json_null();
    json_t *object = json_pack(
        "{s:s, s:I, s:I, s:o, s:o, s:I, s:f, s:s, s:I, s:I, s:i, s:I, s:f}", "run", s->run,
        "start_step", (json_int_t)s->start_step, "steps", (json_int_t)s->steps, "loss", loss,
        "val_loss", val_loss, "tokens", (json_int_t)s->tokens, "tokens_per_s", s->tokens_per_s,
        "weights_hash", s->weights_hash, "generations", (json_int_t)s->generations, "steps_lost",
        (json_int_t)s->steps_lost, "world_size", s->world_size, "peak_bytes_per_rank",
        (json_int_t)s->peak_bytes_per_rank, "time", dpt_wall_seconds());
    return write_json(object, dir, "summary.json", false, err);
}

static json_t *use_json(int64_t bytes, int64_t peak)
{
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)bytes, "peak", (json_int_t)peak);
}

static json_t *tags_json(const struct dpt_memory_record *m)
{
    json_t *tags = json_object();
    for (int i = 0; tags && i < DPT_MEMORY_COUNT; i++) {
        json_t *tag =
            json_pack("{s:I, s:I, s:I}", "bytes", (json_int_t)m->use.tag[i], "peak",
                      (json_int_t)m->use.tag_peak[i], "formula", (json_int_t)m->formula[i]);
        if (json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)i), tag) != 0) {
            json_decref(tags);
            return NULL;
        }
    }
    return tags;
}

/* Of the accelerator, tag by tag. */
static json_t *device_json(const struct dpt_memory_record *m)
{
    json_t *device = use_json(m->device.all, m->device.all_peak), *tags = json_object();
    for (int i = 0; tags && i < DPT_MEMORY_COUNT; i++)
        if (json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)i),
                                use_json(m->device.tag[i], m->device.tag_peak[i])) != 0) {
            json_decref(tags);
            tags = NULL;
        }
    if (json_object_set_new(device, "tags", tags) == 0)
        return device;
    json_decref(device);
    return NULL;
}

/* node-NODE below the run's folder, made if need be. */
static enum dpt_status node_folder(const char *dir, const char *node, char *ret, size_t ret_bytes,
                                   struct dpt_err *err)
{
    char name[DPT_CONFIG_NAME_BYTES + 16];
    (void)snprintf(name, sizeof name, "node-%s", node);
    DPT_TRY(dpt_fs_join(dir, name, ret, ret_bytes, err));
    return dpt_fs_mkdirs(ret, err);
}

enum dpt_status dpt_runlog_memory(const char *dir, const struct dpt_memory_record *m,
                                  struct dpt_err *err)
{
    char folder[DPT_CONFIG_PATH_BYTES + 32], name[DPT_CONFIG_NAME_BYTES + 64];
    int64_t formula = 0;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        formula += m->formula[i];
    DPT_TRY(node_folder(dir, m->node, folder, sizeof folder, err));
    (void)snprintf(name, sizeof name, "rank-%d.memory.json", m->local_rank);
    json_t *object = json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:o}",
        "node", m->node, "local_rank", m->local_rank, "rank", m->rank, "world_size", m->world_size,
        "strategy", m->strategy, "parameters", (json_int_t)m->parameters, "elements",
        (json_int_t)m->elements, "tags", tags_json(m), "counted",
        use_json(m->use.all, m->use.all_peak), "reserved",
        use_json(m->use.reserved, m->use.reserved_peak), "after_first_step",
        (json_int_t)m->after_first_step, "formula", (json_int_t)formula, "bound",
        (json_int_t)m->bound, "process_peak", (json_int_t)m->process.peak, "process_resident",
        (json_int_t)m->process.resident, "process_at_start", (json_int_t)m->process_at_start,
        "anon", (json_int_t)m->process.anon, "file", (json_int_t)m->process.file, "shared",
        (json_int_t)m->process.shared, "shared_own", (json_int_t)m->shared_own, "device",
        device_json(m));
    return write_json(object, folder, name, false, err);
}

static json_t *ms_json(double ms)
{
    return isfinite(ms) ? json_real(ms) : json_null();
}

static json_t *op_times_json(const struct dpt_op_times *t)
{
    json_t *classes = json_object();
    double busy_ms = 0;
    for (int i = 0; i < DPT_OP_CLASSES; i++) {
        busy_ms += t->ms[i];
        if (t->calls[i] > 0)
            json_object_set_new(
                classes, dpt_op_class_name((enum dpt_op_class)i),
                json_pack("{s:o, s:I}", "ms", ms_json(t->ms[i]), "calls", (json_int_t)t->calls[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "busy_ms", ms_json(busy_ms), "idle_ms", ms_json(t->idle_ms),
                     "classes", classes);
}

enum dpt_status dpt_runlog_op_times(const char *dir, const struct dpt_op_times_record *record,
                                    struct dpt_err *err)
{
    char folder[DPT_CONFIG_PATH_BYTES + 32], name[64];
    DPT_TRY(node_folder(dir, record->node, folder, sizeof folder, err));
    (void)snprintf(name, sizeof name, "rank-%d.op_times.json", record->local_rank);
    json_t *object =
        json_pack("{s:s, s:i, s:i, s:i, s:I, s:o, s:o}", "node", record->node, "local_rank",
                  record->local_rank, "rank", record->rank, "world_size", record->world_size,
                  "steps", (json_int_t)record->steps, "host", op_times_json(&record->host),
                  "device", record->has_device ? op_times_json(&record->device) : json_null());
    return write_json(object, folder, name, false, err);
}

enum dpt_status dpt_runlog_evaluation(const char *dir, const char *run,
                                      const struct dpt_eval_record *e, const char *weights_hash,
                                      struct dpt_err *err)
{
    json_t *loss = isfinite(e->val_loss) ? json_real(e->val_loss) : json_null();
    double perplexity = exp(e->val_loss);
    json_t *object =
        json_pack("{s:s, s:I, s:o, s:o, s:I, s:o, s:s, s:I, s:i, s:f}", "run", run, "step",
                  (json_int_t)e->step, "val_loss", loss, "perplexity",
                  isfinite(perplexity) ? json_real(perplexity) : json_null(), "val_tokens",
                  (json_int_t)e->tokens, "val_ms", isfinite(e->ms) ? json_real(e->ms) : json_null(),
                  "weights_hash", weights_hash, "generation", (json_int_t)e->generation,
                  "world_size", e->world_size, "time", dpt_wall_seconds());
    return write_json(object, dir, "evaluation.json", false, err);
}

/* The step of one line, -1 if it is not a whole record. */
static int64_t step_of(const char *line, size_t bytes, bool *ret_evaluation)
{
    json_t *object = json_loadb(line, bytes, 0, NULL);
    json_t *step = object ? json_object_get(object, "step") : NULL;
    int64_t value = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    *ret_evaluation = value >= 0 && json_object_get(object, "val_loss") != NULL;
    json_decref(object);
    return value;
}

/* The step of the last whole record in the text, which may hold any bytes: a machine that lost
 * power leaves zeros. */
static int64_t last_step_in(const char *text, size_t bytes, bool *ret_evaluation)
{
    int64_t last = -1;
    *ret_evaluation = false;
    const char *end = memrchr(text, '\n', bytes);
    while (end && last < 0) {
        const char *before = memrchr(text, '\n', (size_t)(end - text));
        const char *line = before ? before + 1 : text;
        last = step_of(line, (size_t)(end - line), ret_evaluation);
        end = before;
    }
    return last;
}

enum dpt_status dpt_runlog_last_step(const char *dir, int64_t *ret_step, bool *ret_evaluation,
                                     struct dpt_err *err)
{
    bool evaluation = false;
    char path[DPT_CONFIG_PATH_BYTES + 32], tail[RECORD_BYTES_MAX];
    DPT_TRY(dpt_fs_join(dir, "metrics.jsonl", path, sizeof path, err));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *ret_step = -1;
        if (ret_evaluation)
            *ret_evaluation = false;
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
        bytes = st.st_size < RECORD_BYTES_MAX ? (size_t)st.st_size : (size_t)RECORD_BYTES_MAX;
        status = dpt_fs_pread_all(fd, tail, bytes, st.st_size - (int64_t)bytes, path, err);
    }
    (void)close(fd);
    DPT_TRY(status);
    *ret_step = last_step_in(tail, bytes, &evaluation);
    if (ret_evaluation)
        *ret_evaluation = evaluation;
    return DPT_OK;
}
