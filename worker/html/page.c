/* An HTML page: its frame, and the parts that pages share. style.c has the style. */
#include "worker/html/page.h"

#include "worker/html/scale.h"
#include "worker/html/style.h"
#include "worker/html/text.h"

enum { TICK_INTERVALS = 4, TICKS_MAX = 12, LABEL_BELOW = 15 };

/* The stripes of class wait. Pictures of the whole page refer to them. */
static const char patterns[] =
    "<svg class=\"patterns\" width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>"
    "<pattern id=\"stripes\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect class=\"stripe-ground\" width=\"5\" height=\"5\"/>"
    "<rect class=\"stripe\" width=\"2\" height=\"5\"/></pattern></defs></svg>\n";

void dpt_html_begin(FILE *out, const char *title, const char *kicker)
{
    (void)fputs(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
        out);
    dpt_html_text(out, title);
    (void)fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n%s<header>\n",
                  dpt_html_style, patterns);
    if (kicker) {
        (void)fputs("<p class=\"kicker\">", out);
        dpt_html_text(out, kicker);
        (void)fputs("</p>\n", out);
    }
    (void)fputs("<h1>", out);
    dpt_html_text(out, title);
    (void)fputs("</h1>\n</header>\n<main>\n", out);
}

void dpt_html_end(FILE *out)
{
    (void)fputs("</main>\n</body>\n</html>\n", out);
}

void dpt_html_table_begin(FILE *out, const char *name)
{
    (void)fputs("<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"", out);
    dpt_html_text(out, name);
    (void)fputs("\"><table>\n", out);
}

void dpt_html_table_end(FILE *out)
{
    (void)fputs("</table></div>\n", out);
}

void dpt_html_key(FILE *out, const char *class, const char *name)
{
    (void)fprintf(out,
                  "<li><svg class=\"key\" width=\"12\" height=\"12\" aria-hidden=\"true\">"
                  "<rect class=\"%s\" width=\"12\" height=\"12\"/></svg>",
                  class);
    dpt_html_text(out, name);
    (void)fputs("</li>\n", out);
}

void dpt_html_picture_begin(FILE *out, const char *class, int height, const char *title)
{
    (void)fprintf(out, "<svg class=\"picture %s\" height=\"%d\" role=\"img\"><title>", class,
                  height);
    dpt_html_text(out, title);
    (void)fputs("</title>\n", out);
}

void dpt_html_picture_end(FILE *out)
{
    (void)fputs("</svg>\n", out);
}

void dpt_html_layer_begin(FILE *out, int height)
{
    (void)fprintf(out,
                  "<svg width=\"100%%\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                  "preserveAspectRatio=\"none\">\n",
                  height, DPT_HTML_LAYER_WIDTH, height);
}

void dpt_html_layer_end(FILE *out)
{
    (void)fputs("</svg>\n", out);
}

void dpt_html_ticks(FILE *out, double end, int top, int bottom)
{
    const double tick = dpt_html_tick(end, TICK_INTERVALS);
    for (int i = 0; i < TICKS_MAX && i * tick <= end * 1.0001; i++) {
        const double percent = 100 * i * tick / end;
        (void)fprintf(
            out,
            "<line class=\"grid\" x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"%d\" y2=\"%d\"/>"
            "<text class=\"tick\" x=\"%.3f%%\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
            percent, percent, top, bottom, percent, bottom + LABEL_BELOW, i * tick);
    }
}
