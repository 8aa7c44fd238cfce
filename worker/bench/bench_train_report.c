/* What dpt-bench train prints of its runs (bench_train.h). */
#include "worker/bench/bench_train.h"
#include "worker/bench/memory_record.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static double number_of(const json_t *run, const char *key)
{
    return json_number_value(json_object_get(run, key));
}

static const char *text_of(const json_t *run, const char *key)
{
    const char *text = json_string_value(json_object_get(run, key));
    return text ? text : "";
}

static bool has(const json_t *run, const char *key)
{
    return json_object_get(run, key) != NULL;
}

static double mb(double bytes)
{
    return bytes / 0x1p20;
}

void train_report_add_rate(json_t *run, double gemm_gflops)
{
    json_object_set_new(run, "gemm_gflops", json_real(gemm_gflops));
    json_object_set_new(run, "share", json_real(number_of(run, "gflops") / gemm_gflops));
    json_object_set_new(run, "mfu", json_real(number_of(run, "model_flops") * 1e-9 / gemm_gflops));
}

void train_report_add_price(json_t *run, double price)
{
    const double dollars = price * number_of(run, "elapsed_s") / 3600;
    json_object_set_new(run, "dollars", json_real(dollars));
    json_object_set_new(run, "dollars_per_1m_tokens",
                        json_real(dollars * 1e6 / number_of(run, "total_tokens")));
}

void train_report_add_total(json_t *report)
{
    size_t i;
    const json_t *run;
    double dollars = 0;
    bool priced = false;
    json_array_foreach(json_object_get(report, "runs"), i, run)
    {
        priced = priced || has(run, "dollars");
        dollars += number_of(run, "dollars");
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
    const double steps = number_of(record, "steps");
    const double idle = number_of(stream, "idle_ms");
    const double all = number_of(stream, "busy_ms") + idle;
    const char *name;
    printf("kernels of the %s, a step:\n", on_device ? "device" : "host");
    json_object_foreach(json_object_get(stream, "classes"), name, class)
    {
        const double ms = number_of(class, "ms");
        printf("  %-10s %10.2f ms  %5.1f %%  %6.0f calls\n", name, ms / steps, 100 * ms / all,
               number_of(class, "calls") / steps);
    }
    printf("  %-10s %10.2f ms  %5.1f %%\n", "idle", idle / steps, 100 * idle / all);
}

static void print_rates(const json_t *run)
{
    const double rate = number_of(run, "gemm_gflops");
    printf("%s in %s, B=%.0f T=%.0f, %.0f slots a step, %.0f threads: %.0f ms a step (median of "
           "%.0f), %.1f tokens/s\n",
           text_of(run, "preset"), text_of(run, "precision"), number_of(run, "batch"),
           number_of(run, "seq"), number_of(run, "slots"), number_of(run, "threads"),
           number_of(run, "step_ms"), number_of(run, "steps_timed"),
           number_of(run, "tokens_per_s"));
    if (has(run, "gemm_gflops"))
        printf("6N flops a token: %.1f GFLOP/s, %.1f%% of the gemm rate of %.1f GFLOP/s\n",
               number_of(run, "gflops"), 100 * number_of(run, "share"), rate);
    if (has(run, "mfu"))
        printf("MFU %.1f%% of %.4g TFLOP/s%s, at 6N+6LCT flops a token\n",
               100 * number_of(run, "mfu"),
               has(run, "peak_tflops") ? number_of(run, "peak_tflops") : rate * 1e-3,
               has(run, "peak_tflops") ? "" : " (the gemm rate)");
}

static void print_memory(const json_t *run)
{
    if (*text_of(run, "chip"))
        printf("%s: %.1f MiB at most (offload: %s)\n", text_of(run, "chip"),
               mb(number_of(run, "device_peak_bytes")), text_of(run, "offload"));
    else
        printf("packed weights: %s\n", text_of(run, "pack_weights"));
    printf("activations: %.1f MiB kept (activation_checkpointing: %s) and %.1f MiB of scratch\n",
           mb(number_of(run, "saved_bytes")), text_of(run, "checkpointing"),
           mb(number_of(run, "scratch_bytes")));
    printf("allocations in %.0f steps: %.0f\n", number_of(run, "steps_counted"),
           number_of(run, "allocations_in_step"));
    memory_record_print(json_object_get(run, "memory"));
}

void train_report_print(const json_t *run)
{
    print_rates(run);
    print_memory(run);
    if (has(run, "op_times"))
        print_op_times(json_object_get(run, "op_times"));
    printf("%.0f warm-up steps, %.0f timed steps\n", number_of(run, "warmup_steps"),
           number_of(run, "steps_timed"));
    printf("Total tokens processed: %.0f\n", number_of(run, "total_tokens"));
    printf("Time elapsed: %.3f s\n", number_of(run, "elapsed_s"));
    printf("Tokens per second: %.1f\n", number_of(run, "mean_tokens_per_s"));
    printf("Steps per second: %.3f\n", number_of(run, "steps_per_s"));
    if (has(run, "dollars"))
        printf("Cost: $%.6g for the timed steps, $%.6g per 1M tokens\n", number_of(run, "dollars"),
               number_of(run, "dollars_per_1m_tokens"));
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
        if (number_of(run, "batch") == batch)
            return run;
    }
    return NULL;
}

static void print_table_row(const json_t *run, const json_t *first, bool priced)
{
    char mfu[16] = "-";
    const bool compared = run != first && !has(first, "oom");
    printf("%-9s %6.0f", text_of(run, "precision"), number_of(run, "batch"));
    if (has(run, "oom")) {
        printf(" %12s\n", "OOM");
        return;
    }
    if (has(run, "mfu"))
        (void)snprintf(mfu, sizeof mfu, "%.1f %%", 100 * number_of(run, "mfu"));
    printf(" %12.1f %12.1f %12.1f %9s %10.5f", number_of(run, "mean_tokens_per_s"),
           mb(number_of(run, "memory_bytes")), mb(number_of(run, "true_peak_bytes")), mfu,
           number_of(run, "loss"));
    if (priced)
        printf(" %12.6f", number_of(run, "dollars"));
    if (compared)
        printf(" %7.2fx %7.2fx %+11.5f",
               number_of(run, "mean_tokens_per_s") / number_of(first, "mean_tokens_per_s"),
               number_of(run, "memory_bytes") / number_of(first, "memory_bytes"),
               number_of(run, "loss") - number_of(first, "loss"));
    printf("\n");
}

void train_report_print_table(const json_t *report)
{
    size_t i;
    const json_t *run, *runs = json_object_get(report, "runs");
    const bool priced = has(report, "dollars");
    bool compared = false;
    json_array_foreach(runs, i, run)
    {
        compared = compared || first_of_batch(runs, number_of(run, "batch")) != run;
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
        print_table_row(run, first_of_batch(runs, number_of(run, "batch")), priced);
    }
    if (priced)
        printf("Cost: $%.6g for the timed steps of all runs\n", number_of(report, "dollars"));
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
