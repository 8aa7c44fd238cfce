/* One run of one strategy for `dpt-bench strategies`: writes the config, starts the programs, reads
 * their results. */
#include "worker/bench/bench_strategies.h"

#include "base/fs.h"
#include "worker/bench/programs.h"

#include <stdlib.h>
#include <string.h>

enum { RUN_TIMEOUT_MS = 300 * 1000 };

void strategies_config_text(const struct strategies_bench *b, const char *name,
                            const char *sharding, int nodes, char ret[2048])
{
    const struct strategies_args *a = &b->args;
    char fsdp[64] = "";
    if (sharding[0])
        (void)snprintf(fsdp, sizeof fsdp, ", sharding: %s", sharding);
    (void)snprintf(ret, 2048,
                   "run: strategies\n"
                   "cluster: {nnodes: %d, gpus_per_node: %d, device: cpu, timeout_s: 20}\n"
                   "model: {%s}\n"
                   "data: {kind: text, train: \"%s/text.txt\", tokenizer: bytes}\n"
                   "train: {steps: %d, global_batch: %d, micro_batch: %d, seq_len: %d, "
                   "precision: %s, accumulate: %s, log_every: 1}\n"
                   "optimizer: {name: adamw, lr: 1.0e-3}\n"
                   "strategy: {name: %s%s}\n"
                   "checkpoint: {dir: null}\n",
                   nodes, (int)a->ranks / nodes, a->model, b->dir, (int)a->steps + ST_WARMUP_STEPS,
                   (int)a->global_batch, (int)a->micro_batch, (int)a->seq_len, a->precision,
                   a->accumulate, name, fsdp);
}

/* ---- results ---- */

static int compare_sent_bytes(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Figures from a node's metrics.jsonl, for the steps after the warm-up. */
struct told {
    int n;
    double step_ms[ST_STEPS_MAX], waited_ms, total_ms;
    int64_t sent[ST_STEPS_MAX];
};

static enum dpt_status take_line(json_t *line, struct told *told, struct dpt_err *err)
{
    json_int_t step, sent;
    double step_ms, wait_ms;
    if (json_unpack(line, "{s:I, s:F, s:F, s:I}", "step", &step, "step_ms", &step_ms, "wait_ms",
                    &wait_ms, "sent_bytes", &sent) != 0)
        return dpt_fail(err, DPT_EPROTO, "a line of metrics.jsonl without the figures of a step");
    if (step <= ST_WARMUP_STEPS || told->n == ST_STEPS_MAX)
        return DPT_OK;
    told->step_ms[told->n] = step_ms;
    told->sent[told->n++] = (int64_t)sent;
    told->waited_ms += wait_ms;
    told->total_ms += step_ms;
    return DPT_OK;
}

static enum dpt_status read_metrics(const char *path, struct told *told, struct dpt_err *err)
{
    char line[4096];
    enum dpt_status status = DPT_OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return dpt_fail(err, DPT_ENOENT, "there is no '%s'", path);
    *told = (struct told){0};
    while (status == DPT_OK && fgets(line, sizeof line, f)) {
        json_t *object = json_loads(line, 0, NULL);
        status = take_line(object, told, err);
        json_decref(object);
    }
    (void)fclose(f);
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

static enum dpt_status read_summary(const char *path, struct strategies_run *run,
                                    struct dpt_err *err)
{
    json_error_t error;
    json_t *summary = json_load_file(path, 0, &error);
    const char *hash;
    enum dpt_status status = DPT_OK;
    if (json_unpack(summary, "{s:s, s:F}", "weights_hash", &hash, "loss", &run->loss) != 0) {
        json_decref(summary);
        return dpt_fail(err, DPT_EPROTO, "'%s' is no summary of a run", path);
    }
    if (run->hash[0] && strcmp(run->hash, hash) != 0)
        status =
            dpt_fail(err, DPT_ECORRUPT, "ranks of one run end with %s and %s", run->hash, hash);
    (void)snprintf(run->hash, sizeof run->hash, "%s", hash);
    json_decref(summary);
    return status;
}

/* Reads a rank's account of its memory; `run` keeps the largest figures. */
static enum dpt_status read_memory(const char *path, struct strategies_run *run,
                                   struct dpt_err *err)
{
    json_error_t error;
    json_t *account = json_load_file(path, 0, &error);
    json_int_t held, holds, peak;
    const bool good = json_unpack(account, "{s:{s:I}, s:I, s:I}", "counted", "peak", &held,
                                  "formula", &holds, "process_peak", &peak) == 0;
    json_decref(account);
    if (!good)
        return dpt_fail(err, DPT_EPROTO, "'%s' is no account of a rank's memory", path);
    if ((int64_t)held > run->held_bytes) {
        run->held_bytes = (int64_t)held;
        run->holds_bytes = (int64_t)holds;
    }
    if ((int64_t)peak > run->peak_bytes)
        run->peak_bytes = (int64_t)peak;
    return DPT_OK;
}

/* Reads what node `i` of the run in folder `dir` wrote. */
static enum dpt_status read_node(const struct strategies_bench *b,
                                 const struct strategies_strategy *s, const char *dir, int i,
                                 struct strategies_run *run, struct dpt_err *err)
{
    static struct told told;
    char path[BENCH_PATH_BYTES];
    int64_t sends = 0;
    (void)snprintf(path, sizeof path, "%s/n%d/metrics.jsonl", dir, i);
    DPT_TRY(read_metrics(path, &told, err));
    if (told.n != b->args.steps)
        return dpt_fail(err, DPT_EPROTO, "'%s' has %d steps of %d", path, told.n,
                        (int)b->args.steps);
    (void)snprintf(path, sizeof path, "%s/n%d/events.jsonl", dir, i);
    DPT_TRY(read_plan(path, &sends, err));
    (void)snprintf(path, sizeof path, "%s/n%d/summary.json", dir, i);
    DPT_TRY(read_summary(path, run, err));
    for (int r = 0; r < (int)b->args.ranks / s->nodes; r++) {
        (void)snprintf(path, sizeof path, "%s/n%d/node-n%d/rank-%d.memory.json", dir, i, i, r);
        DPT_TRY(read_memory(path, run, err));
    }
    if (i == 0) {
        memcpy(run->step_ms, told.step_ms, sizeof run->step_ms);
        run->n_steps = told.n;
    }
    run->wait_share += told.waited_ms / told.total_ms / s->nodes;
    qsort(told.sent, (size_t)told.n, sizeof *told.sent, compare_sent_bytes);
    if (i == 0 || told.sent[told.n / 2] > run->sent_bytes) {
        run->sent_bytes = told.sent[told.n / 2];
        run->sends_bytes = sends;
    }
    return DPT_OK;
}

static enum dpt_status write_config(const struct strategies_bench *b,
                                    const struct strategies_strategy *s, const char *dir,
                                    struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES], text[2048];
    (void)snprintf(path, sizeof path, "%s/config.yaml", dir);
    strategies_config_text(b, s->name, s->sharding, s->nodes, text);
    DPT_TRY(dpt_fs_mkdirs(dir, err));
    return dpt_fs_write_file_atomic(path, text, strlen(text), err);
}

enum dpt_status strategies_run(const struct strategies_bench *b,
                               const struct strategies_strategy *s, int number,
                               struct strategies_run *ret, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES + 64];
    (void)snprintf(dir, sizeof dir, "%s/%s-%d", b->dir, s->label, number);
    *ret = (struct strategies_run){0};
    DPT_TRY(write_config(b, s, dir, err));
    const struct bench_cluster cluster = {
        .dir = dir, .nodes = s->nodes, .hosts = (int)b->args.hosts, .timeout_ms = RUN_TIMEOUT_MS};
    DPT_TRY(dpt_wrap(err, bench_cluster_run(&cluster, err), "strategy %s", s->label));
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < s->nodes; i++)
        status = read_node(b, s, dir, i, ret, err);
    if (status != DPT_OK)
        bench_cluster_tell(&cluster);
    DPT_TRY(dpt_wrap(err, status, "strategy %s", s->label));
    return dpt_fs_remove_tree(dir, err);
}
