/* Parts that the pictures of patterns share (pattern_svg.h). */
#include "worker/bench/pattern_svg.h"

#include "worker/bench/chart.h"

enum { COLORS = 8, TITLE_Y = 30, ABOUT_Y = 52, LEGEND_Y = 74, SAMPLE_WIDTH = 30 };

/* The middle tones of a palette that people with colour blindness can tell apart (Okabe and Ito,
 * "Color universal design", 2008). */
static const char *const colors[COLORS] = {"#0b7fc4", "#e08a00", "#0c9e73", "#d4578f",
                                           "#8c6bd8", "#d5573a", "#5c9e1c", "#8a8f98"};

static const char style[] =
    "svg { color-scheme: light dark; }\n"
    "text { font: 13px system-ui, 'DejaVu Sans', 'Liberation Sans', Arial, sans-serif; "
    "fill: #1d2126; }\n"
    ".title { font-size: 19px; font-weight: bold; }\n"
    ".step { font-size: 13px; font-weight: bold; }\n"
    ".faint { fill: #59616b; }\n"
    ".paper { fill: #ffffff; }\n"
    ".frame { fill: none; stroke: #d3d7dd; }\n"
    ".node { fill: #ffffff; stroke: #1d2126; stroke-width: 1.6; }\n"
    ".host1 { stroke-dasharray: 4 3; }\n"
    ".edge { fill: none; stroke: #59616b; stroke-width: 1.4; }\n"
    ".cell { fill: none; stroke-width: 1.2; }\n"
    ".done { fill: none; stroke: #1d2126; stroke-width: 1.6; }\n"
    ".move { fill: none; stroke-width: 2; }\n"
    ".copy { stroke-dasharray: 5 3; }\n"
    ".small { font-size: 10px; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  text { fill: #e7e9ec; } .faint { fill: #9aa2ad; } .paper { fill: #16191d; }\n"
    "  .frame { stroke: #333941; } .node { fill: #16191d; stroke: #e7e9ec; }\n"
    "  .edge { stroke: #9aa2ad; } .done { stroke: #e7e9ec; }\n"
    "}\n";

const char *svg_color(int i)
{
    return colors[i % COLORS];
}

void svg_begin(FILE *out, const struct svg_strip *strip)
{
    const int rows = (strip->frames + strip->per_row - 1) / strip->per_row;
    const int columns = strip->frames < strip->per_row ? strip->frames : strip->per_row;
    const int frames_width = columns * strip->width, least = 760;
    const int width = 2 * SVG_MARGIN + (frames_width > least ? frames_width : least),
              height = SVG_HEAD + rows * strip->height + SVG_MARGIN;
    (void)fprintf(out,
                  "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" role=\"img\">\n<title>",
                  width, height, width, height);
    chart_text(out, strip->title);
    (void)fprintf(out, "</title>\n<style>\n%s</style>\n", style);
    (void)fprintf(out, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", width, height);
    (void)fprintf(out, "<text class=\"title\" x=\"%d\" y=\"%d\">", SVG_MARGIN, TITLE_Y);
    chart_text(out, strip->title);
    (void)fprintf(out, "</text>\n<text class=\"faint\" x=\"%d\" y=\"%d\">", SVG_MARGIN, ABOUT_Y);
    chart_text(out, strip->about);
    (void)fputs("</text>\n", out);
}

void svg_frame_begin(FILE *out, const struct svg_strip *strip, int i, const char *title)
{
    const int x = SVG_MARGIN + i % strip->per_row * strip->width,
              y = SVG_HEAD + i / strip->per_row * strip->height;
    (void)fprintf(out,
                  "<g class=\"step-frame\" transform=\"translate(%d %d)\">\n"
                  "<rect class=\"frame\" x=\"4\" y=\"4\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n"
                  "<text class=\"step\" x=\"14\" y=\"24\">",
                  x, y, strip->width - 8, strip->height - 8);
    chart_text(out, title);
    (void)fputs("</text>\n", out);
}

void svg_frame_end(FILE *out)
{
    (void)fputs("</g>\n", out);
}

void svg_end(FILE *out)
{
    (void)fputs("</svg>\n", out);
}

void svg_legend(FILE *out, int x, enum svg_sample sample, const char *color, const char *text)
{
    const int y = LEGEND_Y - 4;
    if (sample == SVG_SAMPLE_CELL)
        (void)fprintf(out,
                      "<rect fill=\"%s\" x=\"%d\" y=\"%d\" width=\"11\" height=\"5\"/>"
                      "<rect class=\"cell\" stroke=\"%s\" x=\"%d\" y=\"%d\" width=\"11\" "
                      "height=\"11\"/>",
                      color, x + 16, y, color, x + 16, y - 6);
    else if (sample == SVG_SAMPLE_NODE)
        (void)fprintf(out, "<circle fill=\"%s\" cx=\"%d\" cy=\"%d\" r=\"6\"/>", color, x + 20, y);
    else
        (void)fprintf(out,
                      "<path class=\"move%s\" stroke=\"%s\" d=\"M%d %d h%d\"/>"
                      "<path fill=\"%s\" d=\"M%d %d l-7 -4 v8 z\"/>",
                      sample == SVG_SAMPLE_DASHED ? " copy" : "", color, x, y, SAMPLE_WIDTH - 8,
                      color, x + SAMPLE_WIDTH - 2, y);
    (void)fprintf(out, "<text class=\"faint\" x=\"%d\" y=\"%d\">", x + SAMPLE_WIDTH + 6, LEGEND_Y);
    chart_text(out, text);
    (void)fputs("</text>\n", out);
}
