/* Pages of bar charts. */
#include "worker/bench/chart.h"

#include <math.h>

/* Lengths in the units of the picture. */
enum {
    WIDTH = 760,
    LEFT = 130,
    RIGHT = 80,
    TOP = 8,
    ROW = 26,
    BAR = 16,
    FOOT = 46,
    TICKS_MAX = 12
};

void chart_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            (void)fputs("&amp;", out);
            break;
        case '<':
            (void)fputs("&lt;", out);
            break;
        case '>':
            (void)fputs("&gt;", out);
            break;
        case '"':
            (void)fputs("&quot;", out);
            break;
        default:
            (void)fputc(*text, out);
        }
}

static const char style[] =
    ":root { color-scheme: light dark; --paper: #fbfbfa; --ink: #1d2126; --faint: #6b727c;\n"
    "  --line: #dcdfe3; --bar: #3f6fb5; --part: #d98a3d; --mark: #b3261e; }\n"
    "@media (prefers-color-scheme: dark) { :root { --paper: #16191d; --ink: #e7e9ec;\n"
    "  --faint: #9aa2ad; --line: #333941; --bar: #6f9fe0; --part: #e5a765; --mark: #ff8a80; } }\n"
    "body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif;\n"
    "  max-width: 860px; margin: 2em auto; padding: 0 1em; }\n"
    "h1 { font-size: 1.5em; } h2 { font-size: 1.1em; margin: 2em 0 0.3em; }\n"
    "p { color: var(--faint); margin: 0.3em 0; }\n"
    "svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif;\n"
    "  fill: var(--ink); } svg .faint { fill: var(--faint); }\n"
    ".bar { fill: var(--bar); } .part { fill: var(--part); }\n"
    ".grid { stroke: var(--line); } .mark { stroke: var(--mark); stroke-width: 2.5; }\n"
    ".scroll { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: 3px 9px; text-align: right; border-bottom: 1px solid var(--line);\n"
    "  white-space: nowrap; } th { color: var(--faint); font-weight: 600; }\n"
    "th:first-child, td:first-child { text-align: left; }\n"
    "code { font-size: 12px; }\n";

void chart_page_begin(FILE *out, const char *title)
{
    (void)fputs(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
        out);
    chart_text(out, title);
    (void)fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", style);
    chart_text(out, title);
    (void)fputs("</h1>\n", out);
}

void chart_page_end(FILE *out)
{
    (void)fputs("</body>\n</html>\n", out);
}

/* Distance of ticks: 1, 2 or 5 times a power of ten, so that few of them reach `top`. */
static double tick_of(double top)
{
    const double rough = top / 6, power = pow(10, floor(log10(rough)));
    const double digit = rough / power;
    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static double top_of(const struct chart *c)
{
    double top = 0;
    for (int i = 0; i < c->n; i++)
        top = fmax(top, fmax(c->value[i], c->mark_name ? c->mark[i] : 0));
    return top > 0 ? top : 1;
}

/* The position of a value on the axis. */
static double chart_place(double value, double top)
{
    return LEFT + value / top * (WIDTH - LEFT - RIGHT);
}

static void write_axis(FILE *out, const struct chart *c, double top)
{
    const double tick = tick_of(top);
    const int floor_y = TOP + c->n * ROW;
    for (int i = 0; i < TICKS_MAX && i * tick <= top * 1.0001; i++)
        (void)fprintf(
            out,
            "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
            "<text class=\"faint\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
            chart_place(i * tick, top), chart_place(i * tick, top), TOP, floor_y,
            chart_place(i * tick, top), floor_y + 16, i * tick);
    (void)fprintf(out, "<text class=\"faint\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">",
                  (LEFT + WIDTH - RIGHT) / 2, floor_y + 36);
    chart_text(out, c->axis);
    (void)fputs("</text>\n", out);
}

static void write_bar(FILE *out, const struct chart *c, int i, double top)
{
    const int y = TOP + i * ROW + (ROW - BAR) / 2;
    const double end = chart_place(c->value[i], top),
                 split = chart_place(c->value[i] - c->part[i], top);
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">", LEFT - 8, y + BAR - 4);
    chart_text(out, c->label[i]);
    (void)fprintf(out,
                  "</text><rect class=\"bar\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                  LEFT, y, split - LEFT, BAR);
    if (c->part[i] > 0)
        (void)fprintf(out,
                      "<rect class=\"part\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/>",
                      split, y, end - split, BAR);
    double last = end;
    if (c->mark_name && c->mark[i] >= 0) {
        const double x = chart_place(c->mark[i], top);
        (void)fprintf(out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x,
                      x, y - 3, y + BAR + 3);
        last = fmax(last, x);
    }
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%d\">%.4g</text>\n", last + 8, y + BAR - 4,
                  c->value[i]);
}

static void write_legend(FILE *out, const char *kind, const char *name)
{
    if (!name)
        return;
    (void)fprintf(out, "<svg style=\"width: 14px; height: 12px\" viewBox=\"0 0 14 12\" "
                       "role=\"presentation\">");
    if (kind[0] == 'm')
        (void)fputs("<line class=\"mark\" x1=\"7\" x2=\"7\" y1=\"0\" y2=\"12\"/>", out);
    else
        (void)fprintf(out, "<rect class=\"%s\" width=\"12\" height=\"12\"/>", kind);
    (void)fputs("</svg> ", out);
    chart_text(out, name);
    (void)fputs("\n", out);
}

void chart_write(FILE *out, const struct chart *c)
{
    const double top = top_of(c);
    (void)fputs("<h2>", out);
    chart_text(out, c->title);
    (void)fputs("</h2>\n<p>", out);
    write_legend(out, "bar", c->value_name);
    write_legend(out, "part", c->part_name);
    write_legend(out, "mark", c->mark_name);
    (void)fprintf(out, "</p>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
                  TOP + c->n * ROW + FOOT);
    chart_text(out, c->title);
    (void)fputs("\">\n", out);
    write_axis(out, c, top);
    for (int i = 0; i < c->n; i++)
        write_bar(out, c, i, top);
    (void)fputs("</svg>\n", out);
}
