/* dpt-bench memory: the memory of ranks under each strategy, by formula, by dpt's own count, and by
 * the kernel. Real ranks in real processes train for some steps.
 *
 *   estimate    one copy of parameters, gradients and both moments in fp32: the usual estimate
 *   formula     worker/strategy/memory/memory_formula.h, for this rank; bound: its closed form
 *   counted     peak of the allocations, by tag
 *   reserved    peak of the memory that dpt took from the system for its allocations
 *   true peak   VmHWM less the pages of other ranks' shared memory, which this process only reads
 *   base        true peak - counted of a rank of the smallest model: the program, its libraries
 *   difference  true peak - counted - base: memory that is not accounted for
 *
 * Weights are not packed (cluster.pack_weights), except in rows named +packed.
 *
 * With --plan no program is started: the bench prints the formulas for worlds of any size, with
 * packed weights where the config has them. */
#include "worker/bench/bench.h"
#include "worker/bench/bench_memory_plan.h"
#include "worker/bench/bench_memory_run.h"
#include "worker/bench/memory_record.h"
#include "worker/bench/programs.h"

#include "base/account.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ESTIMATE_BYTES = 4 };

static const char *const smallest = "n_layer: 1, n_head: 1, n_embd: 8, context: 8, vocab: 256";

static const struct strategy {
    const char *name, *section;
    bool two_nodes, /* the strategy needs two nodes */
        packed;
} strategies[] = {
    {"ddp", "name: ddp", false, false},
    {"ddp+packed", "name: ddp", false, true},
    {"dp", "name: dp", false, false},
    {"zero1", "name: zero1", false, false},
    {"zero2", "name: zero2", false, false},
    {"zero3", "name: zero3", false, false},
    {"full_shard", "name: fsdp, sharding: full_shard", false, false},
    {"shard_grad_op", "name: fsdp, sharding: shard_grad_op", false, false},
    {"no_shard", "name: fsdp, sharding: no_shard", false, false},
    {"hybrid_shard", "name: fsdp, sharding: hybrid_shard", true, false},
    {"full_shard+shadow", "name: fsdp, sharding: full_shard, redundancy: shadow", true, false},
    {"zero2+shadow", "name: zero2, redundancy: shadow", true, false},
};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

static struct {
    const char *model, *only, *precision, *accumulate;
    struct dpt_bench_list worlds;
    int64_t batch, seq, slots, steps;
    struct memory_plan plan;
} args = {.model = "preset: gpt2-124m",
          .precision = "fp32",
          .accumulate = "auto",
          .worlds = {.min = 1, .max = MEM_RANKS_MAX, .n = 1, .values = {2}},
          .batch = 1,
          .seq = 64,
          .slots = 4,
          .steps = 3};

/* Parses "2x8,16x8": numbers of nodes and of ranks per node. */
static enum dpt_status set_shapes(void *ctx, const char *value, struct dpt_err *err)
{
    struct memory_plan *plan = ctx;
    for (const char *at = value;; at++) {
        int used = 0, *shape = plan->shapes[plan->n_shapes];
        if (plan->n_shapes++ == MEMORY_PLAN_SHAPES_MAX ||
            sscanf(at, "%4dx%4d%n", &shape[0], &shape[1], &used) != 2 || shape[0] < 1 ||
            shape[1] < 1 || shape[0] * shape[1] > MEMORY_PLAN_RANKS_MAX)
            break;
        at += used;
        if (*at == '\0')
            return DPT_OK;
        if (*at != ',')
            break;
    }
    return dpt_fail(err, DPT_EINVAL,
                    "expected at most %d worlds as NODESxRANKS, of at most %d ranks each, got "
                    "'%.40s'",
                    MEMORY_PLAN_SHAPES_MAX, MEMORY_PLAN_RANKS_MAX, value);
}

static const struct dpt_option options[] = {
    {"--strategies", "NAME,...", "rows of the table: ddp, ddp+packed, zero1, … (all)",
     .text = &args.only},
    {"--worlds", "N,...", "ranks; each number in turn; two nodes take even numbers only (2)",
     .set = dpt_bench_set_list, .ctx = &args.worlds},
    {"--model", "KEYS", "keys of the config's section model (preset: gpt2-124m)",
     .text = &args.model},
    {"--precision", "fp32|bf16|fp16", "train.precision (fp32)", .text = &args.precision},
    {"--accumulate", "auto|local|reduce", "train.accumulate (auto)", .text = &args.accumulate},
    {"--batch", "N", "train.micro_batch (1)", .number = &args.batch, .min = 1, .max = 1024},
    {"--seq", "N", "train.seq_len (64)", .number = &args.seq, .min = 1, .max = 8192},
    {"--slots", "N", "micro-batches of a step (4)", .number = &args.slots, .min = 1, .max = 1024},
    {"--steps", "N", "train.steps (3)", .number = &args.steps, .min = 1, .max = 100000},
    {"--plan", "NODESxRANKS,...", "starts nothing: computes the memory of these worlds",
     .set = set_shapes, .ctx = &args.plan},
    {"--config", "FILE", "with --plan: the config (the defaults)", .text = &args.plan.config},
    {"--set", "KEY=VALUE", "with --plan: changes a key of the config; repeatable",
     .set = dpt_bench_add_set, .ctx = &args.plan.sets}};

static void print_estimate(int64_t parameters)
{
    const double one = dpt_mib(parameters * ESTIMATE_BYTES);
    printf("estimate, one copy in fp32 of %lld parameters: parameters %.2f MiB + gradients %.2f "
           "MiB + optimizer %.2f MiB = %.2f MiB\n\n",
           (long long)parameters, one, one, 2 * one, 4 * one);
}

static void print_ranks(const char *name, const json_t *ranks, int64_t base)
{
    size_t i;
    const json_t *rank;
    json_array_foreach(ranks, i, rank)
    {
        const int64_t counted = memory_record_bytes(rank, "counted", "peak"),
                      peak = memory_record_true_peak(rank),
                      formula = memory_record_bytes(rank, "formula", NULL);
        printf("%-18s %5lld %4zu %9.1f %9.1f %9.1f %+6.2f%% %9.1f %9.1f %7.1f %+10.1f %+6.1f%%\n",
               i == 0 ? name : "", (long long)memory_record_bytes(rank, "world_size", NULL), i,
               dpt_mib(memory_record_bytes(rank, "bound", NULL)), dpt_mib(formula),
               dpt_mib(counted), 100.0 * (double)(counted - formula) / (double)formula,
               dpt_mib(memory_record_bytes(rank, "reserved", "peak")), dpt_mib(peak), dpt_mib(base),
               dpt_mib(peak - counted - base),
               100.0 * (double)(peak - formula - base) / (double)(formula + base));
    }
}

/* "Allocated vs Estimated" of rank 0 of each run. */
static void print_categories(const json_t *runs)
{
    size_t i;
    const json_t *run;
    json_array_foreach(runs, i, run)
    {
        const json_t *rank = json_array_get(json_object_get(run, "ranks"), 0);
        printf("\n%s, %lld ranks, rank 0: ", json_string_value(json_object_get(run, "strategy")),
               (long long)memory_record_bytes(rank, "world_size", NULL));
        memory_record_print(rank);
    }
}

static void print_tags(const json_t *runs)
{
    size_t i;
    const json_t *run;
    printf("\ncounted by tag, rank 0, MiB at most (formula)\n");
    json_array_foreach(runs, i, run)
    {
        const json_t *rank = json_array_get(json_object_get(run, "ranks"), 0);
        const json_t *tags = json_object_get(rank, "tags");
        printf("%s, %lld ranks:", json_string_value(json_object_get(run, "strategy")),
               (long long)memory_record_bytes(rank, "world_size", NULL));
        for (int t = 0; t < DPT_MEMORY_COUNT; t++) {
            const char *name = dpt_memory_tag_name((enum dpt_memory_tag)t);
            const int64_t peak = memory_record_bytes(tags, name, "peak"),
                          formula = memory_record_bytes(tags, name, "formula");
            if (peak > 0 || formula > 0)
                printf("  %s %.1f (%.1f)", name, dpt_mib(peak), dpt_mib(formula));
        }
        printf("\n");
    }
}

static enum dpt_status add_run(json_t *runs, const char *strategy, json_t *ranks,
                               struct dpt_err *err)
{
    json_t *run = json_pack("{s:s, s:o}", "strategy", strategy, "ranks", ranks);
    if (!run || json_array_append_new(runs, run) != 0)
        return dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    return DPT_OK;
}

/* All runs of one call of the bench. */
struct session {
    const char *dir; /* of the runs' files */
    int64_t base;    /* memory of a rank outside dpt's allocations */
    json_t *runs;
};

static enum dpt_status run_strategy(const struct session *session, const struct strategy *s,
                                    int world, struct dpt_err *err)
{
    char name[64];
    json_t *ranks = NULL, *runs = session->runs;
    const struct memory_run run = {.model = args.model,
                                   .strategy = s->section,
                                   .precision = args.precision,
                                   .accumulate = args.accumulate,
                                   .packed = s->packed,
                                   .nodes = s->two_nodes ? 2 : 1,
                                   .world = world,
                                   .batch = (int)args.batch,
                                   .seq = (int)args.seq,
                                   .slots = (int)args.slots,
                                   .steps = (int)args.steps};
    (void)snprintf(name, sizeof name, "%s-%d", s->name, world);
    DPT_TRY(memory_run(&run, session->dir, name, &ranks, err));
    if (json_array_size(runs) == 0) {
        print_estimate(memory_record_bytes(json_array_get(ranks, 0), "parameters", NULL));
        printf("MiB, %s; of the formula and of the peak\n", args.precision);
        printf("%-18s %5s %4s %9s %9s %9s %7s %9s %9s %7s %10s %7s\n", "strategy", "world", "rank",
               "bound", "formula", "counted", "", "reserved", "true peak", "base", "difference",
               "");
    }
    print_ranks(s->name, ranks, session->base);
    (void)fflush(stdout);
    return add_run(runs, s->name, ranks, err);
}

static enum dpt_status fail_without_rows(struct dpt_err *err)
{
    char names[256] = "";
    for (int s = 0; s < STRATEGIES; s++) {
        const size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, " %s", strategies[s].name);
    }
    return dpt_fail(err, DPT_ECONFIG,
                    "none of the strategies that --strategies names can run in "
                    "these worlds; there are%s",
                    names);
}

/* Measures the memory of a rank outside dpt's allocations, by a run of the smallest model. */
static enum dpt_status measure_base(const char *dir, int64_t *ret, struct dpt_err *err)
{
    json_t *ranks = NULL;
    const struct memory_run run = {.model = smallest,
                                   .strategy = strategies[0].section,
                                   .precision = "fp32",
                                   .accumulate = "auto",
                                   .nodes = 1,
                                   .world = 2,
                                   .batch = 1,
                                   .seq = 8,
                                   .slots = 2,
                                   .steps = 3};
    DPT_TRY(memory_run(&run, dir, "empty", &ranks, err));
    const json_t *rank = json_array_get(ranks, 0);
    *ret = memory_record_true_peak(rank) - memory_record_bytes(rank, "counted", "peak");
    json_decref(ranks);
    return DPT_OK;
}

/* False: the strategy is not asked for, or cannot have this world. */
static bool is_wanted(const struct strategy *s, int64_t world)
{
    return dpt_bench_is_listed(args.only, s->name) && (world % 2 == 0 || !s->two_nodes);
}

static enum dpt_status run_strategies(const char *dir, json_t **ret, struct dpt_err *err)
{
    struct session session = {.dir = dir};
    DPT_TRY(measure_base(dir, &session.base, err));
    json_t *runs = session.runs = json_array();
    enum dpt_status status = DPT_OK;
    for (int s = 0; s < STRATEGIES; s++)
        for (int w = 0; status == DPT_OK && w < args.worlds.n; w++)
            if (is_wanted(&strategies[s], args.worlds.values[w]))
                status = run_strategy(&session, &strategies[s], (int)args.worlds.values[w], err);
    if (status == DPT_OK && json_array_size(runs) == 0)
        status = fail_without_rows(err);
    if (status == DPT_OK) {
        print_categories(runs);
        print_tags(runs);
        *ret = json_pack(
            "{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:O}", "bench", "memory", "model",
            args.model, "precision", args.precision, "accumulate", args.accumulate, "batch",
            (json_int_t)args.batch, "seq", (json_int_t)args.seq, "slots", (json_int_t)args.slots,
            "steps", (json_int_t)args.steps, "base_bytes", (json_int_t)session.base, "runs", runs);
    }
    json_decref(runs);
    return status;
}

static enum dpt_status plan_strategies(json_t **ret, struct dpt_err *err)
{
    json_t *rows = json_array();
    enum dpt_status status = DPT_OK;
    for (int s = 0; status == DPT_OK && s < STRATEGIES; s++)
        if (!strategies[s].packed && dpt_bench_is_listed(args.only, strategies[s].name))
            status =
                memory_plan_add(&args.plan, strategies[s].name, strategies[s].section, rows, err);
    if (status == DPT_OK && json_array_size(rows) == 0)
        status = fail_without_rows(err);
    if (status == DPT_OK)
        *ret = json_pack("{s:s, s:s?, s:O}", "bench", "memory-plan", "config", args.plan.config,
                         "rows", rows);
    json_decref(rows);
    return status;
}

static enum dpt_status run_memory(json_t **ret_report, struct dpt_err *err)
{
    char dir[DPT_BENCH_DIR_BYTES];
    if (args.plan.n_shapes > 0)
        return plan_strategies(ret_report, err);
    if (args.plan.config || args.plan.sets.n > 0)
        return dpt_fail(err, DPT_EINVAL, "--config and --set need --plan");
    DPT_TRY(dpt_bench_dir_create(NULL, "memory", dir, err));
    enum dpt_status status = bench_programs_begin(err);
    if (status == DPT_OK)
        status = run_strategies(dir, ret_report, err);
    dpt_bench_dir_remove(dir);
    return status;
}

const struct dpt_bench dpt_bench_memory = {
    .name = "memory",
    .help = "the memory of ranks by strategy: by formula, by dpt's count, by the kernel",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_memory};
