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
#include "worker/bench/programs.h"

#include "base/account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLDS_MAX = 4, ESTIMATE_BYTES = 4 };

static const char *const smallest = "n_layer: 1, n_head: 1, n_embd: 8, context: 8, vocab: 256";

static const struct strategy {
    const char *name, *section;
    bool two_nodes, /* the strategy needs two nodes */
        packed;
} strategies[] = {
    {"ddp", "name: ddp", false, false},
    {"ddp+packed", "name: ddp", false, true},
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

struct args {
    const char *model, *only, *precision, *accumulate, *json;
    int worlds[WORLDS_MAX], n_worlds;
    int batch, seq, slots, steps;
    struct memory_plan plan;
};

/* Parses "2x8,16x8": numbers of nodes and of ranks per node. */
static bool parse_shapes(const char *text, struct memory_plan *plan)
{
    for (const char *at = text;; at++) {
        int used = 0;
        if (plan->n_shapes == MEMORY_PLAN_SHAPES_MAX)
            return false;
        int *shape = plan->shapes[plan->n_shapes++];
        if (sscanf(at, "%4dx%4d%n", &shape[0], &shape[1], &used) != 2 || shape[0] < 1 ||
            shape[1] < 1 || shape[0] * shape[1] > MEMORY_PLAN_RANKS_MAX)
            return false;
        at += used;
        if (*at != ',')
            return *at == '\0';
    }
}

/* True: the list "a,b,c" has the name. */
static bool is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)) != NULL; at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    return false;
}

static bool misused(const char *arg)
{
    char usage[1024], names[256] = "";
    for (int s = 0; s < STRATEGIES; s++) {
        const size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, " %s", strategies[s].name);
    }
    (void)snprintf(usage, sizeof usage,
                   "usage: dpt-bench memory [--strategies LIST] [--worlds 2,4] "
                   "[--model \"preset: gpt2-124m\"] [--precision fp32|bf16|fp16] "
                   "[--accumulate auto|local|reduce] [--batch 1] [--seq 64] [--slots 4] "
                   "[--steps 3] [--json FILE]\n"
                   "       dpt-bench memory --plan 1x8,16x8 [--config FILE] [--set KEY=VALUE]… "
                   "[--strategies LIST] [--json FILE]\n"
                   "  plan: nodes x ranks of each; works out what ranks would hold, and starts "
                   "nothing\n"
                   "  strategies:%s\n"
                   "  worlds: up to %d ranks; the last three are on two nodes and take even worlds "
                   "only\n",
                   names, MEM_RANKS_MAX);
    return dpt_bench_misused("memory", usage, arg);
}

static bool parse_memory_args(int argc, char **argv, struct args *a)
{
    *a = (struct args){.model = "preset: gpt2-124m",
                       .precision = "fp32",
                       .accumulate = "auto",
                       .worlds = {2},
                       .n_worlds = 1,
                       .batch = 1,
                       .seq = 64,
                       .slots = 4,
                       .steps = 3};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool ok = *value != '\0';
        if (strcmp(argv[i], "--model") == 0)
            a->model = value;
        else if (strcmp(argv[i], "--strategies") == 0)
            a->only = value;
        else if (strcmp(argv[i], "--precision") == 0)
            a->precision = value;
        else if (strcmp(argv[i], "--accumulate") == 0)
            a->accumulate = value;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else if (strcmp(argv[i], "--plan") == 0)
            ok = ok && parse_shapes(value, &a->plan);
        else if (strcmp(argv[i], "--config") == 0)
            a->plan.config = value;
        else if (strcmp(argv[i], "--set") == 0 && a->plan.n_sets < MEMORY_PLAN_SETS_MAX)
            a->plan.sets[a->plan.n_sets++] = value;
        else if (strcmp(argv[i], "--worlds") == 0)
            ok = dpt_bench_parse_ints(value, 1, MEM_RANKS_MAX, WORLDS_MAX, a->worlds, &a->n_worlds);
        else if (strcmp(argv[i], "--batch") == 0)
            ok = dpt_bench_parse_int(value, 1, 1024, &a->batch);
        else if (strcmp(argv[i], "--seq") == 0)
            ok = dpt_bench_parse_int(value, 1, 8192, &a->seq);
        else if (strcmp(argv[i], "--slots") == 0)
            ok = dpt_bench_parse_int(value, 1, 1024, &a->slots);
        else if (strcmp(argv[i], "--steps") == 0)
            ok = dpt_bench_parse_int(value, 1, 100000, &a->steps);
        else
            ok = false;
        if (!ok)
            return misused(argv[i]);
    }
    const bool plans = a->plan.n_shapes > 0;
    if (!plans && (a->plan.config || a->plan.n_sets > 0))
        (void)fprintf(stderr, "dpt-bench memory: --config and --set are for --plan\n");
    return plans || (!a->plan.config && a->plan.n_sets == 0);
}

static int64_t member_bytes(const json_t *rank, const char *key, const char *inner)
{
    const json_t *value = json_object_get(rank, key);
    return json_integer_value(inner ? json_object_get(value, inner) : value);
}

static double mib(int64_t bytes)
{
    return (double)bytes / 0x1p20;
}

/* The peak that the kernel reports, without the memory of other ranks. */
static int64_t own_peak(const json_t *rank)
{
    const int64_t others =
        member_bytes(rank, "shared", NULL) - member_bytes(rank, "shared_own", NULL);
    return member_bytes(rank, "process_peak", NULL) - (others > 0 ? others : 0);
}

static void print_estimate(int64_t parameters)
{
    const double one = mib(parameters * ESTIMATE_BYTES);
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
        const int64_t counted = member_bytes(rank, "counted", "peak"), peak = own_peak(rank),
                      formula = member_bytes(rank, "formula", NULL);
        printf("%-18s %5lld %4zu %9.1f %9.1f %9.1f %+6.2f%% %9.1f %9.1f %7.1f %+10.1f %+6.1f%%\n",
               i == 0 ? name : "", (long long)member_bytes(rank, "world_size", NULL), i,
               mib(member_bytes(rank, "bound", NULL)), mib(formula), mib(counted),
               100.0 * (double)(counted - formula) / (double)formula,
               mib(member_bytes(rank, "reserved", "peak")), mib(peak), mib(base),
               mib(peak - counted - base),
               100.0 * (double)(peak - formula - base) / (double)(formula + base));
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
               (long long)member_bytes(rank, "world_size", NULL));
        for (int t = 0; t < DPT_MEMORY_COUNT; t++) {
            const char *name = dpt_memory_tag_name((enum dpt_memory_tag)t);
            const int64_t peak = member_bytes(tags, name, "peak"),
                          formula = member_bytes(tags, name, "formula");
            if (peak > 0 || formula > 0)
                printf("  %s %.1f (%.1f)", name, mib(peak), mib(formula));
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
    const struct args *args;
    const char *dir; /* of the runs' files */
    int64_t base;    /* memory of a rank outside dpt's allocations */
    json_t *runs;
};

static enum dpt_status run_strategy(const struct session *session, const struct strategy *s,
                                    int world, struct dpt_err *err)
{
    char name[64];
    json_t *ranks = NULL, *runs = session->runs;
    const struct args *a = session->args;
    const struct mem_run run = {.model = a->model,
                                .strategy = s->section,
                                .precision = a->precision,
                                .accumulate = a->accumulate,
                                .packed = s->packed,
                                .nodes = s->two_nodes ? 2 : 1,
                                .world = world,
                                .batch = a->batch,
                                .seq = a->seq,
                                .slots = a->slots,
                                .steps = a->steps};
    (void)snprintf(name, sizeof name, "%s-%d", s->name, world);
    DPT_TRY(mem_run(&run, session->dir, name, &ranks, err));
    if (json_array_size(runs) == 0) {
        print_estimate(member_bytes(json_array_get(ranks, 0), "parameters", NULL));
        printf("MiB, %s; of the formula and of the peak\n", a->precision);
        printf("%-18s %5s %4s %9s %9s %9s %7s %9s %9s %7s %10s %7s\n", "strategy", "world", "rank",
               "bound", "formula", "counted", "", "reserved", "true peak", "base", "difference",
               "");
    }
    print_ranks(s->name, ranks, session->base);
    (void)fflush(stdout);
    return add_run(runs, s->name, ranks, err);
}

/* Measures the memory of a rank outside dpt's allocations, by a run of the smallest model. */
static enum dpt_status measure_base(const char *dir, int64_t *ret, struct dpt_err *err)
{
    json_t *ranks = NULL;
    const struct mem_run run = {.model = smallest,
                                .strategy = strategies[0].section,
                                .precision = "fp32",
                                .accumulate = "auto",
                                .nodes = 1,
                                .world = 2,
                                .batch = 1,
                                .seq = 8,
                                .slots = 2,
                                .steps = 3};
    DPT_TRY(mem_run(&run, dir, "empty", &ranks, err));
    const json_t *rank = json_array_get(ranks, 0);
    *ret = own_peak(rank) - member_bytes(rank, "counted", "peak");
    json_decref(ranks);
    return DPT_OK;
}

static enum dpt_status run_strategies(const struct args *a, const char *dir, json_t **ret,
                                      struct dpt_err *err)
{
    struct session session = {.args = a, .dir = dir};
    DPT_TRY(measure_base(dir, &session.base, err));
    json_t *runs = session.runs = json_array();
    enum dpt_status status = runs ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    for (int s = 0; s < STRATEGIES; s++)
        for (int w = 0; status == DPT_OK && w < a->n_worlds; w++) {
            const bool even = a->worlds[w] % 2 == 0;
            if ((!a->only || is_listed(a->only, strategies[s].name)) &&
                (even || !strategies[s].two_nodes))
                status = run_strategy(&session, &strategies[s], a->worlds[w], err);
        }
    if (status == DPT_OK && json_array_size(runs) == 0)
        status = dpt_fail(err, DPT_EINVAL, "--strategies names none: see --help of this bench");
    if (status != DPT_OK) {
        json_decref(runs);
        return status;
    }
    print_tags(runs);
    *ret = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:o}", "bench", "memory",
                     "model", a->model, "precision", a->precision, "accumulate", a->accumulate,
                     "batch", a->batch, "seq", a->seq, "slots", a->slots, "steps", a->steps,
                     "base_bytes", (json_int_t)session.base, "runs", runs);
    return *ret ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "report: out of memory");
}

static enum dpt_status plan_strategies(const struct args *a, json_t **ret, struct dpt_err *err)
{
    json_t *rows = json_array();
    enum dpt_status status = rows ? DPT_OK : dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    for (int s = 0; status == DPT_OK && s < STRATEGIES; s++)
        if (!strategies[s].packed && (!a->only || is_listed(a->only, strategies[s].name)))
            status =
                memory_plan_add(&a->plan, strategies[s].name, strategies[s].section, rows, err);
    if (status == DPT_OK && json_array_size(rows) == 0)
        status = dpt_fail(err, DPT_EINVAL, "nothing that --strategies names can be had so");
    *ret = status == DPT_OK ? json_pack("{s:s, s:s?, s:O}", "bench", "memory-plan", "config",
                                        a->plan.config, "rows", rows)
                            : NULL;
    json_decref(rows);
    return status;
}

static int run_memory(int argc, char **argv)
{
    struct args args;
    struct dpt_err err, cleanup;
    json_t *report = NULL;
    char dir[DPT_BENCH_DIR_BYTES];
    if (!parse_memory_args(argc, argv, &args))
        return 2;
    if (args.plan.n_shapes > 0) {
        if (plan_strategies(&args, &report, &err) == DPT_OK)
            return dpt_bench_finish(&(struct dpt_bench_args){.json = args.json}, report);
        (void)fprintf(stderr, "dpt-bench memory: %s\n", err.text);
        return 1;
    }
    enum dpt_status status = dpt_bench_dir_create(NULL, "memory", dir, &err);
    if (status != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench memory: %s\n", err.text);
        return 1;
    }
    status = bench_programs_begin(&err);
    if (status == DPT_OK)
        status = run_strategies(&args, dir, &report, &err);
    if (bench_programs_end(&cleanup) != DPT_OK)
        (void)fprintf(stderr, "dpt-bench memory: %s\n", cleanup.text);
    if (status != DPT_OK) {
        (void)fprintf(stderr, "dpt-bench memory: %s\n", err.text);
        if (status != DPT_EABORTED)
            return 1; /* leaves the logs in `dir` */
    }
    dpt_bench_dir_remove(dir);
    if (status != DPT_OK)
        return 1;
    return dpt_bench_finish(&(struct dpt_bench_args){.json = args.json}, report);
}

const struct dpt_bench dpt_bench_memory = {
    .name = "memory",
    .help = "what ranks hold by strategy: worked out, counted, reserved, and the true peak",
    .run = run_memory};
