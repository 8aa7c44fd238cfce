/* Several reports side by side: means over the ranks, bars, and the verdict of each. */
#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static bool is_of_csv(const struct dpt_report *report)
{
    return strcmp(report->source, "csv") == 0;
}

static void write_name(FILE *out, const struct dpt_report *report)
{
    (void)fputs("<th scope=\"row\" class=\"name\">", out);
    dpt_html_short_text(out, report->name, PAGE_NAME_CHARACTERS);
    if (is_of_csv(report))
        (void)fputs(" <span class=\"facts\">CSV</span>", out);
    (void)fputs("</th>", out);
}

/* ---- the table ---- */

struct column {
    const char *name, *unit;
    size_t at; /* of the double in struct dpt_report_means */
    int decimals;
    bool less_is_better; /* the least value is marked */
};

#define MEAN(member) offsetof(struct dpt_report_means, member)

static const struct column columns[] = {
    {"Step", "ms", MEAN(step_ms), 2, true},
    {"Compute", "%", MEAN(compute_percent), 1, false},
    {"Exposed", "%", MEAN(exposed_percent), 1, true},
    {"Overlap", "%", MEAN(overlap_percent), 1, false},
    {"Overhead", "%", MEAN(comm_overhead_percent), 1, false},
    {"Idle", "%", MEAN(idle_percent), 1, false},
    {"Wait for peers", "ms", MEAN(wait_ms), 2, false},
    {"Wait for data", "ms", MEAN(data_wait_ms), 2, false},
    {"All-reduce", "ms", MEAN(all_reduce_ms), 2, false},
    {"Peak memory", "MiB", MEAN(memory_peak_mib), 1, true},
};

enum { COLUMNS = sizeof columns / sizeof *columns };

static double value_of(const struct dpt_report *report, const struct column *column)
{
    double value;
    memcpy(&value, (const char *)&report->means + column->at, sizeof value);
    return value;
}

static double least_of(const struct dpt_report *reports, size_t n, const struct column *column)
{
    double least = (double)INFINITY;
    for (size_t i = 0; i < n; i++)
        if (isfinite(value_of(&reports[i], column)))
            least = fmin(least, value_of(&reports[i], column));
    return least;
}

static void write_row(FILE *out, const struct dpt_report *report, const double least[COLUMNS],
                      double first_step_ms)
{
    char number[DPT_NUMBER_BYTES];
    (void)fputs("<tr>", out);
    write_name(out, report);
    for (int c = 0; c < COLUMNS; c++) {
        const double value = value_of(report, &columns[c]);
        const bool is_best = columns[c].less_is_better && value <= least[c];
        (void)fprintf(out, "<td%s>%s</td>", is_best ? " class=\"best\"" : "",
                      page_number(value, columns[c].decimals, number));
        if (c == 0) /* beside the time of a step */
            page_cell(out, first_step_ms / value, 2);
    }
    (void)fprintf(out, "<td class=\"text\">%s</td></tr>\n",
                  is_of_csv(report) ? "–" : dpt_report_cause_word(report->verdict.cause));
}

static void write_table(FILE *out, const struct dpt_report *reports, size_t n)
{
    double least[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        least[c] = least_of(reports, n, &columns[c]);
    (void)fputs(
        "<section>\n<p class=\"note\">Means over the ranks; times are of one step. The speed is "
        "relative to the first row. Exposed communication contains the wait for peers. The least "
        "step, exposed communication and memory are bold.</p>\n",
        out);
    dpt_html_table_begin(out, "Strategies side by side");
    (void)fputs("<thead><tr><th scope=\"col\">Strategy</th>", out);
    for (int c = 0; c < COLUMNS; c++) {
        page_head(out, columns[c].name, columns[c].unit);
        if (c == 0)
            page_head(out, "Speed", "×");
    }
    (void)fputs("<th scope=\"col\" class=\"text\">Bottleneck</th></tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < n; i++)
        write_row(out, &reports[i], least, reports[0].means.step_ms);
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs("</section>\n", out);
}

/* ---- bars ---- */

struct bars {
    const char *title, *head, *class;
    size_t at;    /* of the double in struct dpt_report_means */
    double bytes; /* of one unit of the double */
    struct page_unit (*unit)(double largest_bytes);
};

static const struct bars memory_bars = {"Peak memory",         "Peak",  "compute",
                                        MEAN(memory_peak_mib), 1048576, page_memory_unit};
static const struct bars bytes_bars = {"Bytes that collectives of a step move",
                                       "Moved",
                                       "comm",
                                       MEAN(collective_bytes),
                                       1,
                                       page_bytes_unit};

static void write_bars(FILE *out, const struct bars *bars, const struct dpt_report *reports,
                       size_t n)
{
    const struct column column = {.at = bars->at};
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(value_of(&reports[i], &column)))
            largest = fmax(largest, bars->bytes * value_of(&reports[i], &column));
    if (largest <= 0)
        return;
    const struct page_unit unit = bars->unit(largest);
    (void)fprintf(out, "<section>\n<h2>%s</h2>\n", bars->title);
    dpt_html_table_begin(out, bars->title);
    (void)fputs("<thead><tr><th scope=\"col\">Strategy</th><th scope=\"col\"></th>", out);
    page_head(out, bars->head, unit.name);
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < n; i++) {
        const double bytes = bars->bytes * value_of(&reports[i], &column);
        (void)fputs("<tr>", out);
        write_name(out, &reports[i]);
        (void)fputs("<td class=\"wide\">", out);
        dpt_html_picture_begin(out, "thin", 14, bars->title);
        (void)fprintf(out, "<rect class=\"%s\" width=\"%.2f%%\" height=\"14\"/>\n", bars->class,
                      page_percent(bytes, largest));
        dpt_html_picture_end(out);
        (void)fputs("</td>", out);
        page_cell_in(out, &unit, bytes);
        (void)fputs("</tr>\n", out);
    }
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs("</section>\n", out);
}

/* ---- verdicts ---- */

static void write_verdict(FILE *out, const struct dpt_report *report)
{
    const struct dpt_report_verdict *verdict = &report->verdict;
    (void)fputs("<h3>", out);
    dpt_html_short_text(out, report->name, PAGE_NAME_CHARACTERS);
    (void)fprintf(out, ": %s</h3>\n<p>", dpt_report_cause_word(verdict->cause));
    dpt_html_text(out, verdict->text);
    if (verdict->key[0]) {
        (void)fputs(" Key to change: <code>", out);
        dpt_html_text(out, verdict->key);
        (void)fputs("</code>.", out);
    }
    (void)fputs("</p>\n", out);
    if (verdict->warning[0]) {
        (void)fputs("<p class=\"warning\"><strong>Warning.</strong> ", out);
        dpt_html_text(out, verdict->warning);
        (void)fputs("</p>\n", out);
    }
}

void page_write_comparison(FILE *out, const struct dpt_report *reports, size_t n)
{
    write_table(out, reports, n);
    page_write_compared_breakdown(out, reports, n);
    write_bars(out, &memory_bars, reports, n);
    write_bars(out, &bytes_bars, reports, n);
    (void)fputs("<section>\n<h2>What limits each strategy</h2>\n", out);
    for (size_t i = 0; i < n; i++)
        if (!is_of_csv(&reports[i]))
            write_verdict(out, &reports[i]);
    (void)fputs("</section>\n", out);
}
