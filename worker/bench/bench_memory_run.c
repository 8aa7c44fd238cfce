/* Starts the programs, waits for their end, reads the ranks' reports. */
#include "worker/bench/bench_memory_run.h"

#include "base/fs.h"
#include "worker/bench/programs.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 100 * 1000, RUN_MS = 15 * 60 * 1000 };

static enum dpt_status write_files(const char *dir, const struct memory_run *run,
                                   struct dpt_err *err)
{
    char path[BENCH_PATH_BYTES], yaml[4096];
    (void)snprintf(path, sizeof path, "%s/text", dir);
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
        "checkpoint: {dir: null, every_steps: 0}\n",
        run->nodes, run->world / run->nodes, run->packed ? "on" : "off", run->model, dir,
        run->steps, run->batch * run->slots, run->batch, run->seq, run->precision, run->accumulate,
        run->strategy);
    if (bytes >= (int)sizeof yaml)
        return dpt_fail(err, DPT_EOVERFLOW, "the config is too long");
    (void)snprintf(path, sizeof path, "%s/config.yaml", dir);
    return dpt_fs_write_file_atomic(path, yaml, (size_t)bytes, err);
}

static enum dpt_status read_ranks(const char *dir, const struct memory_run *run, json_t **ret_ranks,
                                  struct dpt_err *err)
{
    json_t *by_rank[MEM_RANKS_MAX] = {NULL}, *ranks = json_array();
    enum dpt_status status = ranks ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    for (int i = 0; status == DPT_OK && i < run->world; i++) {
        char path[BENCH_PATH_BYTES];
        json_error_t why;
        const int each = run->world / run->nodes;
        (void)snprintf(path, sizeof path, "%s/n%d/node-n%d/rank-%d.memory.json", dir, i / each,
                       i / each, i % each);
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

enum dpt_status memory_run(const struct memory_run *run, const char *dir, const char *name,
                           json_t **ret_ranks, struct dpt_err *err)
{
    char own[BENCH_PATH_BYTES / 2];
    DPT_ASSERT(run->world <= MEM_RANKS_MAX && run->world % run->nodes == 0);
    DPT_TRY(dpt_fs_join(dir, name, own, sizeof own, err));
    DPT_TRY(dpt_fs_mkdirs(own, err));
    DPT_TRY(write_files(own, run, err));
    const struct bench_cluster cluster = {
        .dir = own, .nodes = run->nodes, .hosts = run->nodes, .timeout_ms = RUN_MS};
    DPT_TRY(bench_cluster_run(&cluster, err));
    const enum dpt_status status = read_ranks(own, run, ret_ranks, err);
    if (status != DPT_OK)
        bench_cluster_tell(&cluster);
    return status;
}
