/* Figures of each rank in tables, with their means in the last row. */
#include "worker/html/page.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>

enum { COLUMNS_MAX = 12 };

struct column {
    const char *name;
    bool is_time;     /* nanoseconds; else percent */
    bool is_optional; /* left out if all values are 0 or not known */
};

struct table {
    const char *title, *note;
    int n_columns;
    struct column columns[COLUMNS_MAX];
    void (*fill)(const struct dpt_report_rank *rank, double ret[COLUMNS_MAX]);
};

/* ---- what the tables have ---- */

/* Nanoseconds of a step. */
static double per_step(const struct dpt_report_rank *rank, int64_t sum_ns)
{
    return rank->n_steps > 0 ? page_known(sum_ns) / (double)rank->n_steps : (double)NAN;
}

static void fill_times(const struct dpt_report_rank *rank, double ret[COLUMNS_MAX])
{
    int64_t sum_ns = 0, longest_ns = REPORT_UNKNOWN;
    for (size_t i = 0; i < rank->n_steps; i++) {
        sum_ns += rank->step_ns[i];
        longest_ns = rank->step_ns[i] > longest_ns ? rank->step_ns[i] : longest_ns;
    }
    int n = 0;
    ret[n++] = per_step(rank, sum_ns);
    ret[n++] = page_known(longest_ns);
    ret[n++] = rank->time.compute_percent;
    ret[n++] = rank->time.non_compute_percent;
    ret[n++] = rank->time.idle_percent;
    ret[n++] = rank->time.exposed_percent;
    ret[n++] = rank->time.overlap_percent;
    ret[n++] = rank->time.comm_overhead_percent;
    ret[n++] = per_step(rank, rank->phases.peer_wait_ns);
    ret[n++] = per_step(rank, rank->phases.data_wait_ns);
    ret[n++] = per_step(rank, rank->phases.checkpoint_ns);
}

static const struct table times = {
    .title = "Time of each rank",
    .note = "Times are of one step. Shares are those of Holistic Trace Analysis: of the time from "
            "the first kernel to the last, and communication contains the wait for late peers. "
            "Overlap is the share of the communication that computation hides. Overhead is the "
            "share of communication in the sum of all kernels.",
    .n_columns = 11,
    .columns = {{.name = "Step", .is_time = true},
                {.name = "Longest", .is_time = true},
                {.name = "Compute"},
                {.name = "Non-compute"},
                {.name = "Idle"},
                {.name = "Exposed"},
                {.name = "Overlap"},
                {.name = "Overhead"},
                {.name = "Wait for peers", .is_time = true},
                {.name = "Wait for data", .is_time = true},
                {.name = "Checkpoint", .is_time = true, .is_optional = true}},
    .fill = fill_times,
};

static void fill_phases(const struct dpt_report_rank *rank, double ret[COLUMNS_MAX])
{
    const struct dpt_report_phases *p = &rank->phases;
    int n = 0;
    ret[n++] = per_step(rank, p->forward_ns);
    ret[n++] = per_step(rank, p->backward_ns);
    ret[n++] = per_step(rank, p->grad_sync_ns);
    ret[n++] = per_step(rank, p->optimizer_ns);
    ret[n++] = per_step(rank, p->data_wait_ns);
    ret[n++] = per_step(rank, p->checkpoint_ns);
    ret[n++] = per_step(rank, p->evaluation_ns);
    ret[n++] = per_step(rank, p->formation_ns);
}

static const struct table phases = {
    .title = "Parts of a step",
    .note = "On the main thread of each rank, in one step.",
    .n_columns = 8,
    .columns = {{.name = "Forward", .is_time = true, .is_optional = true},
                {.name = "Backward", .is_time = true, .is_optional = true},
                {.name = "Gradient sync", .is_time = true, .is_optional = true},
                {.name = "Optimizer", .is_time = true, .is_optional = true},
                {.name = "Wait for data", .is_time = true, .is_optional = true},
                {.name = "Checkpoint", .is_time = true, .is_optional = true},
                {.name = "Evaluation", .is_time = true, .is_optional = true},
                {.name = "Formation", .is_time = true, .is_optional = true}},
    .fill = fill_phases,
};

/* ---- how they are written ---- */

/* The columns of a table over all ranks. */
struct filled {
    bool is_shown[COLUMNS_MAX];
    struct page_unit unit[COLUMNS_MAX];
    double mean[COLUMNS_MAX]; /* of the ranks whose value is known */
    int n_shown;
};

static void fill_columns(const struct table *table, const struct dpt_report *report,
                         struct filled *ret)
{
    double values[COLUMNS_MAX], largest[COLUMNS_MAX] = {0}, sum[COLUMNS_MAX] = {0};
    size_t known[COLUMNS_MAX] = {0};
    for (size_t i = 0; i < report->n_ranks; i++) {
        table->fill(&report->ranks[i], values);
        for (int c = 0; c < table->n_columns; c++)
            if (isfinite(values[c])) {
                largest[c] = fmax(largest[c], values[c]);
                sum[c] += values[c];
                known[c]++;
            }
    }
    ret->n_shown = 0;
    for (int c = 0; c < table->n_columns; c++) {
        ret->is_shown[c] = !table->columns[c].is_optional || largest[c] > 0;
        ret->n_shown += ret->is_shown[c];
        ret->unit[c] =
            table->columns[c].is_time ? page_time_unit(largest[c]) : (struct page_unit){"%", 1, 1};
        ret->mean[c] = known[c] > 0 ? sum[c] / (double)known[c] : (double)NAN;
    }
}

static void write_row(FILE *out, const struct table *table, const struct filled *filled,
                      const double values[COLUMNS_MAX])
{
    for (int c = 0; c < table->n_columns; c++)
        if (filled->is_shown[c])
            page_cell_in(out, &filled->unit[c], values[c]);
    (void)fputs("</tr>\n", out);
}

static void write_table(FILE *out, const struct table *table, const struct dpt_report *report)
{
    struct filled filled;
    double values[COLUMNS_MAX];
    fill_columns(table, report, &filled);
    if (report->n_ranks == 0 || filled.n_shown == 0)
        return;
    (void)fprintf(out, "<section>\n<h2>%s</h2>\n<p class=\"note\">%s</p>\n", table->title,
                  table->note);
    dpt_html_table_begin(out, table->title);
    (void)fputs("<thead><tr><th scope=\"col\">Rank</th>", out);
    for (int c = 0; c < table->n_columns; c++)
        if (filled.is_shown[c])
            page_head(out, table->columns[c].name, filled.unit[c].name);
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < report->n_ranks; i++) {
        table->fill(&report->ranks[i], values);
        (void)fputs("<tr>", out);
        page_rank_head(out, report->ranks[i].rank);
        write_row(out, table, &filled, values);
    }
    (void)fputs("</tbody>\n", out);
    if (report->n_ranks > 1) {
        (void)fputs("<tfoot><tr><th scope=\"row\">mean</th>", out);
        write_row(out, table, &filled, filled.mean);
        (void)fputs("</tfoot>\n", out);
    }
    dpt_html_table_end(out);
    (void)fputs("</section>\n", out);
}

void page_write_rank_table(FILE *out, const struct dpt_report *report)
{
    write_table(out, &times, report);
}

void page_write_phase_table(FILE *out, const struct dpt_report *report)
{
    write_table(out, &phases, report);
}
