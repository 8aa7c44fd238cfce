/* The config and the runs of one strategy for `dpt-bench strategies`. */
#include "worker/bench/bench_strategies.h"

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

enum dpt_status strategies_run(const struct strategies_bench *b,
                               const struct strategies_strategy *s, int number,
                               struct measured *ret, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES + 64], text[2048];
    (void)snprintf(dir, sizeof dir, "%s/%s-%d", b->dir, s->label, number);
    strategies_config_text(b, s->name, s->sharding, s->nodes, text);
    const struct measured_run run = {.dir = dir,
                                     .text = text,
                                     .nodes = s->nodes,
                                     .hosts = (int)b->args.hosts,
                                     .warmup = ST_WARMUP_STEPS,
                                     .steps = (int)b->args.steps,
                                     .timeout_ms = RUN_TIMEOUT_MS};
    return dpt_wrap(err, measured_run(&run, ret, err), "strategy %s", s->label);
}
