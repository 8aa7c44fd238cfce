/* Bar charts of a page. */
#include "worker/bench/chart.h"

#include "worker/html/page.h"
#include "worker/html/text.h"

#include <math.h>

/* Pixels. */
enum { ROW = 24, BAR = 14, FOOT = 42, LABEL_CHARACTERS = 20 };

void chart_text(FILE *out, const char *text)
{
    dpt_html_text(out, text);
}

void chart_page_begin(FILE *out, const char *title)
{
    dpt_html_begin(out, title, "dpt-bench");
}

void chart_page_end(FILE *out)
{
    dpt_html_end(out);
}

static double top_of(const struct chart *c)
{
    double top = 0;
    for (int i = 0; i < c->n; i++)
        top = fmax(top, fmax(c->value[i], c->mark_name ? c->mark[i] : 0));
    return top > 0 ? top : 1;
}

static void write_bar(FILE *out, const struct chart *c, int i, double top)
{
    const int y = i * ROW + (ROW - BAR) / 2, text_y = y + BAR - 3;
    const double end = 100 * c->value[i] / top, split = 100 * (c->value[i] - c->part[i]) / top;
    (void)fprintf(out, "<text x=\"0\" dx=\"-8\" y=\"%d\" text-anchor=\"end\">", text_y);
    dpt_html_short_text(out, c->label[i], LABEL_CHARACTERS);
    (void)fprintf(
        out, "</text><rect class=\"compute\" x=\"0\" y=\"%d\" width=\"%.2f%%\" height=\"%d\"/>", y,
        fmax(0, split), BAR);
    if (c->part[i] > 0)
        (void)fprintf(out,
                      "<rect class=\"comm\" x=\"%.2f%%\" y=\"%d\" width=\"%.2f%%\" height=\"%d\"/>",
                      split, y, end - split, BAR);
    double last = end;
    if (c->mark_name && c->mark[i] >= 0) {
        const double x = 100 * c->mark[i] / top;
        (void)fprintf(out,
                      "<line class=\"limit\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"%d\" y2=\"%d\"/>", x,
                      x, y - 3, y + BAR + 3);
        last = fmax(last, x);
    }
    (void)fprintf(out, "<text class=\"figure\" x=\"%.2f%%\" dx=\"8\" y=\"%d\">%.4g</text>\n",
                  fmax(0, last), text_y, c->value[i]);
}

static void write_legend(FILE *out, const struct chart *c)
{
    (void)fputs("<ul class=\"legend\">\n", out);
    if (c->value_name)
        dpt_html_key(out, "compute", c->value_name);
    if (c->part_name)
        dpt_html_key(out, "comm", c->part_name);
    if (c->mark_name)
        dpt_html_key(out, "mark", c->mark_name);
    (void)fputs("</ul>\n", out);
}

void chart_write(FILE *out, const struct chart *c)
{
    const double top = top_of(c);
    const int floor_y = c->n * ROW;
    (void)fputs("<h2>", out);
    dpt_html_text(out, c->title);
    (void)fputs("</h2>\n", out);
    if (c->value_name || c->part_name || c->mark_name)
        write_legend(out, c);
    dpt_html_picture_begin(out, "bars", floor_y + FOOT, c->title);
    dpt_html_ticks(out, top, 0, floor_y);
    (void)fprintf(out, "<text class=\"tick\" x=\"50%%\" y=\"%d\" text-anchor=\"middle\">",
                  floor_y + 34);
    dpt_html_text(out, c->axis);
    (void)fputs("</text>\n", out);
    for (int i = 0; i < c->n; i++)
        write_bar(out, c, i, top);
    dpt_html_picture_end(out);
}
