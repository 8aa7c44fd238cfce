/* dpt-bench canonical: the cost of the fixed order of addition. Measures a step under
 * `train.reduction: canonical` and under `fast` in the same processes.
 *
 * A pair is one step of each kind. The kind that comes first alternates, so that other load on the
 * machine and a drifting clock affect both kinds alike. Ranks are processes with one thread on this
 * host. */
#include "worker/bench/bench_canonical.h"

#include "worker/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { WORLDS_MAX = 4, YAML_BYTES = 1024, WARMUP_PAIRS = 1 };

static const char *const names[] = {"canonical", "fast"};
enum { KINDS = sizeof names / sizeof names[0] };

struct args {
    const char *preset, *json;
    int n_worlds, worlds[WORLDS_MAX];
    int batch, seq, slots, pairs;
    enum dpt_dtype dtype;
};

/* The steps of one kind in one world. */
struct series {
    double ms[BC_STEPS_MAX], cpu_ms[BC_STEPS_MAX]; /* wall time of rank 0; CPU time of all ranks */
    struct bc_answer last;
};

struct row {
    int n;
    struct series kind[KINDS];
    double ratio[BC_STEPS_MAX]; /* of each pair: canonical / fast */
};

static const char usage[] =
    "usage: dpt-bench canonical [--ranks 2,4] [--preset gpt2-124m|tiny] [--batch 4] [--seq 64] "
    "[--slots 8] [--pairs 5] [--precision fp32|bf16|fp16] [--json FILE]\n"
    "  slots: micro-batches a step, of all ranks; pairs: of a canonical and a fast step\n";

static bool parse_canonical_args(int argc, char **argv, struct args *a)
{
    *a = (struct args){.preset = "gpt2-124m",
                       .n_worlds = 2,
                       .worlds = {2, 4},
                       .batch = 4,
                       .seq = 64,
                       .slots = 8,
                       .pairs = 5};
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = *value != '\0';
        if (strcmp(argv[i], "--preset") == 0)
            a->preset = value;
        else if (strcmp(argv[i], "--json") == 0)
            a->json = value;
        else if (strcmp(argv[i], "--ranks") == 0)
            good =
                dpt_bench_parse_ints(value, 1, BC_RANKS_MAX, WORLDS_MAX, a->worlds, &a->n_worlds);
        else if (strcmp(argv[i], "--batch") == 0)
            good = dpt_bench_parse_int(value, 1, 1024, &a->batch);
        else if (strcmp(argv[i], "--seq") == 0)
            good = dpt_bench_parse_int(value, 1, 1024, &a->seq);
        else if (strcmp(argv[i], "--slots") == 0)
            good = dpt_bench_parse_int(value, 1, 1024, &a->slots);
        else if (strcmp(argv[i], "--pairs") == 0)
            good = dpt_bench_parse_int(value, 1, BC_STEPS_MAX, &a->pairs);
        else if (strcmp(argv[i], "--precision") == 0)
            good = dpt_bench_parse_precision(value, &a->dtype);
        else
            good = false;
        if (!good)
            return dpt_bench_misused("canonical", usage, argv[i]);
    }
    return true;
}

static bool make_config(const struct args *a, struct dpt_config *ret)
{
    char yaml[YAML_BYTES];
    struct dpt_err err;
    const bool tiny = strcmp(a->preset, "tiny") == 0;
    (void)snprintf(yaml, sizeof yaml,
                   "model: {%s%s}\n"
                   "train: {steps: 1000000, global_batch: %d, micro_batch: %d, seq_len: %d, "
                   "precision: %s}\n"
                   "optimizer: {warmup_steps: 1}\n",
                   tiny ? "n_layer: 2, n_head: 2, n_embd: 64, context: 1024, vocab: 300"
                        : "preset: ",
                   tiny ? "" : a->preset, a->batch * a->slots, a->batch, a->seq,
                   dpt_bench_precision(a->dtype));
    if (dpt_config_load_text(yaml, "bench", NULL, 0, ret, &err) == DPT_OK)
        return true;
    (void)fprintf(stderr, "dpt-bench canonical: %s\n", err.text);
    return false;
}

/* Makes all ranks do one step. */
static bool step(struct ar_team *team, enum dpt_reduction reduction)
{
    for (int i = 0; i < team->n; i++)
        if (write(team->to[i], &reduction, sizeof reduction) != (ssize_t)sizeof reduction)
            return false;
    for (int i = 0; i < team->n; i++) {
        char done;
        if (read(team->from[i], &done, 1) != 1)
            return false;
    }
    return true;
}

static void keep_answer(const struct bc_shared *shared, struct series *s, int at)
{
    double cpu = 0;
    s->last = shared->answer[0];
    for (int i = 0; i < shared->n_ranks; i++)
        cpu += shared->answer[i].cpu_ms;
    for (int i = 0; i < shared->n_ranks; i++)
        if (shared->answer[i].bytes_sent > s->last.bytes_sent)
            s->last.bytes_sent = shared->answer[i].bytes_sent;
    s->ms[at] = shared->answer[0].wall_ms;
    s->cpu_ms[at] = cpu;
}

static bool measure_canonical(const struct args *a, struct bc_shared *shared, struct ar_team *team,
                              struct row *row)
{
    for (int pair = -WARMUP_PAIRS; pair < a->pairs; pair++) {
        for (int i = 0; i < KINDS; i++) {
            const int kind = pair % 2 == 0 ? i : KINDS - 1 - i;
            if (!step(team, kind == 0 ? DPT_REDUCTION_CANONICAL : DPT_REDUCTION_FAST))
                return false;
            if (pair >= 0)
                keep_answer(shared, &row->kind[kind], pair);
        }
        if (pair < 0)
            continue;
        row->ratio[pair] = row->kind[0].ms[pair] / row->kind[1].ms[pair];
        row->n = pair + 1;
    }
    return true;
}

static double median(const double *values, int n)
{
    double sorted[BC_STEPS_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    dpt_bench_sort(sorted, n);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static json_t *report_kind(const struct series *s, int n)
{
    json_t *ms = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ms, json_real(s->ms[i]));
    return json_pack("{s:f,s:f,s:o,s:I,s:I,s:i}", "median_ms", median(s->ms, n), "cpu_median_ms",
                     median(s->cpu_ms, n), "ms", ms, "bytes_sent", (json_int_t)s->last.bytes_sent,
                     "gradient_bytes", (json_int_t)s->last.gradient_bytes, "gradient_buffers",
                     s->last.gradient_buffers);
}

/* The cost in % compares the two medians. Beside it stands the cost by the median of the pairs'
 * ratios. */
static json_t *report_world(int ranks, const struct row *row)
{
    const double canonical = median(row->kind[0].ms, row->n),
                 fast = median(row->kind[1].ms, row->n);
    const double cost = 100 * (canonical / fast - 1),
                 of_pairs = 100 * (median(row->ratio, row->n) - 1);
    const double cpu =
        100 * (median(row->kind[0].cpu_ms, row->n) / median(row->kind[1].cpu_ms, row->n) - 1);
    printf("%5d %6d %12.1f %10.1f %8.2f %8.2f %8.2f   %6.1f / %-6.1f   %5.2f / %-5.2f\n", ranks,
           row->n, canonical, fast, cost, of_pairs, cpu,
           (double)row->kind[0].last.bytes_sent / 1048576.0,
           (double)row->kind[1].last.bytes_sent / 1048576.0,
           (double)row->kind[0].last.gradient_bytes / 1073741824.0,
           (double)row->kind[1].last.gradient_bytes / 1073741824.0);
    json_t *json =
        json_pack("{s:i,s:i,s:f,s:f,s:f}", "ranks", ranks, "pairs", row->n, "cost_percent", cost,
                  "cost_of_pairs_percent", of_pairs, "cpu_cost_percent", cpu);
    for (int i = 0; i < KINDS; i++)
        json_object_set_new(json, names[i], report_kind(&row->kind[i], row->n));
    return json;
}

static int body(void *ctx, int rank, int in, int out)
{
    return bc_rank(ctx, rank, in, out);
}

static bool run_world(const struct args *a, struct bc_shared *shared, int ranks, json_t *rows)
{
    static struct row row;
    struct ar_team team;
    row.n = 0;
    memset(shared->listening, 0, sizeof shared->listening);
    shared->n_ranks = ranks;
    if (a->slots < ranks) {
        (void)fprintf(stderr, "dpt-bench canonical: %d slots for %d ranks; at least one each\n",
                      a->slots, ranks);
        return false;
    }
    const bool good =
        ar_team_start(&team, ranks, body, shared) && measure_canonical(a, shared, &team, &row);
    if (!ar_team_end(&team) || !good)
        return false;
    json_array_append_new(rows, report_world(ranks, &row));
    return true;
}

static int run_canonical(int argc, char **argv)
{
    struct args a;
    if (!parse_canonical_args(argc, argv, &a))
        return 2;
    struct bc_shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || !make_config(&a, &shared->config))
        return 1;
    printf("%s %s, ddp, %d slots of %d x %d a step, processes of one thread on one host; cost of "
           "canonical beside fast: of the medians, median of the pairs, of CPU time\n",
           a.preset, dpt_bench_precision(a.dtype), a.slots, a.batch, a.seq);
    printf("%5s %6s %12s %10s %8s %8s %8s   %15s   %13s\n", "ranks", "pairs", "canonical ms",
           "fast ms", "cost %", "pairs %", "CPU %", "MiB sent", "GiB gradients");
    json_t *rows = json_array();
    bool good = true;
    for (int i = 0; good && i < a.n_worlds; i++)
        good = run_world(&a, shared, a.worlds[i], rows);
    munmap(shared, sizeof *shared);
    json_t *report =
        json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:o}", "bench", "canonical", "preset", a.preset,
                  "precision", dpt_bench_precision(a.dtype), "strategy", "ddp", "slots", a.slots,
                  "batch", a.batch, "seq", a.seq, "rows", rows);
    if (good)
        return dpt_bench_finish(&(struct dpt_bench_args){.json = a.json}, report);
    json_decref(report);
    return 1;
}

const struct dpt_bench dpt_bench_canonical = {
    .name = "canonical",
    .help = "what the fixed order of addition costs: steps canonical beside fast, by ranks",
    .run = run_canonical,
};
