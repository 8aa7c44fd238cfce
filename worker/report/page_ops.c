/* The longest ops of each rank. */
#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <stdbool.h>
#include <string.h>

static void write_op(FILE *out, const struct dpt_report_op *op, const struct page_unit *total,
                     const struct page_unit *mean, double longest_ns)
{
    const double mean_ns = op->calls > 0 ? (double)op->total_ns / (double)op->calls : 0;
    (void)fputs("<tr><th scope=\"row\" class=\"name\">", out);
    dpt_html_short_text(out, op->name, PAGE_NAME_CHARACTERS);
    (void)fputs("</th><td class=\"wide\">", out);
    dpt_html_picture_begin(out, "thin", 10, op->name);
    (void)fprintf(out, "<rect class=\"%s\" width=\"%.2f%%\" height=\"10\"/>\n",
                  strncmp(op->name, "nccl", 4) == 0 ? "comm" : "compute",
                  page_percent((double)op->total_ns, longest_ns));
    dpt_html_picture_end(out);
    (void)fputs("</td>", out);
    page_cell_in(out, total, (double)op->total_ns);
    page_cell(out, op->percent, 1);
    page_cell(out, (double)op->calls, 0);
    page_cell_in(out, mean, mean_ns);
    (void)fputs("</tr>\n", out);
}

static void write_rank(FILE *out, const struct dpt_report_rank *rank, bool is_open)
{
    double longest_ns = 0, longest_mean_ns = 0;
    char title[64];
    for (size_t i = 0; i < rank->n_ops; i++) {
        const struct dpt_report_op *op = &rank->ops[i];
        const double total = (double)op->total_ns;
        longest_ns = total > longest_ns ? total : longest_ns;
        if (op->calls > 0 && total / (double)op->calls > longest_mean_ns)
            longest_mean_ns = total / (double)op->calls;
    }
    const struct page_unit total = page_time_unit(longest_ns),
                           mean = page_time_unit(longest_mean_ns);
    (void)snprintf(title, sizeof title, "Longest ops of rank %d", rank->rank);
    (void)fprintf(out, "<details%s><summary>rank %d</summary>\n", is_open ? " open=\"open\"" : "",
                  rank->rank);
    dpt_html_table_begin(out, title);
    (void)fputs("<thead><tr><th scope=\"col\">Op</th><th scope=\"col\"></th>", out);
    page_head(out, "Total", total.name);
    page_head(out, "Share", "%");
    page_head(out, "Calls", "");
    page_head(out, "Mean", mean.name);
    (void)fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t i = 0; i < rank->n_ops; i++)
        write_op(out, &rank->ops[i], &total, &mean, longest_ns);
    (void)fputs("</tbody>\n", out);
    dpt_html_table_end(out);
    (void)fputs("</details>\n", out);
}

void page_write_ops(FILE *out, const struct dpt_report *report)
{
    size_t n_ops = 0, open = 0;
    for (size_t i = 0; i < report->n_ranks; i++) {
        n_ops += report->ranks[i].n_ops;
        if (report->ranks[i].rank == report->verdict.rank)
            open = i;
    }
    if (n_ops == 0)
        return;
    (void)fputs(
        "<section>\n<h2>Longest ops</h2>\n<p class=\"note\">By their total time in the traced "
        "steps; shares of the sum of all kernels. A collective contains the wait for late "
        "peers.</p>\n",
        out);
    for (size_t i = 0; i < report->n_ranks; i++)
        if (report->ranks[i].n_ops > 0)
            write_rank(out, &report->ranks[i], i == open);
    (void)fputs("</section>\n", out);
}
