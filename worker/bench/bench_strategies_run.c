/* One run of one strategy for `dpt-bench strategies`: writes the config, starts the programs, reads
 * their results. */
#include "worker/bench/bench_strategies.h"

#include "base/clock.h"
#include "base/fs.h"
#include "worker/bench/programs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RUN_TIMEOUT_MS = 300 * 1000, ARGS_MAX = 32, ARG_BYTES = 640 };

/* The programs of a run. */
struct programs {
    const struct st_bench *bench;
    const struct st_strategy *strategy;
    char dir[256];
    pid_t server, worker[ST_RANKS_MAX];
    int port;
};

void st_config_text(const struct st_bench *b, const char *name, const char *sharding, int nodes,
                    char ret[2048])
{
    const struct st_args *a = &b->args;
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

static void path_in(const struct programs *p, const char *name, char ret[BENCH_PATH_BYTES])
{
    (void)snprintf(ret, BENCH_PATH_BYTES, "%s/%s", p->dir, name);
}

/* Starts the worker of node `i`. cluster.host_group assigns the nodes to the bench's `hosts`
 * hosts. */
static enum dpt_status start_worker(struct programs *p, int i, struct dpt_err *err)
{
    char config[BENCH_PATH_BYTES], log[BENCH_PATH_BYTES], name[32];
    char text[4][ARG_BYTES];
    path_in(p, "config.yaml", config);
    (void)snprintf(name, sizeof name, "n%d.log", i);
    path_in(p, name, log);
    (void)snprintf(name, sizeof name, "n%d", i);
    (void)snprintf(text[0], ARG_BYTES, "127.0.0.1:%d", p->port);
    (void)snprintf(text[1], ARG_BYTES, "log.dir=%s/%s", p->dir, name);
    (void)snprintf(text[2], ARG_BYTES, "cluster.host_group=h%d",
                   i * (int)p->bench->args.hosts / p->strategy->nodes);
    char *const argv[] = {(char *)(uintptr_t)p->bench->worker,
                          "--config",
                          config,
                          "--node-id",
                          name,
                          "--rdzv-endpoint",
                          text[0],
                          "--set",
                          text[1],
                          "--set",
                          text[2],
                          NULL};
    return bench_program_start(argv, log, &p->worker[i], err);
}

static enum dpt_status start_all(struct programs *p, struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES], text[2048];
    path_in(p, "config.yaml", path);
    st_config_text(p->bench, p->strategy->name, p->strategy->sharding, p->strategy->nodes, text);
    DPT_TRY(dpt_fs_write_file_atomic(path, text, strlen(text), err));
    DPT_TRY(bench_server_start(p->dir, &p->server, &p->port, err));
    for (int i = 0; i < p->strategy->nodes; i++)
        DPT_TRY(start_worker(p, i, err));
    return DPT_OK;
}

static enum dpt_status await_workers(struct programs *p, struct dpt_err *err)
{
    const int64_t deadline = dpt_now_ms() + RUN_TIMEOUT_MS;
    for (int i = 0; i < p->strategy->nodes; i++) {
        int status = 0;
        DPT_TRY(bench_program_wait(p->worker[i], deadline, &status, err));
        p->worker[i] = 0;
        if (status != 0)
            return dpt_fail(err, DPT_EPEER, "worker n%d ended with %s %d", i,
                            WIFEXITED(status) ? "exit code" : "signal",
                            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    return DPT_OK;
}

static void tell(const struct programs *p)
{
    char path[BENCH_PATH_BYTES], name[32];
    path_in(p, "rdzv.log", path);
    bench_program_tell(path);
    for (int i = 0; i < p->strategy->nodes; i++) {
        (void)snprintf(name, sizeof name, "n%d.log", i);
        path_in(p, name, path);
        bench_program_tell(path);
    }
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

static enum dpt_status read_summary(const char *path, struct st_run *run, struct dpt_err *err)
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
static enum dpt_status read_memory(const char *path, struct st_run *run, struct dpt_err *err)
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

static enum dpt_status read_node(const struct programs *p, int i, struct st_run *run,
                                 struct dpt_err *err)
{
    static struct told told;
    char path[BENCH_PATH_BYTES], name[80];
    int64_t sends = 0;
    (void)snprintf(name, sizeof name, "n%d/metrics.jsonl", i);
    path_in(p, name, path);
    DPT_TRY(read_metrics(path, &told, err));
    if (told.n != p->bench->args.steps)
        return dpt_fail(err, DPT_EPROTO, "'%s' has %d steps of %d", path, told.n,
                        (int)p->bench->args.steps);
    (void)snprintf(name, sizeof name, "n%d/events.jsonl", i);
    path_in(p, name, path);
    DPT_TRY(read_plan(path, &sends, err));
    (void)snprintf(name, sizeof name, "n%d/summary.json", i);
    path_in(p, name, path);
    DPT_TRY(read_summary(path, run, err));
    for (int r = 0; r < (int)p->bench->args.ranks / p->strategy->nodes; r++) {
        (void)snprintf(name, sizeof name, "n%d/node-n%d/rank-%d.memory.json", i, i, r);
        path_in(p, name, path);
        DPT_TRY(read_memory(path, run, err));
    }
    if (i == 0) {
        memcpy(run->step_ms, told.step_ms, sizeof run->step_ms);
        run->n_steps = told.n;
    }
    run->wait_share += told.waited_ms / told.total_ms / p->strategy->nodes;
    qsort(told.sent, (size_t)told.n, sizeof *told.sent, compare_sent_bytes);
    if (i == 0 || told.sent[told.n / 2] > run->sent_bytes) {
        run->sent_bytes = told.sent[told.n / 2];
        run->sends_bytes = sends;
    }
    return DPT_OK;
}

enum dpt_status st_run(const struct st_bench *b, const struct st_strategy *s, int number,
                       struct st_run *ret, struct dpt_err *err)
{
    struct programs p = {.bench = b, .strategy = s};
    (void)snprintf(p.dir, sizeof p.dir, "%s/%s-%d", b->dir, s->label, number);
    *ret = (struct st_run){0};
    DPT_TRY(dpt_fs_mkdirs(p.dir, err));
    enum dpt_status status = start_all(&p, err);
    if (status == DPT_OK)
        status = await_workers(&p, err);
    for (int i = 0; i < s->nodes; i++)
        bench_program_kill(&p.worker[i]);
    bench_program_kill(&p.server);
    struct dpt_err later; /* the first error is reported, this one is not */
    const enum dpt_status ended = bench_programs_end(status == DPT_OK ? err : &later);
    if (status == DPT_OK)
        status = ended;
    for (int i = 0; status == DPT_OK && i < s->nodes; i++)
        status = read_node(&p, i, ret, err);
    if (status != DPT_OK) {
        tell(&p);
        return dpt_wrap(err, status, "strategy %s", s->label);
    }
    return dpt_fs_remove_tree(p.dir, err);
}
