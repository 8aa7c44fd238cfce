/* The CSV of a report (summary.h). */
#include "worker/report/means.h"
#include "worker/report/summary.h"

#include <math.h>
#include <string.h>

void report_csv_text(const char *text, FILE *out)
{
    const bool quotes = strpbrk(text, ",\"\n\r") != NULL;
    if (!quotes) {
        (void)fputs(text, out);
        return;
    }
    (void)fputc('"', out);
    for (const char *c = text; *c; c++) {
        if (*c == '"')
            (void)fputc('"', out);
        (void)fputc(*c, out);
    }
    (void)fputc('"', out);
}

static void print_number(FILE *out, int64_t value)
{
    (void)fputc(',', out);
    if (value != REPORT_UNKNOWN)
        (void)fprintf(out, "%lld", (long long)value);
}

static void print_decimal(FILE *out, double value, int digits)
{
    (void)fputc(',', out);
    if (isfinite(value))
        (void)fprintf(out, "%.*f", digits, value);
}

static void print_ms(FILE *out, int64_t ns)
{
    print_decimal(out, (double)ns / 1e6, 6);
}

static void print_header(FILE *out)
{
    (void)fputs("strategy,world_size,generation,window,rank,first_step,steps,step_ms,window_ms,"
                "compute_ms,compute_percent,non_compute_ms,non_compute_percent,idle_ms,"
                "idle_percent,overlap_percent,comm_overhead_percent,exposed_percent,kernels_ms",
                out);
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++) {
        const char *word = dpt_report_collective_word((enum dpt_report_collective_kind)kind);
        (void)fprintf(out, ",%s_ms,%s_calls,%s_bytes,%s_bus_gb_s,%s_wait_ms", word, word, word,
                      word, word);
    }
    (void)fputs(",peer_wait_ms,data_wait_ms,checkpoint_ms,optimizer_ms,forward_ms,backward_ms,"
                "grad_sync_ms,evaluation_ms,formation_ms,memory_peak_bytes,memory_final_bytes,"
                "memory_p50_bytes,memory_p95_bytes,dropped_events,file\n",
                out);
}

static void print_breakdown(const struct dpt_report_rank *rank, FILE *out)
{
    const struct dpt_report_breakdown *t = &rank->time;
    print_ms(out, t->window_ns);
    print_ms(out, t->compute_ns);
    print_decimal(out, t->compute_percent, 4);
    print_ms(out, t->non_compute_ns);
    print_decimal(out, t->non_compute_percent, 4);
    print_ms(out, t->idle_ns);
    print_decimal(out, t->idle_percent, 4);
    print_decimal(out, t->overlap_percent, 4);
    print_decimal(out, t->comm_overhead_percent, 4);
    print_decimal(out, t->exposed_percent, 4);
    print_ms(out, rank->kernels_ns);
}

static void print_collectives(const struct dpt_report_rank *rank, FILE *out)
{
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++) {
        const struct dpt_report_collective *sum = &rank->collective[kind];
        print_ms(out, sum->time_ns);
        print_number(out, sum->calls);
        print_decimal(out, sum->bytes, 0);
        print_decimal(out, sum->bus_gb_s, 4);
        print_ms(out, sum->wait_ns);
    }
}

static void print_parts(const struct dpt_report_rank *rank, FILE *out)
{
    const struct dpt_report_phases *p = &rank->phases;
    const int64_t parts[] = {p->peer_wait_ns, p->data_wait_ns,  p->checkpoint_ns,
                             p->optimizer_ns, p->forward_ns,    p->backward_ns,
                             p->grad_sync_ns, p->evaluation_ns, p->formation_ns};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        print_ms(out, parts[i]);
    print_number(out, rank->memory.peak);
    print_number(out, rank->memory.final);
    print_number(out, rank->memory.p50);
    print_number(out, rank->memory.p95);
}

void report_csv_print(const struct dpt_report *report, FILE *out)
{
    print_header(out);
    for (size_t r = 0; r < report->n_ranks; r++) {
        const struct dpt_report_rank *rank = &report->ranks[r];
        report_csv_text(report->strategy, out);
        print_number(out, report->world_size);
        print_number(out, report->generation);
        print_number(out, report->window);
        print_number(out, rank->rank);
        print_number(out, rank->first_step);
        print_number(out, (int64_t)rank->n_steps);
        print_decimal(out, report_step_ms(rank), 6);
        print_breakdown(rank, out);
        print_collectives(rank, out);
        print_parts(rank, out);
        print_number(out, rank->dropped_events);
        (void)fputc(',', out);
        report_csv_text(rank->path, out);
        (void)fputc('\n', out);
    }
}

void report_means_csv_print(const struct dpt_report *reports, size_t n, FILE *out)
{
    (void)fputs("name,source,world_size", out);
    for (size_t column = 0; column < report_n_mean_columns; column++)
        (void)fprintf(out, ",%s", report_mean_columns[column].name);
    (void)fputs(",bottleneck\n", out);
    for (size_t i = 0; i < n; i++) {
        report_csv_text(reports[i].name, out);
        (void)fprintf(out, ",%s", reports[i].source);
        print_number(out, reports[i].n_ranks > 0 ? reports[i].world_size : REPORT_UNKNOWN);
        for (size_t column = 0; column < report_n_mean_columns; column++)
            print_decimal(out, report_mean_get(&reports[i].means, column), 6);
        (void)fprintf(out, ",%s\n",
                      reports[i].n_ranks > 0 ? dpt_report_cause_word(reports[i].verdict.cause)
                                             : "");
    }
}
