/* The interface of a bench, and the parts that benches share: arguments, timing, the report. */
#ifndef DPT_WORKER_BENCH_BENCH_H
#define DPT_WORKER_BENCH_BENCH_H

#include "base/err.h"
#include "kernels/tensor.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* `run` gets the arguments after the bench's name; argv[0] is the name. It returns the exit code of
 * the process. */
struct dpt_bench {
    const char *name, *help;
    int (*run)(int argc, char **argv);
};

extern const struct dpt_bench dpt_bench_gemm, dpt_bench_ops, dpt_bench_comm, dpt_bench_train,
    dpt_bench_recover, dpt_bench_tokenize, dpt_bench_allreduce, dpt_bench_canonical,
    dpt_bench_checkpoint, dpt_bench_strategies, dpt_bench_memory;

/* Prints one line about the wrong argument `arg`; if `arg` is --help, prints `usage` to stdout
 * instead. Returns false. */
bool dpt_bench_misused(const char *name, const char *usage, const char *arg);

/* Parses `--threads N` (default: the cores this process may use), `--json FILE`, `--repeats N`
 * (default 9), `--precision fp32|bf16|fp16` (default fp32). For anything else returns false and
 * prints the reason. `own`: the usage of the flags that the bench parses itself, or "". */
struct dpt_bench_args {
    int threads, repeats;
    enum dpt_dtype dtype;
    const char *json;
};
bool dpt_bench_parse(int argc, char **argv, const char *own, struct dpt_bench_args *ret);

/* Parses a whole number of min … max and nothing else; else *ret stays. */
bool dpt_bench_parse_int(const char *text, int min, int max, int *ret);
/* Parses 1 to n_max numbers, separated by commas. */
bool dpt_bench_parse_ints(const char *text, int min, int max, int n_max, int *ret, int *ret_n);

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

/* Precisions by the config's names. */
bool dpt_bench_parse_precision(const char *text, enum dpt_dtype *ret);
const char *dpt_bench_precision(enum dpt_dtype dtype);

/* Seconds of one call of `fn`, over `repeats` measurements, after one call to warm up. Each
 * measurement repeats the call for about 30 ms. */
enum { DPT_BENCH_REPEATS_MAX = 99 };
struct dpt_bench_time {
    double median_s, min_s, max_s;
};
struct dpt_bench_time dpt_bench_time(int repeats, void (*fn)(void *ctx), void *ctx);

/* Sorts in ascending order. */
void dpt_bench_sort(double *values, int n);

/* The gemm rate (as `dpt-bench gemm` defines it, of 3 repeats). Benches compare their rates with
 * it. */
DPT_MUST_USE enum dpt_status dpt_bench_gemm_rate(int threads, enum dpt_dtype dtype,
                                                 double *ret_gflops, struct dpt_err *err);

/* Writes `report` to args->json if that was given. Takes the reference. Returns an exit code. */
int dpt_bench_finish(const struct dpt_bench_args *args, json_t *report);

#endif
