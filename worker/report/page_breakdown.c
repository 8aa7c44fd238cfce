/* Where the time goes: a bar for each rank or report, of parts that add up to its whole time. */
#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum part {
    PART_COMPUTE,
    PART_EXPOSED,
    PART_WAIT,
    PART_OTHER,
    PART_DATA,
    PART_CHECKPOINT,
    PART_IDLE,
    PART_UNKNOWN, /* of a report without shares */
    PARTS
};

static const struct {
    const char *class, *name;
} part_of[PARTS] = {
    [PART_COMPUTE] = {"compute", "compute"},
    [PART_EXPOSED] = {"comm", "communication that is exposed"},
    [PART_WAIT] = {"wait", "wait for late peers"},
    [PART_OTHER] = {"other", "copies"},
    [PART_DATA] = {"data", "wait for data"},
    [PART_CHECKPOINT] = {"checkpoint", "checkpoint"},
    [PART_IDLE] = {"idle", "idle"},
    [PART_UNKNOWN] = {"phase", "not divided"},
};

/* Shares in percent of the whole time, as measured: the last three are of the other ones. */
struct shares {
    double compute, non_compute, idle, exposed, wait, data, checkpoint;
};

static double at_least_0(double value)
{
    return isfinite(value) ? fmax(0, value) : 0;
}

/* A wait for peers that computation hides takes no time of the step, so waits are at most the
 * exposed communication. The device is idle while its thread waits for data or saves. */
static void divide_step_time(const struct shares *shares, double ret[PARTS])
{
    const double exposed = at_least_0(shares->exposed), idle = at_least_0(shares->idle);
    const double wait = fmin(exposed, at_least_0(shares->wait));
    const double data = fmin(idle, at_least_0(shares->data));
    const double checkpoint = fmin(idle - data, at_least_0(shares->checkpoint));
    const double parts[PARTS] = {
        [PART_COMPUTE] = at_least_0(shares->compute),
        [PART_EXPOSED] = exposed - wait,
        [PART_WAIT] = wait,
        [PART_OTHER] = at_least_0(shares->non_compute - exposed),
        [PART_DATA] = data,
        [PART_CHECKPOINT] = checkpoint,
        [PART_IDLE] = idle - data - checkpoint,
        [PART_UNKNOWN] = isfinite(shares->compute) ? 0 : 100,
    };
    memcpy(ret, parts, sizeof parts);
}

static void divide_rank(const struct dpt_report_rank *rank, double ret[PARTS])
{
    const double window = (double)rank->time.window_ns;
    divide_step_time(
        &(struct shares){.compute = rank->time.compute_percent,
                         .non_compute = rank->time.non_compute_percent,
                         .idle = rank->time.idle_percent,
                         .exposed = rank->time.exposed_percent,
                         .wait = page_percent(page_known(rank->phases.peer_wait_ns), window),
                         .data = page_percent(page_known(rank->phases.data_wait_ns), window),
                         .checkpoint =
                             page_percent(page_known(rank->phases.checkpoint_ns), window)},
        ret);
}

static void divide_means(const struct dpt_report_means *means, double ret[PARTS])
{
    divide_step_time(
        &(struct shares){.compute = means->compute_percent,
                         .non_compute = means->non_compute_percent,
                         .idle = means->idle_percent,
                         .exposed = means->exposed_percent,
                         .wait = page_percent(means->wait_ms, means->step_ms),
                         .data = page_percent(means->data_wait_ms, means->step_ms),
                         .checkpoint = page_percent(means->checkpoint_ms, means->step_ms)},
        ret);
}

/* A part of less than this is not drawn, and does not appear in the legend. */
static bool is_visible(double percent)
{
    return percent >= 0.05;
}

static void keep_largest(double largest[PARTS], const double parts[PARTS])
{
    for (int part = 0; part < PARTS; part++)
        largest[part] = fmax(largest[part], parts[part]);
}

static void write_legend(FILE *out, const double largest[PARTS])
{
    (void)fputs("<ul class=\"legend\">\n", out);
    for (int part = 0; part < PARTS; part++)
        if (is_visible(largest[part]))
            dpt_html_key(out, part_of[part].class, part_of[part].name);
    (void)fputs("</ul>\n", out);
}

/* A cell with a bar, `length` (from 0 to 1) of the cell long. */
static void write_bar(FILE *out, const double parts[PARTS], double length, const char *title)
{
    double x = 0;
    (void)fputs("<td class=\"wide\">", out);
    dpt_html_picture_begin(out, "strip", 14, title);
    for (int part = 0; part < PARTS; part++) {
        const double width = parts[part] * length;
        if (!is_visible(parts[part]))
            continue;
        (void)fprintf(out,
                      "<rect class=\"%s\" x=\"%.2f%%\" width=\"%.2f%%\" height=\"14\">"
                      "<title>%s: %.1f %%</title></rect>\n",
                      part_of[part].class, x, fmin(width, 100 - x), part_of[part].name,
                      parts[part]);
        x += width;
    }
    dpt_html_picture_end(out);
    (void)fputs("</td>", out);
}

void page_write_breakdown(FILE *out, const struct dpt_report *report)
{
    double largest[PARTS] = {0}, parts[PARTS], window = 0;
    for (size_t i = 0; i < report->n_ranks; i++) {
        divide_rank(&report->ranks[i], parts);
        keep_largest(largest, parts);
        window = fmax(window, (double)report->ranks[i].time.window_ns);
    }
    if (window <= 0)
        return;
    const struct page_unit unit = page_time_unit(window);
    (void)fprintf(
        out,
        "<section%s>\n<h2>Where the time goes</h2>\n<p class=\"note\">From the first kernel to "
        "the last one of the traced steps. Communication that computation hides is not drawn."
        "</p>\n",
        report->n_ranks > PAGE_DENSE_RANKS ? " class=\"dense\"" : "");
    write_legend(out, largest);
    dpt_html_table_begin(out, "Time of each rank by part");
    (void)fputs("<thead><tr><th scope=\"col\">Rank</th><th scope=\"col\"></th>", out);
    page_head(out, "Traced time", unit.name);
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_rank *rank = &report->ranks[i];
        char title[64];
        (void)snprintf(title, sizeof title, "Time of rank %d by part", rank->rank);
        divide_rank(rank, parts);
        (void)fputs("<tr>", out);
        page_rank_head(out, rank->rank);
        write_bar(out, parts, (double)rank->time.window_ns / window, title);
        page_cell_in(out, &unit, (double)rank->time.window_ns);
        (void)fputs("</tr>\n", out);
    }
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs("</section>\n", out);
}

void page_write_compared_breakdown(FILE *out, const struct dpt_report *reports, size_t n)
{
    double largest[PARTS] = {0}, parts[PARTS], longest = 0;
    for (size_t i = 0; i < n; i++) {
        divide_means(&reports[i].means, parts);
        keep_largest(largest, parts);
        longest = fmax(longest, at_least_0(reports[i].means.step_ms));
    }
    if (longest <= 0)
        return;
    (void)fputs(
        "<section>\n<h2>Time of a step by part</h2>\n<p class=\"note\">The length of a bar is the "
        "time of a step. Means over the ranks.</p>\n",
        out);
    write_legend(out, largest);
    dpt_html_table_begin(out, "Time of a step by part");
    (void)fputs("<thead><tr><th scope=\"col\">Strategy</th><th scope=\"col\"></th>", out);
    page_head(out, "Step", "ms");
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < n; i++) {
        const struct dpt_report_means *means = &reports[i].means;
        divide_means(means, parts);
        (void)fputs("<tr><th scope=\"row\" class=\"name\">", out);
        dpt_html_short_text(out, reports[i].name, PAGE_NAME_CHARACTERS);
        (void)fputs("</th>", out);
        write_bar(out, parts, at_least_0(means->step_ms) / longest, reports[i].name);
        page_cell(out, means->step_ms, 2);
        (void)fputs("</tr>\n", out);
    }
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs("</section>\n", out);
}
