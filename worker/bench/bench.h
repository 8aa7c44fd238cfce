/* The interface of a bench, and the parts that benches share: options, timing, files, the report.
 */
#ifndef DPT_WORKER_BENCH_BENCH_H
#define DPT_WORKER_BENCH_BENCH_H

#include "base/err.h"
#include "base/option.h"
#include "kernels/device.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* A bench is called once in a process, so its options have static targets, which hold the
 * defaults. */
struct dpt_bench {
    const char *name, *help;          /* help: one line */
    const struct dpt_option *options; /* its own, without --json and --help */
    size_t n_options;
    /* Measures and prints the figures. *ret_report, which begins as NULL, is owned by the caller;
     * it may be set with a failure too. DPT_EINVAL: the options do not fit together.
     * DPT_EUNSUPPORTED: a library to compare with is not installed. */
    enum dpt_status (*run)(json_t **ret_report, struct dpt_err *err);
};

extern const struct dpt_bench dpt_bench_gemm, dpt_bench_ops, dpt_bench_comm, dpt_bench_train,
    dpt_bench_recover, dpt_bench_tokenize, dpt_bench_allreduce, dpt_bench_canonical,
    dpt_bench_checkpoint, dpt_bench_strategies, dpt_bench_memory, dpt_bench_spans,
    dpt_bench_collectives, dpt_bench_scaling, dpt_bench_compare, dpt_bench_accumulation,
    dpt_bench_rdzv;

/* Reads the options, runs the bench and writes its report to the file of --json. argv[0] is the
 * bench's name. Returns the exit code: 0 measured, 1 failed, 2 wrong options, 77 unsupported. */
int dpt_bench_main(const struct dpt_bench *bench, int argc, char **argv);

/* Writes the report so far to the file of --json, if there is one: for a bench that may be ended
 * while it measures. Borrows the report. */
DPT_MUST_USE enum dpt_status dpt_bench_save(const json_t *report, struct dpt_err *err);

enum { DPT_BENCH_REPEATS = 9, DPT_BENCH_REPEATS_MAX = 99, DPT_BENCH_THREADS_MAX = 128 };

/* Setters for struct dpt_option. ctx: enum dpt_dtype, set to fp32, bf16 or fp16. */
DPT_MUST_USE enum dpt_status dpt_bench_set_precision(void *ctx, const char *value,
                                                     struct dpt_err *err);
const char *dpt_bench_precision(enum dpt_dtype dtype);

/* The options of benches that compute on the CPU. */
struct dpt_bench_compute {
    int64_t threads, repeats; /* threads 0: one for each core */
    enum dpt_dtype dtype;
};
#define DPT_BENCH_THREADS_OPTION(target)                                                           \
    {                                                                                              \
        "--threads", "N", "compute threads (one for each core)", .number = &(target), .min = 1,    \
                                                                 .max = DPT_BENCH_THREADS_MAX      \
    }
#define DPT_BENCH_REPEATS_OPTION(target)                                                           \
    {                                                                                              \
        "--repeats", "N", "measurements of each figure (9)", .number = &(target), .min = 1,        \
                                                             .max = DPT_BENCH_REPEATS_MAX          \
    }
#define DPT_BENCH_PRECISION_OPTION(target)                                                         \
    {                                                                                              \
        "--precision", "fp32|bf16|fp16", "of the operands (fp32)", .set = dpt_bench_set_precision, \
                                                                   .ctx = &(target)                \
    }
#define DPT_BENCH_COMPUTE_OPTIONS(args)                                                            \
    DPT_BENCH_THREADS_OPTION((args).threads), DPT_BENCH_REPEATS_OPTION((args).repeats),            \
        DPT_BENCH_PRECISION_OPTION((args).dtype)
int dpt_bench_threads(const struct dpt_bench_compute *c);
/* Opens the CPU device and a stream with these threads; the caller destroys both, also after a
 * failure. */
DPT_MUST_USE enum dpt_status dpt_bench_compute_open(const struct dpt_bench_compute *c,
                                                    struct dpt_device **ret_device,
                                                    struct dpt_stream **ret_stream,
                                                    struct dpt_err *err);

/* ctx: struct dpt_bench_list. Takes numbers from min to max, separated by commas. */
enum { DPT_BENCH_LIST_MAX = 16 };
struct dpt_bench_list {
    int64_t min, max;
    int n;
    int64_t values[DPT_BENCH_LIST_MAX];
};
DPT_MUST_USE enum dpt_status dpt_bench_set_list(void *ctx, const char *value, struct dpt_err *err);

/* ctx: struct dpt_bench_sets. Adds a KEY=VALUE that changes a config. */
enum { DPT_BENCH_SETS_MAX = 16 };
struct dpt_bench_sets {
    int n;
    const char *set[DPT_BENCH_SETS_MAX]; /* borrowed */
};
DPT_MUST_USE enum dpt_status dpt_bench_add_set(void *ctx, const char *value, struct dpt_err *err);

/* ctx: struct dpt_bench_real. Takes a number from min to max. */
struct dpt_bench_real {
    double min, max, value;
};
DPT_MUST_USE enum dpt_status dpt_bench_set_real(void *ctx, const char *value, struct dpt_err *err);

/* The keys of the config's section `model` for a preset of the config, or for "tiny", a GPT-2 for
 * tests. */
enum { DPT_BENCH_MODEL_BYTES = 96 };
void dpt_bench_model_keys(const char *preset, char ret[DPT_BENCH_MODEL_BYTES]);

/* True: the list "a,b,c" has the name. NULL is the list of all names. */
bool dpt_bench_is_listed(const char *list, const char *name);

/* Makes the folder dpt-bench-NAME-XXXXXX for temporary files, in folder `base`; NULL: in $TMPDIR,
 * else in /tmp. */
enum { DPT_BENCH_DIR_BYTES = 128 };
DPT_MUST_USE enum dpt_status dpt_bench_dir_create(const char *base, const char *name,
                                                  char ret[DPT_BENCH_DIR_BYTES],
                                                  struct dpt_err *err);
/* Removes it with everything in it. A failure is printed to standard error. */
void dpt_bench_dir_remove(const char *dir);

/* The processes of a bench wait for each other. Sets listening[own], in memory that all processes
 * share, and waits until all `n` are set. DPT_ETIMEOUT names a process that does not come; it may
 * have died. */
enum { DPT_BENCH_MEET_MS = 30 * 1000 };
DPT_MUST_USE enum dpt_status dpt_bench_meet(int *listening, int n, int own, int timeout_ms,
                                            struct dpt_err *err);

/* Zeroed memory that this process shares with the processes that it forks; never freed. */
DPT_MUST_USE enum dpt_status dpt_bench_share(size_t bytes, void **ret, struct dpt_err *err);

/* Seconds of one call of `fn`, over `repeats` measurements, after one call to warm up. Each
 * measurement repeats the call for about 30 ms. */
struct dpt_bench_time {
    double median_s, min_s, max_s;
};
struct dpt_bench_time dpt_bench_time(int64_t repeats, void (*fn)(void *ctx), void *ctx);

/* The gemm rate (as `dpt-bench gemm` defines it, of 3 repeats). Benches compare their rates with
 * it. */
DPT_MUST_USE enum dpt_status dpt_bench_gemm_rate(int threads, enum dpt_dtype dtype,
                                                 double *ret_gflops, struct dpt_err *err);

#endif
