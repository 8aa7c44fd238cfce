/* What dpt-bench train prints of its runs (bench_train.h). */
#include "worker/bench/bench_train.h"
#include "worker/bench/cost.h"
#include "worker/bench/memory_record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double run_number(const json_t *run, const char *key)
{
    return json_number_value(json_object_get(run, key));
}

static const char *run_text(const json_t *run, const char *key)
{
    const char *text = json_string_value(json_object_get(run, key));
    return text ? text : "";
}

static bool run_has(const json_t *run, const char *key)
{
    return json_object_get(run, key) != NULL;
}

static double run_mib(const json_t *run, const char *key)
{
    return run_number(run, key) / 0x1p20;
}

void train_report_add_rate(json_t *run, double gemm_gflops)
{
    json_object_set_new(run, "gemm_gflops", json_real(gemm_gflops));
    json_object_set_new(run, "share", json_real(run_number(run, "gflops") / gemm_gflops));
    json_object_set_new(run, "mfu", json_real(run_number(run, "model_flops") * 1e-9 / gemm_gflops));
}

void train_report_add_price(json_t *run, double price)
{
    const double dollars = bench_dollars(price, 1, run_number(run, "elapsed_s"));
    json_object_set_new(run, "dollars", json_real(dollars));
    json_object_set_new(
        run, "dollars_per_1m_tokens",
        json_real(bench_dollars_per_1m(price, 1, run_number(run, "mean_tokens_per_s"))));
}

void train_report_add_total(json_t *report)
{
    size_t i;
    const json_t *run;
    double dollars = 0;
    bool priced = false;
    json_array_foreach(json_object_get(report, "runs"), i, run)
    {
        priced = priced || run_has(run, "dollars");
        dollars += run_number(run, "dollars");
    }
    if (priced)
        json_object_set_new(report, "dollars", json_real(dollars));
}

/* ---- one run ---- */

/* Prints a line for each class of kernels: milliseconds and calls a step, share of the stream's
 * time. */
static void print_op_times(const json_t *record)
{
    json_t *device = json_object_get(record, "device");
    const bool on_device = json_is_object(device);
    json_t *stream = on_device ? device : json_object_get(record, "host"), *class;
    const double steps = run_number(record, "steps");
    const double idle = run_number(stream, "idle_ms");
    const double all = run_number(stream, "busy_ms") + idle;
    const char *name;
    printf("kernels of the %s, a step:\n", on_device ? "device" : "host");
    json_object_foreach(json_object_get(stream, "classes"), name, class)
    {
        const double ms = run_number(class, "ms");
        printf("  %-10s %10.2f ms  %5.1f %%  %6.0f calls\n", name, ms / steps, 100 * ms / all,
               run_number(class, "calls") / steps);
    }
    printf("  %-10s %10.2f ms  %5.1f %%\n", "idle", idle / steps, 100 * idle / all);
}

static void print_rates(const json_t *run)
{
    const double rate = run_number(run, "gemm_gflops");
    printf("%s in %s, B=%.0f T=%.0f, %.0f slots a step, %.0f threads: %.0f ms a step (median of "
           "%.0f), %.1f tokens/s\n",
           run_text(run, "preset"), run_text(run, "precision"), run_number(run, "batch"),
           run_number(run, "seq"), run_number(run, "slots"), run_number(run, "threads"),
           run_number(run, "step_ms"), run_number(run, "steps_timed"),
           run_number(run, "tokens_per_s"));
    if (run_has(run, "gemm_gflops"))
        printf("6N flops a token: %.1f GFLOP/s, %.1f%% of the gemm rate of %.1f GFLOP/s\n",
               run_number(run, "gflops"), 100 * run_number(run, "share"), rate);
    if (run_has(run, "mfu"))
        printf("MFU %.1f%% of %.4g TFLOP/s%s, at 6N+6LCT flops a token\n",
               100 * run_number(run, "mfu"),
               run_has(run, "peak_tflops") ? run_number(run, "peak_tflops") : rate * 1e-3,
               run_has(run, "peak_tflops") ? "" : " (the gemm rate)");
}

static void print_memory(const json_t *run)
{
    if (*run_text(run, "chip"))
        printf("%s: %.1f MiB at most (offload: %s)\n", run_text(run, "chip"),
               run_mib(run, "device_peak_bytes"), run_text(run, "offload"));
    else
        printf("packed weights: %s\n", run_text(run, "pack_weights"));
    printf("activations: %.1f MiB kept (activation_checkpointing: %s) and %.1f MiB of scratch\n",
           run_mib(run, "saved_bytes"), run_text(run, "checkpointing"),
           run_mib(run, "scratch_bytes"));
    printf("allocations in %.0f steps: %.0f\n", run_number(run, "steps_counted"),
           run_number(run, "allocations_in_step"));
    memory_record_print(json_object_get(run, "memory"));
}

void train_report_print(const json_t *run)
{
    print_rates(run);
    print_memory(run);
    if (run_has(run, "op_times"))
        print_op_times(json_object_get(run, "op_times"));
    printf("%.0f warm-up steps, %.0f timed steps\n", run_number(run, "warmup_steps"),
           run_number(run, "steps_timed"));
    printf("Total tokens processed: %.0f\n", run_number(run, "total_tokens"));
    printf("Time elapsed: %.3f s\n", run_number(run, "elapsed_s"));
    printf("Tokens per second: %.1f\n", run_number(run, "mean_tokens_per_s"));
    printf("Steps per second: %.3f\n", run_number(run, "steps_per_s"));
    if (run_has(run, "dollars"))
        printf("Cost: $%.6g for the timed steps, $%.6g per 1M tokens\n", run_number(run, "dollars"),
               run_number(run, "dollars_per_1m_tokens"));
    printf("\n");
}

/* ---- the table ---- */

/* The first run of this batch: the one that others of the batch are compared with. */
static const json_t *first_of_batch(const json_t *runs, double batch)
{
    size_t i;
    const json_t *run;
    json_array_foreach(runs, i, run)
    {
        if (run_number(run, "batch") == batch)
            return run;
    }
    return NULL;
}

static void print_table_row(const json_t *run, const json_t *first, bool priced)
{
    char mfu[16] = "-";
    const bool compared = run != first && !run_has(first, "oom");
    printf("%-9s %6.0f", run_text(run, "precision"), run_number(run, "batch"));
    if (run_has(run, "oom")) {
        printf(" %12s\n", "OOM");
        return;
    }
    if (run_has(run, "mfu"))
        (void)snprintf(mfu, sizeof mfu, "%.1f %%", 100 * run_number(run, "mfu"));
    printf(" %12.1f %12.1f %12.1f %9s %10.5f", run_number(run, "mean_tokens_per_s"),
           run_mib(run, "memory_bytes"), run_mib(run, "true_peak_bytes"), mfu,
           run_number(run, "loss"));
    if (priced)
        printf(" %12.6f", run_number(run, "dollars"));
    if (compared)
        printf(" %7.2fx %7.2fx %+11.5f",
               run_number(run, "mean_tokens_per_s") / run_number(first, "mean_tokens_per_s"),
               run_number(run, "memory_bytes") / run_number(first, "memory_bytes"),
               run_number(run, "loss") - run_number(first, "loss"));
    printf("\n");
}

void train_report_print_table(const json_t *report)
{
    size_t i;
    const json_t *run, *runs = json_object_get(report, "runs");
    const bool priced = run_has(report, "dollars");
    bool compared = false;
    json_array_foreach(runs, i, run)
    {
        compared = compared || first_of_batch(runs, run_number(run, "batch")) != run;
    }
    printf("%-9s %6s %12s %12s %12s %9s %10s", "precision", "batch", "tokens/s", "memory MB",
           "true peak MB", "MFU", "loss");
    if (priced)
        printf(" %12s", "dollars");
    if (compared)
        printf(" %8s %8s %11s", "speed", "memory", "loss differs");
    printf("\n");
    json_array_foreach(runs, i, run)
    {
        print_table_row(run, first_of_batch(runs, run_number(run, "batch")), priced);
    }
    if (priced)
        printf("Cost: $%.6g for the timed steps of all runs\n", run_number(report, "dollars"));
}

/* ---- extrapolation ---- */

void train_report_extrapolate(double tokens_per_s, double parameters, json_t *ret)
{
    enum { DAY_S = 24 * 3600 };
    const double rate = tokens_per_s * parameters / 1e12, days = 1e13 / rate / DAY_S;
    char time[64];
    (void)snprintf(time, sizeof time, days >= 1e6 ? "%.1f million days" : "%.1f days",
                   days >= 1e6 ? days * 1e-6 : days);
    printf("1T model throughput: %.3f tokens/s\n", rate);
    printf("10T tokens at this rate: %s\n", time);
    printf("(%.1f tokens/s x %.0f parameters / 1e12: the FLOPs of a token grow with the "
           "parameters, and as many FLOPs are done in a second; whether the model fits into the "
           "memory is not asked)\n",
           tokens_per_s, parameters);
    json_object_set_new(ret, "tokens_per_s_of_1t", json_real(rate));
    json_object_set_new(ret, "days_of_10t_tokens", json_real(days));
}
