/* The beginning and the end of a report's page: the verdict, the figures of the run, notes. */
#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>

/* ---- the verdict ---- */

/* A bar for each cause. The shares that are known add up to the step. */
static void write_shares(FILE *out, const struct dpt_report_verdict *verdict)
{
    double sum = 0;
    for (int cause = 0; cause < REPORT_CAUSES; cause++)
        sum += isfinite(verdict->share[cause]) ? verdict->share[cause] : 0;
    if (sum <= 0)
        return;
    dpt_html_table_begin(out, "Share of the step that each cause takes");
    (void)fputs("<thead><tr><th scope=\"col\">Cause</th><th scope=\"col\"></th>", out);
    page_head(out, "Step", "%");
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (int cause = 0; cause < REPORT_CAUSES; cause++) {
        const char *word = dpt_report_cause_word((enum dpt_report_cause)cause);
        (void)fprintf(out, "<tr><th scope=\"row\">%s</th><td class=\"wide\">", word);
        dpt_html_picture_begin(out, "thin", 10, word);
        (void)fprintf(out, "<rect class=\"%s\" width=\"%.2f%%\" height=\"10\"/>\n",
                      cause == (int)verdict->cause ? "accent" : "other",
                      page_percent(verdict->share[cause], 100));
        dpt_html_picture_end(out);
        (void)fputs("</td>", out);
        page_cell(out, verdict->share[cause], 1);
        (void)fputs("</tr>\n", out);
    }
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs(
        "<p class=\"note\">Of the mean step, on the rank that is the last of it: the others "
        "wait for that one.</p>\n",
        out);
}

void page_write_verdict(FILE *out, const struct dpt_report *report)
{
    const struct dpt_report_verdict *verdict = &report->verdict;
    const char *word = dpt_report_cause_word(verdict->cause);
    (void)fprintf(out, "<section class=\"verdict cause-%s\">\n<h2>Bottleneck: %s</h2>\n<p>", word,
                  word);
    dpt_html_text(out, verdict->text);
    (void)fputs("</p>\n", out);
    if (verdict->key[0]) {
        (void)fputs("<p>Key to change: <code>", out);
        dpt_html_text(out, verdict->key);
        (void)fputs("</code></p>\n", out);
    }
    write_shares(out, verdict);
    (void)fputs("</section>\n", out);
    if (verdict->warning[0]) {
        (void)fputs("<section class=\"warning\">\n<p><strong>Warning.</strong> ", out);
        dpt_html_text(out, verdict->warning);
        (void)fputs("</p>\n</section>\n", out);
    }
}

/* ---- figures of the run ---- */

static void write_tile(FILE *out, const char *name, double value, int decimals, const char *unit)
{
    char text[DPT_NUMBER_BYTES];
    (void)fprintf(out, "<div><dt>%s</dt><dd>%s <small>%s</small></dd></div>\n", name,
                  page_number(value, decimals, text), isfinite(value) ? unit : "");
}

void page_write_tiles(FILE *out, const struct dpt_report *report)
{
    const struct dpt_report_means *m = &report->means;
    const struct page_unit time = page_time_unit(m->step_ms * 1e6);
    const struct page_unit memory = page_memory_unit(m->memory_peak_mib * 1048576);
    (void)fputs("<dl class=\"tiles\">\n", out);
    write_tile(out, "Step", m->step_ms * 1e6 / time.size, time.decimals, time.name);
    write_tile(out, "Compute kernels", m->compute_percent, 1, "%");
    write_tile(out, "Exposed transfer", report->verdict.exposed_percent, 1, "% of a step");
    write_tile(out, "Exposed wait for peers", report->verdict.wait_percent, 1, "% of a step");
    write_tile(out, "Overlap", m->overlap_percent, 1, "%");
    write_tile(out, "Idle", m->idle_percent, 1, "%");
    write_tile(out, "Peak memory", m->memory_peak_mib * 1048576 / memory.size, memory.decimals,
               memory.name);
    (void)fputs("</dl>\n<p class=\"note\">Means over the ranks. Compute kernels, overlap and idle "
                "are those of "
                "Holistic Trace Analysis, of the traced time.</p>\n",
                out);
}

/* ---- notes ---- */

static void write_dropped(FILE *out, const struct dpt_report *report)
{
    int64_t dropped = 0;
    int ranks = 0;
    for (size_t i = 0; i < report->n_ranks; i++) {
        dropped += report->ranks[i].dropped_events;
        ranks += report->ranks[i].dropped_events > 0;
    }
    char number[DPT_NUMBER_BYTES];
    if (dropped > 0)
        (void)fprintf(
            out,
            "<p><strong>%s events of %d rank%s were dropped</strong>: the figures lack them. "
            "Lower <code>trace.active</code>.</p>\n",
            page_number((double)dropped, 0, number), ranks, ranks == 1 ? "" : "s");
}

static void write_paths(FILE *out, const struct dpt_report *report)
{
    (void)fprintf(out, "<details><summary>%zu trace file%s</summary>\n<ul class=\"paths\">\n",
                  report->n_ranks, report->n_ranks == 1 ? "" : "s");
    for (size_t i = 0; i < report->n_ranks; i++) {
        (void)fputs("<li>", out);
        dpt_html_text(out, report->ranks[i].path ? report->ranks[i].path : "–");
        (void)fputs("</li>\n", out);
    }
    (void)fputs("</ul>\n</details>\n", out);
}

void page_write_notes(FILE *out, const struct dpt_report *report)
{
    (void)fputs("<section>\n<h2>Source</h2>\n", out);
    write_dropped(out, report);
    if (report->clock_error_ns != REPORT_UNKNOWN) {
        const struct page_unit unit = page_time_unit((double)report->clock_error_ns);
        char number[DPT_NUMBER_BYTES];
        (void)fprintf(
            out,
            "<p class=\"note\">The clocks of the ranks differ by at most %s %s, so times "
            "between ranks have this error.</p>\n",
            page_number((double)report->clock_error_ns / unit.size, unit.decimals, number),
            unit.name);
    } else if (report->n_ranks > 1) {
        (void)fputs(
            "<p class=\"note\">The traces do not state how far the clocks of the ranks differ: "
            "waits for late peers may be wrong by that difference.</p>\n",
            out);
    }
    write_paths(out, report);
    (void)fputs("</section>\n", out);
}
