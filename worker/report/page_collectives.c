/* Collectives of each rank, by kind: time with the wait for late peers, calls, bytes, bandwidth. */
#include "worker/html/page.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>

/* The largest values of one kind over all ranks. */
struct extent {
    double time_ns, wait_ns, bytes;
    int64_t calls;
};

static struct extent extent_of(const struct dpt_report *report, int kind)
{
    struct extent e = {0};
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_collective *c = &report->ranks[i].collective[kind];
        e.time_ns = fmax(e.time_ns, (double)c->time_ns);
        e.wait_ns = fmax(e.wait_ns, (double)c->wait_ns);
        e.bytes = isfinite(c->bytes) ? fmax(e.bytes, c->bytes) : e.bytes;
        e.calls = c->calls > e.calls ? c->calls : e.calls;
    }
    return e;
}

/* The time of a rank's collectives; the wait is striped. `longest_ns`: of a whole cell. */
static void write_bar(FILE *out, const struct dpt_report_collective *c, double longest_ns,
                      const char *title)
{
    const double moving = page_percent((double)(c->time_ns - c->wait_ns), longest_ns);
    const double all = page_percent((double)c->time_ns, longest_ns);
    (void)fputs("<td class=\"wide\">", out);
    dpt_html_picture_begin(out, "thin", 10, title);
    (void)fprintf(out,
                  "<rect class=\"comm\" width=\"%.2f%%\" height=\"10\"/>"
                  "<rect class=\"wait\" x=\"%.2f%%\" width=\"%.2f%%\" height=\"10\"/>\n",
                  moving, moving, all - moving);
    dpt_html_picture_end(out);
    (void)fputs("</td>", out);
}

static void write_row(FILE *out, const struct dpt_report_rank *rank, int kind,
                      const struct extent *extent, double longest_ns)
{
    const struct dpt_report_collective *c = &rank->collective[kind];
    const struct page_unit time = page_time_unit(extent->time_ns),
                           wait = page_time_unit(extent->wait_ns),
                           bytes = page_bytes_unit(extent->bytes);
    char title[96];
    (void)snprintf(title, sizeof title, "Time of %s on rank %d",
                   dpt_report_collective_word((enum dpt_report_collective_kind)kind), rank->rank);
    (void)fputs("<tr>", out);
    page_rank_head(out, rank->rank);
    write_bar(out, c, longest_ns, title);
    page_cell_in(out, &time, (double)c->time_ns);
    page_cell_in(out, &wait, (double)c->wait_ns);
    page_cell(out, (double)c->calls, 0);
    page_cell_in(out, &bytes, c->bytes);
    page_cell(out, c->calls > 0 ? c->bus_gb_s : (double)NAN, 2);
    (void)fputs("</tr>\n", out);
}

static void write_head(FILE *out, const struct extent *extent)
{
    (void)fputs("<thead><tr><th scope=\"col\">Rank</th><th scope=\"col\"></th>", out);
    page_head(out, "Time", page_time_unit(extent->time_ns).name);
    page_head(out, "Wait", page_time_unit(extent->wait_ns).name);
    page_head(out, "Calls", "");
    page_head(out, "Moved", page_bytes_unit(extent->bytes).name);
    page_head(out, "Bus", "GB/s");
    (void)fputs("</tr></thead>\n<tbody>\n", out);
}

static void write_kind(FILE *out, const struct dpt_report *report, int kind,
                       const struct extent *extent, double longest_ns)
{
    const char *word = dpt_report_collective_word((enum dpt_report_collective_kind)kind);
    const size_t n = report->n_ranks, open = n < PAGE_RANKS_OPEN ? n : PAGE_RANKS_OPEN;
    (void)fprintf(out, "<h3>%s</h3>\n", word);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || i == open) {
            page_more_ranks_begin(out, i, n);
            dpt_html_table_begin(out, word);
            write_head(out, extent);
        }
        write_row(out, &report->ranks[i], kind, extent, longest_ns);
        if (i + 1 == open || i + 1 == n) {
            (void)fputs("</tbody>\n", out);
            dpt_html_table_end(out);
        }
    }
    page_more_ranks_end(out, n);
}

void page_write_collectives(FILE *out, const struct dpt_report *report)
{
    struct extent extents[REPORT_COLLECTIVES];
    double longest_ns = 0;
    int64_t calls = 0;
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++) {
        extents[kind] = extent_of(report, kind);
        longest_ns = fmax(longest_ns, extents[kind].time_ns);
        calls += extents[kind].calls;
    }
    (void)fputs("<section>\n<h2>Collectives</h2>\n", out);
    if (calls == 0)
        (void)fputs("<p class=\"note\">The traced steps have no collective.</p>\n", out);
    else
        (void)fputs("<p class=\"note\">Sums over the traced steps. The bus bandwidth is that of "
                    "nccl-tests, of "
                    "the time without the wait.</p>\n<ul class=\"legend\">\n",
                    out);
    if (calls > 0) {
        dpt_html_key(out, "comm", "transfer");
        dpt_html_key(out, "wait", "wait for late peers");
        (void)fputs("</ul>\n", out);
    }
    for (int kind = 0; kind < REPORT_COLLECTIVES; kind++)
        if (extents[kind].calls > 0)
            write_kind(out, report, kind, &extents[kind], longest_ns);
    (void)fputs("</section>\n", out);
}
