/* Writes the config, starts the programs, reads their results (measured_run.h). */
#include "worker/bench/measured_run.h"

#include "base/fs.h"
#include "base/median.h"
#include "worker/bench/bench.h"
#include "worker/bench/programs.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_BYTES = 4096 };

/* The figures of one node's metrics.jsonl. */
struct node_steps {
    int n, n_losses; /* measured steps; all steps */
    double step_ms[MEASURED_STEPS_MAX];
    double losses[MEASURED_LOSSES_MAX];
    double sent[MEASURED_STEPS_MAX]; /* bytes */
};

static double real_of(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static enum dpt_status take_line(json_t *line, int warmup, struct node_steps *s,
                                 struct dpt_err *err)
{
    json_int_t step, sent;
    double step_ms;
    if (json_object_get(line, "val_loss") || json_object_get(line, "epoch"))
        return DPT_OK;
    if (json_unpack(line, "{s:I, s:F, s:I}", "step", &step, "step_ms", &step_ms, "sent_bytes",
                    &sent) != 0)
        return dpt_fail(err, DPT_EPROTO, "a line of metrics.jsonl without the figures of a step");
    if (s->n_losses < MEASURED_LOSSES_MAX)
        s->losses[s->n_losses++] = real_of(json_object_get(line, "loss"));
    if (step <= warmup || s->n == MEASURED_STEPS_MAX)
        return DPT_OK;
    s->step_ms[s->n] = step_ms;
    s->sent[s->n++] = (double)sent;
    return DPT_OK;
}

static enum dpt_status read_steps(const char *path, const struct measured_run *run,
                                  struct node_steps *ret, struct dpt_err *err)
{
    char line[LINE_BYTES];
    enum dpt_status status = DPT_OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return dpt_fail(err, DPT_ENOENT, "there is no '%s'", path);
    *ret = (struct node_steps){0};
    while (status == DPT_OK && fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        status = take_line(object, run->warmup, ret, err);
        json_decref(object);
    }
    (void)fclose(f);
    if (status == DPT_OK && ret->n != run->steps)
        return dpt_fail(err, DPT_EPROTO, "'%s' has %d steps of %d", path, ret->n, run->steps);
    return status;
}

/* The bytes that the plan sends, from the first line of events.jsonl, which belongs to the only
 * generation of the run. */
static enum dpt_status read_plan(const char *path, int64_t *ret_sends, struct dpt_err *err)
{
    json_error_t error;
    json_t *event = json_load_file(path, JSON_DISABLE_EOF_CHECK, &error);
    json_t *sends = json_object_get(event, "sends_bytes");
    const bool there = json_is_integer(sends);
    if (there)
        *ret_sends = (int64_t)json_integer_value(sends);
    json_decref(event);
    return there ? DPT_OK : dpt_fail(err, DPT_EPROTO, "'%s' does not say what is sent", path);
}

static enum dpt_status read_summary(const char *path, struct measured *m, struct dpt_err *err)
{
    json_error_t error;
    json_t *summary = json_load_file(path, 0, &error);
    const char *hash;
    enum dpt_status status = DPT_OK;
    if (json_unpack(summary, "{s:s, s:i}", "weights_hash", &hash, "world_size", &m->world_size) !=
        0) {
        json_decref(summary);
        return dpt_fail(err, DPT_EPROTO, "'%s' is no summary of a run", path);
    }
    m->loss = real_of(json_object_get(summary, "loss"));
    if (m->hash[0] && strcmp(m->hash, hash) != 0)
        status = dpt_fail(err, DPT_ECORRUPT, "ranks of one run end with %s and %s", m->hash, hash);
    (void)snprintf(m->hash, sizeof m->hash, "%s", hash);
    json_decref(summary);
    return status;
}

static void keep_larger(int64_t *kept, json_int_t value)
{
    if ((int64_t)value > *kept)
        *kept = (int64_t)value;
}

/* Reads a rank's account of its memory; `m` keeps the largest figures. */
static enum dpt_status read_memory(const char *path, struct measured *m, struct dpt_err *err)
{
    json_error_t error;
    json_t *account = json_load_file(path, 0, &error);
    json_int_t held, holds, peak, shared, shared_own, device;
    const bool good =
        json_unpack(account, "{s:{s:I}, s:I, s:I, s:I, s:I, s:{s:I}}", "counted", "peak", &held,
                    "formula", &holds, "process_peak", &peak, "shared", &shared, "shared_own",
                    &shared_own, "device", "peak", &device) == 0;
    json_decref(account);
    if (!good)
        return dpt_fail(err, DPT_EPROTO, "'%s' is no account of a rank's memory", path);
    if ((int64_t)held > m->held_bytes) {
        m->held_bytes = (int64_t)held;
        m->holds_bytes = (int64_t)holds;
    }
    keep_larger(&m->peak_bytes, peak);
    keep_larger(&m->own_bytes, peak - (shared > shared_own ? shared - shared_own : 0));
    keep_larger(&m->device_bytes, device);
    return DPT_OK;
}

/* Adds the waits of a rank to the sums of each step; end_waits makes means of them. */
static enum dpt_status add_waits(const json_t *times, const struct measured_run *run, bool first,
                                 struct measured *m)
{
    const json_t *steps = json_object_get(times, "step");
    double waited_ms = 0, total_ms = 0;
    int n = 0;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_int_t step = json_integer_value(json_array_get(steps, i));
        const double ms = real_of(json_array_get(json_object_get(times, "step_ms"), i)),
                     wait_ms = real_of(json_array_get(json_object_get(times, "wait_ms"), i));
        if (step <= run->warmup)
            continue;
        if (step != run->warmup + ++n || n > run->steps || isnan(ms) || isnan(wait_ms))
            return DPT_EPROTO;
        if (first || wait_ms < m->exposed_ms[n - 1])
            m->exposed_ms[n - 1] = wait_ms;
        m->late_ms[n - 1] += wait_ms;
        waited_ms += wait_ms;
        total_ms += ms;
    }
    m->wait_share += waited_ms / total_ms;
    return n == run->steps ? DPT_OK : DPT_EPROTO;
}

static void end_waits(int ranks, struct measured *m)
{
    for (int k = 0; k < m->n; k++)
        m->late_ms[k] = m->late_ms[k] / ranks - m->exposed_ms[k];
    m->wait_share /= ranks;
}

/* Reads the times of a rank's steps. `first`: of the run's first rank. */
static enum dpt_status read_times(const char *path, const struct measured_run *run, bool first,
                                  struct measured *m, struct dpt_err *err)
{
    json_error_t error;
    json_t *times = json_load_file(path, 0, &error);
    const enum dpt_status status = add_waits(times, run, first, m);
    json_decref(times);
    return status == DPT_OK
               ? DPT_OK
               : dpt_fail(err, status, "'%s' has not the times of %d steps", path, run->steps);
}

/* Reads the records of all ranks of node `i`; adds their number to *ranks. */
static enum dpt_status read_ranks(const struct measured_run *run, int i, struct measured *m,
                                  int *ranks, struct dpt_err *err)
{
    for (int r = 0;; r++) {
        char node[BENCH_PATH_BYTES / 2], path[BENCH_PATH_BYTES];
        (void)snprintf(node, sizeof node, "%s/n%d/node-n%d", run->dir, i, i);
        (void)snprintf(path, sizeof path, "%s/rank-%d.memory.json", node, r);
        if (access(path, F_OK) != 0 && errno == ENOENT)
            return DPT_OK;
        DPT_TRY(read_memory(path, m, err));
        (void)snprintf(path, sizeof path, "%s/rank-%d.steps.json", node, r);
        DPT_TRY(read_times(path, run, *ranks == 0, m, err));
        ++*ranks;
    }
}

/* Reads what node `i` wrote. */
static enum dpt_status read_node(const struct measured_run *run, int i, struct measured *m,
                                 int *ranks, struct dpt_err *err)
{
    static struct node_steps steps;
    char path[BENCH_PATH_BYTES];
    int64_t sends = 0;
    (void)snprintf(path, sizeof path, "%s/n%d/metrics.jsonl", run->dir, i);
    DPT_TRY(read_steps(path, run, &steps, err));
    (void)snprintf(path, sizeof path, "%s/n%d/events.jsonl", run->dir, i);
    DPT_TRY(read_plan(path, &sends, err));
    (void)snprintf(path, sizeof path, "%s/n%d/summary.json", run->dir, i);
    DPT_TRY(read_summary(path, m, err));
    DPT_TRY(read_ranks(run, i, m, ranks, err));
    if (i == 0) {
        memcpy(m->step_ms, steps.step_ms, sizeof m->step_ms);
        memcpy(m->losses, steps.losses, sizeof m->losses);
        m->n = steps.n;
        m->n_losses = steps.n_losses;
    }
    const int64_t sent = (int64_t)dpt_median(steps.sent, steps.n);
    if (i == 0 || sent > m->sent_bytes) {
        m->sent_bytes = sent;
        m->sends_bytes = sends;
    }
    return DPT_OK;
}

static enum dpt_status read_nodes(const struct measured_run *run, struct measured *ret,
                                  struct dpt_err *err)
{
    int ranks = 0;
    for (int i = 0; i < run->nodes; i++)
        DPT_TRY(read_node(run, i, ret, &ranks, err));
    if (ranks != ret->world_size)
        return dpt_fail(err, DPT_EPROTO, "'%s' has the records of %d ranks of %d", run->dir, ranks,
                        ret->world_size);
    end_waits(ranks, ret);
    return DPT_OK;
}

static enum dpt_status write_config(const struct measured_run *run, struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/config.yaml", run->dir);
    DPT_TRY(dpt_fs_mkdirs(run->dir, err));
    return run->text ? dpt_fs_write_file_atomic(path, run->text, strlen(run->text), err) : DPT_OK;
}

enum dpt_status measured_run(const struct measured_run *run, struct measured *ret,
                             struct dpt_err *err)
{
    DPT_ASSERT(run->warmup <= MEASURED_WARMUP_MAX && run->steps <= MEASURED_STEPS_MAX);
    *ret = (struct measured){0};
    DPT_TRY(write_config(run, err));
    const struct bench_cluster cluster = {.dir = run->dir,
                                          .config = run->text ? NULL : run->config,
                                          .sets = run->sets,
                                          .n_sets = run->n_sets,
                                          .nodes = run->nodes,
                                          .hosts = run->hosts,
                                          .timeout_ms = run->timeout_ms};
    DPT_TRY(bench_cluster_run(&cluster, err));
    const enum dpt_status status = read_nodes(run, ret, err);
    if (status != DPT_OK) {
        bench_cluster_tell(&cluster);
        return status;
    }
    return dpt_fs_remove_tree(run->dir, err);
}

void measured_keep_hash(const struct measured *run, bool first, char hash[MEASURED_HASH_BYTES])
{
    if (first)
        memcpy(hash, run->hash, MEASURED_HASH_BYTES);
    else if (strcmp(hash, run->hash) != 0)
        hash[0] = '\0';
}
