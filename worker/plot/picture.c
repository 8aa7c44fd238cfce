/* The picture of dpt-plot (picture.h): title, legend, and the place of the panels. */
#include "worker/plot/picture.h"

#include "base/number.h"
#include "worker/html/text.h"
#include "worker/plot/panel.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lengths in units of the picture. */
enum {
    MARGIN = 24,
    TITLE_Y = 36,
    LEGEND_Y = 64,
    LEGEND_ROW = 22,
    LEFT = 84,       /* of the curves, with room for labels */
    GAP = 96,        /* between the curves of two panels of a row */
    PANEL_HEAD = 52, /* title of a panel and marks of failures */
    PANEL_HEIGHT = 250,
    PANEL_FOOT = 44,
    NAME_BYTES_MAX = 60,
};

static const char style[] =
    "text { font-family: 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif; font-size: 13px; "
    "fill: #1d2126; }\n"
    ".title { font-size: 20px; font-weight: bold; } .panel { font-size: 15px; font-weight: bold; "
    "}\n"
    ".tick { fill: #4a515a; } .grid { stroke: #e3e6ea; }\n"
    ".frame { fill: none; stroke: #9aa1ab; }\n"
    ".curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }\n"
    ".evaluation { fill: #ffffff; stroke-width: 1.6; }\n"
    ".generation { fill: none; stroke-width: 1.2; stroke-dasharray: 5 4; }\n"
    ".failure { fill: none; stroke-width: 1.6; }\n";

static int legend_height(int n_runs)
{
    return LEGEND_Y + (n_runs + 1) * LEGEND_ROW;
}

int plot_height(int n_runs)
{
    return legend_height(n_runs) + 2 * (PANEL_HEAD + PANEL_HEIGHT + PANEL_FOOT) + MARGIN;
}

/* Writes the name. Of a long name it writes the end, which differs more often. */
static void write_name(FILE *out, const char *name)
{
    const size_t bytes = strlen(name);
    const char *from = name;
    if (bytes > NAME_BYTES_MAX) {
        (void)fputs("…", out);
        from += bytes - NAME_BYTES_MAX;
        while (((unsigned char)*from & 0xc0) == 0x80) /* within a character of UTF-8 */
            from++;
    }
    dpt_html_text(out, from);
}

/* The first and the last finite loss, or nothing. */
static void write_losses(FILE *out, const struct plot_run *run)
{
    double first = (double)NAN, last = (double)NAN;
    for (size_t k = 0; k < run->n_points; k++) {
        const double loss = run->points[k].value[PLOT_LOSS];
        if (!isfinite(loss))
            continue;
        if (!isfinite(first))
            first = loss;
        last = loss;
    }
    if (isfinite(first))
        (void)fprintf(out, ", loss %.4g to %.4g", first, last);
}

static void write_run_row(FILE *out, const struct plot_run *run, int i)
{
    const int y = LEGEND_Y + i * LEGEND_ROW;
    char first[AXIS_LABEL_BYTES], last[AXIS_LABEL_BYTES];
    size_t failures = 0;
    for (size_t k = 0; k < run->n_marks; k++)
        failures += run->marks[k].is_failure;
    (void)dpt_number_grouped((double)run->points[0].step, 0, first);
    (void)dpt_number_grouped((double)run->points[run->n_points - 1].step, 0, last);
    (void)fprintf(out,
                  "<line class=\"curve\" stroke=\"%s\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                  "<text class=\"legend\" x=\"%d\" y=\"%d\">",
                  plot_color(i), MARGIN, MARGIN + 28, y - 4, y - 4, MARGIN + 38, y);
    write_name(out, run->name);
    (void)fprintf(out, ": steps %s to %s", first, last);
    write_losses(out, run);
    (void)fprintf(out, ", %zu failure%s</text>\n", failures, failures == 1 ? "" : "s");
}

/* The row of the legend that explains the marks. */
static void write_key_row(FILE *out, int n_runs)
{
    const int y = LEGEND_Y + n_runs * LEGEND_ROW, middle = y - 4;
    const char *generation = n_runs == 1 ? "#8a9099" : "#4a515a";
    const char *failure = n_runs == 1 ? "#c62828" : "#4a515a";
    (void)fprintf(out,
                  "<g class=\"generation\" stroke=\"%s\"><line x1=\"%d\" x2=\"%d\" y1=\"%d\" "
                  "y2=\"%d\"/></g><text class=\"legend\" x=\"%d\" y=\"%d\">new generation</text>\n",
                  generation, MARGIN + 14, MARGIN + 14, middle - 9, middle + 9, MARGIN + 38, y);
    (void)fprintf(
        out,
        "<g class=\"failure\" stroke=\"%s\"><path d=\"M%d %d l10 10 m0 -10 l-10 10\"/>"
        "</g><text class=\"legend\" x=\"%d\" y=\"%d\">failure: a rank, node or connection "
        "lost, a stall, a step that diverged</text>\n",
        failure, MARGIN + 196, middle - 5, MARGIN + 218, y);
    (void)fprintf(out,
                  "<circle class=\"evaluation\" stroke=\"#4a515a\" cx=\"%d\" cy=\"%d\" r=\"3.5\"/>"
                  "<text class=\"legend\" x=\"%d\" y=\"%d\">validation loss</text>\n",
                  MARGIN + 692, middle, MARGIN + 706, y);
}

static void write_title(FILE *out, const struct plot_run *runs, int n_runs, const char *title)
{
    (void)fprintf(out, "<text class=\"title\" x=\"%d\" y=\"%d\">", MARGIN, TITLE_Y);
    if (title)
        dpt_html_text(out, title);
    else if (n_runs == 1)
        write_name(out, runs[0].name);
    else
        (void)fprintf(out, "%d runs", n_runs);
    (void)fputs("</text>\n", out);
}

static void write_picture(FILE *out, const struct plot_run *runs, int n_runs, const char *title)
{
    const int height = plot_height(n_runs);
    const double width = (PLOT_WIDTH - LEFT - GAP - MARGIN) / 2.0;
    (void)fprintf(out,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\">\n<style>\n%s</style>\n"
                  "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n",
                  PLOT_WIDTH, height, PLOT_WIDTH, height, style, PLOT_WIDTH, height);
    write_title(out, runs, n_runs, title);
    for (int i = 0; i < n_runs; i++)
        write_run_row(out, &runs[i], i);
    write_key_row(out, n_runs);
    for (int q = 0; q < PLOT_QUANTITIES; q++) {
        const int row = q / 2, column = q % 2;
        const struct plot_box box = {LEFT + column * (width + GAP),
                                     legend_height(n_runs) + PANEL_HEAD +
                                         row * (PANEL_HEAD + PANEL_HEIGHT + PANEL_FOOT),
                                     width, PANEL_HEIGHT};
        plot_write_panel(out, runs, n_runs, (enum plot_quantity)q, &box);
    }
    (void)fputs("</svg>\n", out);
}

enum dpt_status plot_picture(const struct plot_run *runs, int n_runs, const char *title,
                             char **ret_svg, size_t *ret_bytes, struct dpt_err *err)
{
    char *svg = NULL;
    size_t bytes = 0;
    DPT_ASSERT(n_runs >= 1 && n_runs <= PLOT_RUNS_MAX);
    FILE *out = open_memstream(&svg, &bytes);
    if (!out)
        return dpt_fail_nomem(err, "the picture");
    write_picture(out, runs, n_runs, title);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(svg);
        return dpt_fail_nomem(err, "the picture");
    }
    *ret_svg = svg;
    *ret_bytes = bytes;
    return DPT_OK;
}
