/* The lines for the terminal (summary.h). */
#include "worker/report/means.h"
#include "worker/report/summary.h"

#include <math.h>

enum { NAME_COLUMNS = 16, CELL_COLUMNS = 11 };

static void print_cell(FILE *out, double value, int digits)
{
    if (isfinite(value))
        (void)fprintf(out, "%*.*f", CELL_COLUMNS, digits, value);
    else
        (void)fprintf(out, "%*s", CELL_COLUMNS, "-");
}

static void print_heads(const char *name, FILE *out)
{
    static const char *const heads[] = {"step ms", "compute %", "other %", "idle %",  "overlap %",
                                        "comm %",  "exposed %", "wait ms", "data ms", "peak MiB"};
    (void)fprintf(out, "%-*s", NAME_COLUMNS, name);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        (void)fprintf(out, "%*s", CELL_COLUMNS, heads[i]);
    (void)fputc('\n', out);
}

static void print_row(const char *name, const struct dpt_report_means *row, FILE *out)
{
    (void)fprintf(out, "%-*s", NAME_COLUMNS, name);
    print_cell(out, row->step_ms, 2);
    print_cell(out, row->compute_percent, 2);
    print_cell(out, row->non_compute_percent, 2);
    print_cell(out, row->idle_percent, 2);
    print_cell(out, row->overlap_percent, 2);
    print_cell(out, row->comm_overhead_percent, 2);
    print_cell(out, row->exposed_percent, 2);
    print_cell(out, row->wait_ms, 2);
    print_cell(out, row->data_wait_ms, 2);
    print_cell(out, row->memory_peak_mib, 1);
    (void)fputc('\n', out);
}

void report_terminal_print(const struct dpt_report *report, FILE *out)
{
    const struct dpt_report_rank *first = &report->ranks[0];
    char name[32];
    (void)fprintf(out, "%s, world size %d, %zu %s from step %lld", report->strategy,
                  report->world_size, first->n_steps, first->n_steps == 1 ? "step" : "steps",
                  (long long)first->first_step);
    if (report->generation != REPORT_UNKNOWN)
        (void)fprintf(out, ", generation %lld, window %lld", (long long)report->generation,
                      (long long)report->window);
    (void)fputc('\n', out);
    print_heads("", out);
    print_row("mean", &report->means, out);
    for (size_t r = 0; r < report->n_ranks; r++) {
        const struct dpt_report_means row = report_means_of_rank(&report->ranks[r]);
        (void)snprintf(name, sizeof name, "rank %d", report->ranks[r].rank);
        print_row(name, &row, out);
    }
    (void)fprintf(out, "%s\n", report->verdict.text);
    if (report->verdict.warning[0])
        (void)fprintf(out, "Warning: %s\n", report->verdict.warning);
}

void report_comparison_print(const struct dpt_report *reports, size_t n, FILE *out)
{
    print_heads("", out);
    for (size_t i = 0; i < n; i++)
        print_row(reports[i].name, &reports[i].means, out);
    for (size_t i = 0; i < n; i++)
        if (reports[i].n_ranks > 0)
            (void)fprintf(out, "%s: %s\n", reports[i].name, reports[i].verdict.text);
}
