/* Starts the programs, waits for their end, reads the ranks' reports. */
#include "worker/bench/bench_memory_run.h"

#include "base/clock.h"
#include "base/fs.h"
#include "worker/bench/programs.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 100 * 1000, SERVER = MEM_NODES_MAX };

struct cluster {
    char dir[BENCH_PATH_BYTES / 2];
    int port;
    pid_t pids[MEM_NODES_MAX + 1]; /* of the nodes, last of the server; 0: not started */
};

static enum dpt_status write_files(const struct cluster *c, const struct mem_run *run,
                                   struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES], yaml[4096];
    (void)snprintf(path, sizeof path, "%s/text", c->dir);
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    const int bytes = snprintf(
        yaml, sizeof yaml,
        "run: memory\n"
        "cluster: {nnodes: %d, gpus_per_node: %d, device: cpu, threads: 1, timeout_s: 60, "
        "pack_weights: %s}\n"
        "model: {%s}\n"
        "data: {kind: text, train: \"%s/text\", tokenizer: bytes}\n"
        "train: {steps: %d, global_batch: %d, micro_batch: %d, seq_len: %d, precision: %s, "
        "accumulate: %s, log_every: 1}\n"
        "optimizer: {warmup_steps: 0}\n"
        "strategy: {%s}\n"
        "checkpoint: {dir: null, every_steps: 0}\n"
        "log: {dir: \"%s/log\"}\n",
        run->nodes, run->world / run->nodes, run->packed ? "on" : "off", run->model, c->dir,
        run->steps, run->batch * run->slots, run->batch, run->seq, run->precision, run->accumulate,
        run->strategy, c->dir);
    if (bytes >= (int)sizeof yaml)
        return dpt_fail(err, DPT_EOVERFLOW, "the config is too long");
    (void)snprintf(path, sizeof path, "%s/config.yaml", c->dir);
    return dpt_fs_write_file_atomic(path, yaml, (size_t)bytes, err);
}

static enum dpt_status start_node(struct cluster *c, int i, struct dpt_err *err)
{
    char program[BENCH_PATH_BYTES], config[BENCH_PATH_BYTES], log[BENCH_PATH_BYTES];
    char endpoint[32], id[16], group[64];
    DPT_TRY(bench_program_find("dpt-worker", program, err));
    (void)snprintf(config, sizeof config, "%s/config.yaml", c->dir);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", c->port);
    (void)snprintf(id, sizeof id, "n%d", i);
    (void)snprintf(group, sizeof group, "cluster.host_group=n%d", i);
    char *const argv[] = {program,           "--config", config,  "--node-id", id,
                          "--rdzv-endpoint", endpoint,   "--set", group,       NULL};
    (void)snprintf(log, sizeof log, "%s/program-%d.log", c->dir, i);
    return bench_program_start(argv, log, &c->pids[i], err);
}

/* Waits for the end of every node; all must exit with 0. */
static enum dpt_status await_nodes(struct cluster *c, int nodes, struct dpt_err *err)
{
    const int64_t deadline = dpt_now_ms() + MEM_RUN_MS;
    for (int i = 0; i < nodes; i++) {
        int status = 0;
        DPT_TRY(bench_program_wait(c->pids[i], deadline, &status, err));
        c->pids[i] = 0;
        if (status != 0)
            return dpt_fail(err, DPT_EPEER,
                            "worker n%d ended with status 0x%x: see %s/program-%d.log", i, status,
                            c->dir, i);
    }
    return DPT_OK;
}

static void end_programs(struct cluster *c)
{
    for (int i = 0; i <= SERVER; i++)
        bench_program_kill(&c->pids[i]);
}

static enum dpt_status read_ranks(const struct cluster *c, const struct mem_run *run,
                                  json_t **ret_ranks, struct dpt_err *err)
{
    json_t *by_rank[MEM_RANKS_MAX] = {NULL}, *ranks = json_array();
    enum dpt_status status = ranks ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    for (int i = 0; status == DPT_OK && i < run->world; i++) {
        char path[BENCH_PATH_BYTES];
        json_error_t why;
        const int each = run->world / run->nodes;
        (void)snprintf(path, sizeof path, "%s/log/node-n%d/rank-%d.memory.json", c->dir, i / each,
                       i % each);
        json_t *rank = json_load_file(path, 0, &why);
        const json_int_t number = json_integer_value(json_object_get(rank, "rank"));
        if (!rank || number < 0 || number >= run->world || by_rank[number])
            status = dpt_fail(err, DPT_ECORRUPT, "'%s': %s", path, rank ? "odd rank" : why.text);
        if (status == DPT_OK)
            by_rank[number] = rank;
        else
            json_decref(rank);
    }
    for (int i = 0; i < MEM_RANKS_MAX; i++)
        if (status == DPT_OK && by_rank[i] && json_array_append(ranks, by_rank[i]) != 0)
            status = dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    for (int i = 0; i < MEM_RANKS_MAX; i++)
        json_decref(by_rank[i]);
    if (status != DPT_OK)
        json_decref(ranks);
    else
        *ret_ranks = ranks;
    return status;
}

enum dpt_status mem_run(const struct mem_run *run, const char *dir, const char *name,
                        json_t **ret_ranks, struct dpt_err *err)
{
    struct cluster c = {.port = 0};
    DPT_ASSERT(run->world <= MEM_RANKS_MAX && run->nodes <= MEM_NODES_MAX &&
               run->world % run->nodes == 0);
    DPT_TRY(dpt_fs_join(dir, name, c.dir, sizeof c.dir, err));
    DPT_TRY(dpt_fs_mkdirs(c.dir, err));
    DPT_TRY(write_files(&c, run, err));
    enum dpt_status status = bench_server_start(c.dir, &c.pids[SERVER], &c.port, err);
    for (int i = 0; status == DPT_OK && i < run->nodes; i++)
        status = start_node(&c, i, err);
    if (status == DPT_OK)
        status = await_nodes(&c, run->nodes, err);
    end_programs(&c);
    return status == DPT_OK ? read_ranks(&c, run, ret_ranks, err) : status;
}
