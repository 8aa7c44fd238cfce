/* dpt-bench train: the rate of whole training steps by a real rank in a world of one. Measures one
 * or several precisions and sizes of micro-batch, one after another, each in a process of its own:
 * a size begins with the memory that the first one had, and if the memory does not suffice for it,
 * the bench says so and continues with the next size.
 *
 * On the CPU the share of the gemm rate is measured within the run: products are timed right before
 * and right after the steps. */
#include "worker/bench/bench_train.h"

#include "worker/bench/bench.h"
#include "worker/bench/child.h"
#include "worker/bench/cost.h"

#include <stdio.h>
#include <string.h>

enum {
    STEPS = 25,
    WARMUP_PART = 5, /* a fifth of the steps, */
    WARMUP_LEAST = 2,
    WARMUP_MOST = 5,
    STEPS_MIN = WARMUP_LEAST + 3,
    COUNT_MAX = 1 << 20,
    PRECISIONS_MAX = 4,
    PRECISION_BYTES = 8
};

static struct train_precisions {
    int n;
    char name[PRECISIONS_MAX][PRECISION_BYTES];
} precisions = {1, {"fp32"}};

static struct extrapolation {
    double tokens_per_s, parameters; /* 0: not asked for */
} extrapolation;

static struct dpt_bench_real price = {BENCH_PRICE_RANGE};

static struct {
    const char *preset, *device, *offload, *pack_weights, *checkpointing, *op_times;
    struct dpt_bench_list batches;
    int64_t seq, slots, threads, steps;
    int64_t warmup;      /* -1: by the number of steps */
    int64_t peak_tflops; /* 0: the rate in the table of chips */
    bool no_gemm;
} args = {.preset = "gpt2-124m",
          .device = "cpu",
          .offload = "none",
          .pack_weights = "auto",
          .checkpointing = "none",
          .op_times = "off",
          .batches = {.min = 1, .max = COUNT_MAX, .n = 1, .values = {4}},
          .seq = 64,
          .slots = 1,
          .threads = 2,
          .steps = STEPS,
          .warmup = -1};

/* Takes names separated by commas; the config checks them. */
static enum dpt_status set_precisions(void *ctx, const char *value, struct dpt_err *err)
{
    struct train_precisions *list = ctx;
    list->n = 0;
    for (const char *at = value;; at++) {
        const size_t bytes = strcspn(at, ",");
        if (list->n == PRECISIONS_MAX || bytes == 0 || bytes >= PRECISION_BYTES)
            return dpt_fail(err, DPT_EINVAL,
                            "expected at most %d of fp32, tf32, bf16 and fp16, separated by "
                            "commas, got '%.40s'",
                            PRECISIONS_MAX, value);
        (void)snprintf(list->name[list->n++], PRECISION_BYTES, "%.*s", (int)bytes, at);
        at += bytes;
        if (*at == '\0')
            return DPT_OK;
    }
}

/* Takes "TOKENS_PER_S,PARAMETERS". */
static enum dpt_status set_extrapolation(void *ctx, const char *value, struct dpt_err *err)
{
    struct extrapolation *e = ctx;
    int used = 0;
    if (sscanf(value, "%lf,%lf%n", &e->tokens_per_s, &e->parameters, &used) == 2 &&
        value[used] == '\0' && e->tokens_per_s > 0 && e->parameters >= 1 &&
        e->tokens_per_s < 1e15 && e->parameters < 1e18)
        return DPT_OK;
    return dpt_fail(err, DPT_EINVAL,
                    "expected tokens a second and parameters, as 32582.4,124439808, got '%.40s'",
                    value);
}

static const struct dpt_option options[] = {
    {"--preset", "NAME", "model.preset, or tiny (gpt2-124m)", .text = &args.preset},
    {"--batch", "N,...", "sequences of a micro-batch; each size in turn (4)",
     .set = dpt_bench_set_list, .ctx = &args.batches},
    {"--seq", "N", "tokens of a sequence (64)", .number = &args.seq, .min = 1, .max = COUNT_MAX},
    {"--slots", "N", "micro-batches of a step (1)", .number = &args.slots, .min = 1,
     .max = COUNT_MAX},
    {"--threads", "N", "compute threads (2)", .number = &args.threads, .min = 1,
     .max = DPT_BENCH_THREADS_MAX},
    {"--steps", "N", "steps, those of the warm-up included (25)", .number = &args.steps,
     .min = STEPS_MIN, .max = TRAIN_STEPS_MAX},
    {"--warmup", "N", "steps of these that are not timed (a fifth, 2 to 5)", .number = &args.warmup,
     .min = 1, .max = TRAIN_STEPS_MAX},
    {"--precision", "NAME,...", "train.precision: fp32, tf32, bf16, fp16; each in turn (fp32)",
     .set = set_precisions, .ctx = &precisions},
    {"--device", "cpu|cuda", "cluster.device (cpu)", .text = &args.device},
    {"--offload", "none|optimizer", "strategy.offload, with cuda (none)", .text = &args.offload},
    {"--pack-weights", "auto|on|off", "cluster.pack_weights (auto)", .text = &args.pack_weights},
    {"--checkpointing", "none|selective|full", "train.activation_checkpointing (none)",
     .text = &args.checkpointing},
    {"--op-times", "on|off", "the time of kernels by class; costs time on a GPU (off)",
     .text = &args.op_times},
    {"--peak", "TFLOPS", "the peak of a GPU that the table of chips lacks, for the MFU",
     .number = &args.peak_tflops, .min = 1, .max = COUNT_MAX},
    BENCH_PRICE_OPTION(price, "this machine"),
    {"--extrapolate", "RATE,PARAMETERS", "measures nothing: a model of 1e12 from this rate",
     .set = set_extrapolation, .ctx = &extrapolation},
    {"--no-gemm", .help = "does not measure the gemm rate before and after the steps",
     .flag = &args.no_gemm}};

static int64_t warmup_steps(void)
{
    const int64_t part = args.steps / WARMUP_PART;
    if (args.warmup >= 0)
        return args.warmup;
    return part < WARMUP_LEAST ? WARMUP_LEAST : part > WARMUP_MOST ? WARMUP_MOST : part;
}

static enum dpt_status check_train_args(struct dpt_err *err)
{
    if (strcmp(args.op_times, "off") != 0 && strcmp(args.op_times, "on") != 0)
        return dpt_fail(err, DPT_EINVAL, "--op-times: expected on or off, got '%.40s'",
                        args.op_times);
    if (warmup_steps() > args.steps - 3)
        return dpt_fail(
            err, DPT_EINVAL,
            "--warmup %d leaves fewer than 3 of the %d steps to be timed: raise --steps",
            (int)warmup_steps(), (int)args.steps);
    return DPT_OK;
}

/* ---- the gemm rate ---- */

static enum dpt_status measure_gemm(const void *ctx, json_t **ret, struct dpt_err *err)
{
    double gflops = 0;
    DPT_TRY(dpt_bench_gemm_rate((int)args.threads, *(const enum dpt_dtype *)ctx, &gflops, err));
    *ret = json_pack("{s:f}", "gflops", gflops);
    return DPT_OK;
}

/* The gemm rate of a precision, GFLOP/s. 0: not measured, because a GPU computes, --no-gemm is
 * given or the memory does not suffice; the last is printed. */
static enum dpt_status gemm_rate(const char *precision, double *ret, struct dpt_err *err)
{
    const enum dpt_dtype dtype = strcmp(precision, "bf16") == 0   ? DPT_BF16
                                 : strcmp(precision, "fp16") == 0 ? DPT_F16
                                                                  : DPT_F32;
    json_t *rate = NULL;
    struct dpt_err why;
    *ret = 0;
    if (args.no_gemm || strcmp(args.device, "cpu") != 0)
        return DPT_OK;
    if (dpt_bench_in_child(measure_gemm, &dtype, &rate, &why) != DPT_OK) {
        if (!dpt_bench_is_oom(&why))
            return dpt_pass(err, &why);
        printf("the gemm rate is not measured: %s\n", why.text);
        return DPT_OK;
    }
    *ret = json_number_value(json_object_get(rate, "gflops"));
    json_decref(rate);
    return DPT_OK;
}

/* ---- runs ---- */

/* All runs of one call. */
struct session {
    json_t *report, *runs; /* {"bench", "runs"}; its array */
    double gemm_before;    /* the newest rate of this precision */
    bool many;
};

/* Runs one case in a new temporary folder, between two measurements of the gemm rate; keeps the
 * better rate. */
static enum dpt_status run_case(struct session *session, const struct train_case *c, json_t **ret,
                                struct dpt_err *err)
{
    const double before = session->gemm_before;
    double after = 0;
    char dir[DPT_BENCH_DIR_BYTES];
    struct train_case own = *c;
    DPT_TRY(dpt_bench_dir_create(NULL, "train", dir, err));
    own.dir = dir;
    enum dpt_status status = dpt_bench_in_child(train_case_run, &own, ret, err);
    dpt_bench_dir_remove(dir);
    DPT_TRY(status);
    status = gemm_rate(c->precision, &after, err);
    if (status != DPT_OK) {
        json_decref(*ret);
        return status;
    }
    session->gemm_before = after;
    if (before > 0 || after > 0)
        train_report_add_rate(*ret, before > after ? before : after);
    if (price.value > 0)
        train_report_add_price(*ret, price.value);
    train_report_print(*ret);
    return DPT_OK;
}

/* Adds the run of a case to the report, which is saved after each. If a batch does not fit into the
 * memory, and there are others, the run says so. */
static enum dpt_status add_case(struct session *session, const struct train_case *c,
                                struct dpt_err *err)
{
    struct dpt_err why = {.status = DPT_OK};
    json_t *run = NULL;
    if (run_case(session, c, &run, &why) != DPT_OK) {
        if (!session->many || !dpt_bench_is_oom(&why))
            return dpt_pass(err, &why);
        printf("OOM at batch_size=%d: %s\n\n", (int)c->batch, why.text);
        run = json_pack("{s:I,s:s,s:s}", "batch", (json_int_t)c->batch, "precision", c->precision,
                        "oom", why.text);
    }
    if (json_array_append_new(session->runs, run) != 0)
        return dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    (void)fflush(stdout);
    return dpt_bench_save(session->report, err);
}

static struct train_case case_of(const char *precision, int64_t batch)
{
    return (struct train_case){.preset = args.preset,
                               .precision = precision,
                               .device = args.device,
                               .offload = args.offload,
                               .pack_weights = args.pack_weights,
                               .checkpointing = args.checkpointing,
                               .op_times = strcmp(args.op_times, "on") == 0,
                               .batch = batch,
                               .seq = args.seq,
                               .slots = args.slots,
                               .threads = args.threads,
                               .steps = args.steps,
                               .warmup = warmup_steps(),
                               .peak = (double)args.peak_tflops * 1e12,
                               .dir = "."};
}

/* Checks all cases before the first is measured. */
static enum dpt_status check_cases(struct dpt_err *err)
{
    for (int p = 0; p < precisions.n; p++)
        for (int i = 0; i < args.batches.n; i++) {
            const struct train_case c = case_of(precisions.name[p], args.batches.values[i]);
            DPT_TRY(train_case_check(&c, err));
        }
    return DPT_OK;
}

static enum dpt_status run_precision(struct session *session, const char *precision,
                                     struct dpt_err *err)
{
    DPT_TRY(gemm_rate(precision, &session->gemm_before, err));
    for (int i = 0; i < args.batches.n; i++) {
        const struct train_case c = case_of(precision, args.batches.values[i]);
        DPT_TRY(add_case(session, &c, err));
    }
    return DPT_OK;
}

/* Extrapolates from the fastest run. */
static void extrapolate_runs(const json_t *runs, json_t *ret)
{
    size_t i;
    const json_t *run;
    double rate = 0, parameters = 0;
    json_array_foreach(runs, i, run)
    {
        const double found = json_number_value(json_object_get(run, "mean_tokens_per_s"));
        if (found > rate) {
            rate = found;
            parameters = json_number_value(json_object_get(run, "parameters"));
        }
    }
    if (rate > 0)
        train_report_extrapolate(rate, parameters, ret);
}

static enum dpt_status run_train(json_t **ret_report, struct dpt_err *err)
{
    DPT_TRY(check_train_args(err));
    if (extrapolation.tokens_per_s > 0) {
        *ret_report = json_pack("{s:s}", "bench", "train-extrapolated");
        train_report_extrapolate(extrapolation.tokens_per_s, extrapolation.parameters, *ret_report);
        return DPT_OK;
    }
    DPT_TRY(check_cases(err));
    struct session session = {.report = json_pack("{s:s,s:[]}", "bench", "train", "runs"),
                              .many = args.batches.n > 1 || precisions.n > 1};
    session.runs = json_object_get(session.report, "runs");
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < precisions.n; i++)
        status = run_precision(&session, precisions.name[i], err);
    train_report_add_total(session.report);
    if (status == DPT_OK && session.many)
        train_report_print_table(session.report);
    *ret_report = json_incref(session.many ? session.report : json_array_get(session.runs, 0));
    if (status == DPT_OK)
        extrapolate_runs(session.runs, *ret_report);
    json_decref(session.report);
    return status;
}

const struct dpt_bench dpt_bench_train = {
    .name = "train",
    .help = "the rate of training steps beside the peak of the machine, and allocations in a step",
    .options = options,
    .n_options = sizeof options / sizeof *options,
    .run = run_train};
