/* dpt-bench canonical: the cost of the fixed order of addition. Measures a step under
 * `train.reduction: canonical` and under `fast` in the same processes.
 *
 * A pair is one step of each kind. The kind that comes first alternates, so that other load on the
 * machine and a drifting clock affect both kinds alike. Ranks are processes with one thread on this
 * host. */
#include "worker/bench/bench_canonical.h"

#include "base/median.h"
#include "worker/bench/bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { YAML_BYTES = 1024, WARMUP_PAIRS = 1, EXTENT_MAX = 1024 };

static const char *const names[] = {"canonical", "fast"};
enum { KINDS = sizeof names / sizeof names[0] };

static struct {
    const char *preset;
    struct dpt_bench_list ranks;
    int64_t batch, seq, slots, pairs;
    enum dpt_dtype dtype;
} args = {.preset = "gpt2-124m",
          .ranks = {.min = 1, .max = BC_RANKS_MAX, .n = 2, .values = {2, 4}},
          .batch = 4,
          .seq = 64,
          .slots = 8,
          .pairs = 5};

static const struct dpt_option options[] = {
    {"--ranks", "N,...", "processes; each number in turn (2,4)", .set = dpt_bench_set_list,
     .ctx = &args.ranks},
    {"--preset", "NAME", "model.preset, or tiny (gpt2-124m)", .text = &args.preset},
    {"--batch", "N", "sequences of a micro-batch (4)", .number = &args.batch, .min = 1,
     .max = EXTENT_MAX},
    {"--seq", "N", "tokens of a sequence (64)", .number = &args.seq, .min = 1, .max = EXTENT_MAX},
    {"--slots", "N", "micro-batches of a step, of all ranks together (8)", .number = &args.slots,
     .min = 1, .max = EXTENT_MAX},
    {"--pairs", "N", "pairs of a canonical and a fast step (5)", .number = &args.pairs, .min = 1,
     .max = BC_STEPS_MAX},
    DPT_BENCH_PRECISION_OPTION(args.dtype)};

/* The steps of one kind in one world. */
struct series {
    double ms[BC_STEPS_MAX], cpu_ms[BC_STEPS_MAX]; /* wall time of rank 0; CPU time of all ranks */
    struct canonical_answer last;
};

struct row {
    int n;
    struct series kind[KINDS];
    double ratio[BC_STEPS_MAX]; /* of each pair: canonical / fast */
};

static enum dpt_status canonical_make_config(struct dpt_config *ret, struct dpt_err *err)
{
    char yaml[YAML_BYTES], model[DPT_BENCH_MODEL_BYTES];
    dpt_bench_model_keys(args.preset, model);
    (void)snprintf(yaml, sizeof yaml,
                   "model: {%s}\n"
                   "train: {steps: 1000000, global_batch: %lld, micro_batch: %lld, seq_len: %lld, "
                   "precision: %s}\n"
                   "optimizer: {warmup_steps: 1}\n",
                   model, (long long)(args.batch * args.slots), (long long)args.batch,
                   (long long)args.seq, dpt_bench_precision(args.dtype));
    return dpt_config_load_text(yaml, "bench", NULL, 0, ret, err);
}

/* Makes all ranks do one step. */
static bool canonical_step(struct allreduce_team *team, enum dpt_reduction reduction)
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

static void keep_answer(const struct canonical_shared *shared, struct series *s, int at)
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

static bool measure_canonical(const struct canonical_shared *shared, struct allreduce_team *team,
                              struct row *row)
{
    for (int pair = -WARMUP_PAIRS; pair < args.pairs; pair++) {
        for (int i = 0; i < KINDS; i++) {
            const int kind = pair % 2 == 0 ? i : KINDS - 1 - i;
            if (!canonical_step(team, kind == 0 ? DPT_REDUCTION_CANONICAL : DPT_REDUCTION_FAST))
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

/* Leaves the order of the values. */
static double median_of_pairs(const double *values, int n)
{
    double sorted[BC_STEPS_MAX];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    return dpt_median(sorted, n);
}

static json_t *report_kind(const struct series *s, int n)
{
    json_t *ms = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ms, json_real(s->ms[i]));
    return json_pack("{s:f,s:f,s:o,s:I,s:I,s:i}", "median_ms", median_of_pairs(s->ms, n),
                     "cpu_median_ms", median_of_pairs(s->cpu_ms, n), "ms", ms, "bytes_sent",
                     (json_int_t)s->last.bytes_sent, "gradient_bytes",
                     (json_int_t)s->last.gradient_bytes, "gradient_buffers",
                     s->last.gradient_buffers);
}

/* The cost in % compares the two medians. Beside it stands the cost by the median of the pairs'
 * ratios. */
static json_t *report_world(int ranks, const struct row *row)
{
    const double canonical = median_of_pairs(row->kind[0].ms, row->n),
                 fast = median_of_pairs(row->kind[1].ms, row->n);
    const double cost = 100 * (canonical / fast - 1),
                 of_pairs = 100 * (median_of_pairs(row->ratio, row->n) - 1);
    const double cpu = 100 * (median_of_pairs(row->kind[0].cpu_ms, row->n) /
                                  median_of_pairs(row->kind[1].cpu_ms, row->n) -
                              1);
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

static int canonical_rank_body(void *ctx, int rank, int in, int out)
{
    return canonical_rank(ctx, rank, in, out);
}

static enum dpt_status canonical_run_world(struct canonical_shared *shared, int ranks, json_t *rows,
                                           struct dpt_err *err)
{
    static struct row row;
    struct allreduce_team team;
    row.n = 0;
    memset(shared->listening, 0, sizeof shared->listening);
    shared->n_ranks = ranks;
    if (args.slots < ranks)
        return dpt_fail(err, DPT_EINVAL, "--slots: %d slots are fewer than %d ranks",
                        (int)args.slots, ranks);
    const bool good = allreduce_team_start(&team, ranks, canonical_rank_body, shared) &&
                      measure_canonical(shared, &team, &row);
    if (!allreduce_team_end(&team) || !good)
        return dpt_fail(err, DPT_EPEER, "a process of the bench failed");
    json_array_append_new(rows, report_world(ranks, &row));
    return DPT_OK;
}

static enum dpt_status run_canonical(json_t **ret_report, struct dpt_err *err)
{
    void *shared = NULL;
    struct dpt_config config;
    DPT_TRY(canonical_make_config(&config, err));
    DPT_TRY(dpt_bench_share(sizeof(struct canonical_shared), &shared, err));
    ((struct canonical_shared *)shared)->config = config;
    printf("%s %s, ddp, %d slots of %d x %d a step, processes of one thread on one host; cost of "
           "canonical beside fast: of the medians, median of the pairs, of CPU time\n",
           args.preset, dpt_bench_precision(args.dtype), (int)args.slots, (int)args.batch,
           (int)args.seq);
    printf("%5s %6s %12s %10s %8s %8s %8s   %15s   %13s\n", "ranks", "pairs", "canonical ms",
           "fast ms", "cost %", "pairs %", "CPU %", "MiB sent", "GiB gradients");
    json_t *rows = json_array();
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < args.ranks.n; i++)
        status = canonical_run_world(shared, (int)args.ranks.values[i], rows, err);
    if (status == DPT_OK)
        *ret_report = json_pack("{s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:O}", "bench", "canonical", "preset",
                                args.preset, "precision", dpt_bench_precision(args.dtype),
                                "strategy", "ddp", "slots", (json_int_t)args.slots, "batch",
                                (json_int_t)args.batch, "seq", (json_int_t)args.seq, "rows", rows);
    json_decref(rows);
    return status;
}

const struct dpt_bench dpt_bench_canonical = {
    .name = "canonical",
    .help = "the cost of the fixed order of addition: steps with it beside steps without",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_canonical};
