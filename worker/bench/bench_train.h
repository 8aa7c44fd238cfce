/* Parts of dpt-bench train: one run of a real rank, and what is printed of runs. */
#ifndef DPT_WORKER_BENCH_BENCH_TRAIN_H
#define DPT_WORKER_BENCH_BENCH_TRAIN_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { TRAIN_STEPS_MAX = 4096 };

/* All texts are borrowed. */
struct train_case {
    const char *preset, *precision, *device, *offload, *pack_weights, *checkpointing;
    bool op_times;
    int64_t batch, seq, slots, threads;
    int64_t steps, warmup; /* all steps; of these, the first `warmup` are not timed */
    double peak;           /* FLOP/s of the GPU, by the user; 0: the rate in the table of chips */
    const char *dir;       /* for the files of the run */
};

/* bench_train_run.c. Whether the case's config and model can be made; allocates no memory of a run.
 * DPT_ECONFIG: they cannot. */
DPT_MUST_USE enum dpt_status train_case_check(const struct train_case *c, struct dpt_err *err);
/* A part for dpt_bench_in_child; ctx: struct train_case. Trains for the case's
 * steps. *ret: an object with the figures of the run:
 *   step_ms          median of the timed steps; tokens_per_s and gflops follow from it
 *   total_tokens, elapsed_s, steps_per_s, mean_tokens_per_s    of all timed steps
 *   model_flops      FLOP/s at 6N + 6LCT a token; on a GPU of known peak also peak_tflops and mfu
 *   loss             of the last step
 *   memory_bytes     most bytes allocated where the model is computed; true_peak_bytes: most bytes
 *                    of the process (CPU)
 *   memory           the rank's record of its memory
 * DPT_EREFUSED: the rank refuses to train; the text is its reason. */
DPT_MUST_USE enum dpt_status train_case_run(const void *ctx, json_t **ret, struct dpt_err *err);

/* bench_train_report.c. Adds what the gemm rate of the same cores and precision gives: gemm_gflops,
 * share (of 6N) and, on the CPU, mfu. */
void train_report_add_rate(json_t *run, double gemm_gflops);
/* Adds the price of the run: dollars and dollars_per_1m_tokens at `price` dollars an hour. */
void train_report_add_price(json_t *run, double price);
void train_report_print(const json_t *run);
/* Adds the price of all runs to a report of several: dollars; nothing if none has a price. */
void train_report_add_total(json_t *report);
/* A line for each of the report's runs: those that ran out of memory have "oom". Then the price of
 * all. */
void train_report_print_table(const json_t *report);
/* Prints the throughput of a model of 1e12 parameters and the time of 1e13 tokens: the FLOPs of a
 * token are taken to grow with the parameters, at the same FLOP/s. Adds both to `ret`. */
void train_report_extrapolate(double tokens_per_s, double parameters, json_t *ret);

#endif
