/* The page of a report: its sections in order. */
#include "worker/report/page.h"

#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_parts.h"

#include <inttypes.h>
#include <time.h>

static void write_date(FILE *out, int64_t since_1970_ns)
{
    const time_t seconds = (time_t)(since_1970_ns / 1000000000);
    struct tm utc;
    char date[32];
    if (since_1970_ns > 0 && gmtime_r(&seconds, &utc) &&
        strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &utc) > 0)
        (void)fprintf(out, ", %s", date);
}

/* "4 ranks, steps 11 to 14, generation 2, window 0, traced by dpt, 2026-01-02 03:04:05 UTC" */
static void write_facts(FILE *out, const struct dpt_report *report)
{
    int64_t first = 0, last = REPORT_UNKNOWN;
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_rank *rank = &report->ranks[i];
        if (rank->n_steps == 0)
            continue;
        const int64_t end = rank->step[rank->n_steps - 1];
        first = last == REPORT_UNKNOWN || rank->first_step < first ? rank->first_step : first;
        last = end > last ? end : last;
    }
    (void)fprintf(out, "<p class=\"facts\">%zu", report->n_ranks);
    if (report->world_size > 0 && (size_t)report->world_size != report->n_ranks)
        (void)fprintf(out, " of %d", report->world_size);
    (void)fprintf(out, " rank%s", report->n_ranks == 1 ? "" : "s");
    if (last != REPORT_UNKNOWN)
        (void)fprintf(out, ", steps %" PRId64 " to %" PRId64, first, last);
    if (report->generation != REPORT_UNKNOWN)
        (void)fprintf(out, ", generation %" PRId64, report->generation);
    if (report->window != REPORT_UNKNOWN)
        (void)fprintf(out, ", window %" PRId64, report->window);
    (void)fputs(", traced by ", out);
    dpt_html_text(out, report->source);
    write_date(out, report->began_ns);
    (void)fputs("</p>\n", out);
}

static void write_fact(FILE *out, const char *name, const char *value)
{
    if (!value[0])
        return;
    (void)fprintf(out, "<li>%s: ", name);
    dpt_html_text(out, value);
    (void)fputs("</li>\n", out);
}

static void write_count(FILE *out, const char *name, int count)
{
    char text[16] = "";
    if (count > 0)
        (void)snprintf(text, sizeof text, "%d", count);
    write_fact(out, name, text);
}

/* The keys on which the remedies depend. */
static void write_setup(FILE *out, const struct report_setup *setup)
{
    if (setup->hosts == 0) /* of another program */
        return;
    (void)fputs("<ul class=\"legend facts\" title=\"Config of the run\">\n", out);
    write_count(out, "number of hosts", setup->hosts);
    write_fact(out, "cluster.device", setup->device);
    write_fact(out, "train.precision", setup->precision);
    write_count(out, "train.global_batch", setup->global_batch);
    write_count(out, "train.micro_batch", setup->micro_batch);
    write_fact(out, "train.activation_checkpointing", setup->activation_checkpointing);
    write_fact(out, "strategy.overlap",
               setup->overlap == REPORT_FACT_UNKNOWN ? ""
               : setup->overlap == REPORT_FACT_YES   ? "true"
                                                     : "false");
    write_fact(out, "strategy.compression", setup->compression);
    write_fact(out, "data.kind", setup->data);
    (void)fputs("</ul>\n", out);
}

static void write_one(FILE *out, const struct dpt_report *report)
{
    dpt_html_begin(out, report->strategy[0] ? report->strategy : report->name, "dpt-trace");
    write_facts(out, report);
    write_setup(out, &report->setup);
    page_write_verdict(out, report);
    page_write_tiles(out, report);
    page_write_breakdown(out, report);
    page_write_timeline(out, report);
    page_write_steps(out, report);
    page_write_rank_table(out, report);
    page_write_phase_table(out, report);
    page_write_collectives(out, report);
    page_write_ops(out, report);
    page_write_memory(out, report);
    page_write_notes(out, report);
    dpt_html_end(out);
}

static void write_comparison(FILE *out, const struct dpt_report *reports, size_t n)
{
    dpt_html_begin(out, "Comparison of strategies", "dpt-trace");
    page_write_comparison(out, reports, n);
    dpt_html_end(out);
}

enum dpt_status dpt_report_page_write(const struct dpt_report *reports, size_t n, FILE *out,
                                      struct dpt_err *err)
{
    DPT_ASSERT(n >= 1);
    if (n == 1)
        write_one(out, reports);
    else
        write_comparison(out, reports, n);
    if (fflush(out) != 0 || ferror(out))
        return dpt_fail(err, DPT_EIO, "write the page: not all of it could be written");
    return DPT_OK;
}
