/* One panel of the picture (panel.h). */
#include "worker/plot/panel.h"

#include "worker/html/text.h"

#include <math.h>
#include <string.h>

enum { FAILURE_SIZE = 5 };

/* The ids of the panels in the SVG. */
static const char *const ids[PLOT_QUANTITIES] = {"loss", "throughput", "learning-rate", "memory"};

/* What a curve is drawn into. */
struct panel {
    FILE *out;
    const struct plot_box *box;
    struct plot_axis steps, values;
};

const char *plot_color(int i)
{
    /* Okabe and Ito's palette, which people with colour blindness can tell apart. Its yellow is too
     * pale on white, so the last colour is a brown. */
    static const char *const colors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                         "#e69f00", "#56b4e9", "#333333", "#8b5a2b"};
    return colors[i];
}

static double x_of(const struct panel *p, double step)
{
    return p->box->left + (step - p->steps.low) / (p->steps.high - p->steps.low) * p->box->width;
}

static double y_of(const struct panel *p, double value)
{
    return p->box->top + p->box->height -
           (value / p->values.unit - p->values.low) / (p->values.high - p->values.low) *
               p->box->height;
}

/* ---- the frame ---- */

static void write_step_ticks(const struct panel *p)
{
    double ticks[AXIS_TICKS_MAX];
    char label[AXIS_LABEL_BYTES];
    const double bottom = p->box->top + p->box->height;
    const int n = plot_ticks(&p->steps, ticks);
    for (int i = 0; i < n; i++) {
        plot_tick_label(&p->steps, ticks[i], label);
        (void)fprintf(
            p->out,
            "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
            x_of(p, ticks[i]), x_of(p, ticks[i]), p->box->top, bottom, x_of(p, ticks[i]),
            bottom + 18, label);
    }
    (void)fprintf(p->out,
                  "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                  p->box->left + p->box->width / 2, bottom + 36, p->steps.name);
}

static void write_value_ticks(const struct panel *p)
{
    double ticks[AXIS_TICKS_MAX];
    char label[AXIS_LABEL_BYTES];
    const int n = plot_ticks(&p->values, ticks);
    for (int i = 0; i < n; i++) {
        const double y = y_of(p, ticks[i] * p->values.unit);
        plot_tick_label(&p->values, ticks[i], label);
        (void)fprintf(p->out,
                      "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
                      "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                      p->box->left, p->box->left + p->box->width, y, y, p->box->left - 8, y + 4,
                      label);
    }
}

/* ---- curves ---- */

/* The path of a curve. The values of one column of the picture, a unit wide, become a line from the
 * least to the greatest, so that a long run needs no more than two points a column and no spike is
 * lost. */
struct path {
    const struct panel *panel;
    bool has_column, in_segment;
    long column;
    struct plot_place {
        double step, value;
    } least, greatest; /* in the column */
};

static void write_place(struct path *path, const struct plot_place *place)
{
    (void)fprintf(path->panel->out, "%s%.2f %.2f", path->in_segment ? " L" : " M",
                  x_of(path->panel, place->step), y_of(path->panel, place->value));
    if (!path->in_segment)
        (void)fputs(" h0", path->panel->out); /* a segment of one point is a dot */
    path->in_segment = true;
}

static void write_column(struct path *path)
{
    const bool rises = path->least.step <= path->greatest.step;
    if (!path->has_column)
        return;
    write_place(path, rises ? &path->least : &path->greatest);
    if (path->least.step != path->greatest.step)
        write_place(path, rises ? &path->greatest : &path->least);
    path->has_column = false;
}

static void add_place(struct path *path, double step, double value)
{
    const struct plot_place place = {step, value};
    if (!isfinite(value)) {
        write_column(path);
        path->in_segment = false;
        return;
    }
    const long column = lround(floor(x_of(path->panel, step)));
    if (path->has_column && column != path->column)
        write_column(path);
    if (!path->has_column)
        path->least = path->greatest = place;
    if (value < path->least.value)
        path->least = place;
    if (value > path->greatest.value)
        path->greatest = place;
    path->has_column = true;
    path->column = column;
}

static void write_curve(const struct panel *p, const struct plot_run *run, int i,
                        enum plot_quantity quantity)
{
    struct path path = {.panel = p};
    (void)fprintf(p->out, "<path class=\"curve run-%d\" stroke=\"%s\" d=\"", i, plot_color(i));
    for (size_t k = 0; k < run->n_points; k++)
        add_place(&path, (double)run->points[k].step, run->points[k].value[quantity]);
    write_column(&path);
    (void)fputs("\"/>\n", p->out);
}

/* Circles at the validation losses; of several in one column of the picture the last. */
static void write_evaluations(const struct panel *p, const struct plot_run *run, int i)
{
    for (size_t k = 0; k < run->n_evaluations; k++) {
        const struct plot_evaluation *e = &run->evaluations[k];
        const bool is_last = k + 1 == run->n_evaluations ||
                             floor(x_of(p, (double)e[1].step)) > floor(x_of(p, (double)e->step));
        if (is_last && isfinite(e->loss))
            (void)fprintf(p->out,
                          "<circle class=\"evaluation run-%d\" stroke=\"%s\" cx=\"%.2f\" "
                          "cy=\"%.2f\" r=\"3.5\"/>\n",
                          i, plot_color(i), x_of(p, (double)e->step), y_of(p, e->loss));
    }
}

/* ---- generations and failures ---- */

static void write_mark(const struct panel *p, const struct plot_mark *mark, const char *color)
{
    const double x = x_of(p, (double)mark->step), top = p->box->top;
    (void)fprintf(p->out, "<g class=\"%s\" stroke=\"%s\"><title>",
                  mark->is_failure ? "failure" : "generation", color);
    dpt_html_text(p->out, mark->text);
    (void)fprintf(p->out, "</title><line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x, x,
                  top, top + p->box->height);
    if (mark->is_failure)
        (void)fprintf(p->out, "<path d=\"M%.1f %.1f l%d %d m0 %d l%d %d\"/>", x - FAILURE_SIZE,
                      top - 2 * FAILURE_SIZE - 2, 2 * FAILURE_SIZE, 2 * FAILURE_SIZE,
                      -2 * FAILURE_SIZE, -2 * FAILURE_SIZE, 2 * FAILURE_SIZE);
    (void)fputs("</g>\n", p->out);
}

/* The marks of one run are grey and, of failures, red. Those of several runs have the runs'
 * colours. */
static void write_marks(const struct panel *p, const struct plot_run *run, int i, bool is_only)
{
    for (size_t k = 0; k < run->n_marks; k++) {
        const struct plot_mark *mark = &run->marks[k];
        const char *alone = mark->is_failure ? "#c62828" : "#8a9099";
        if ((double)mark->step >= p->steps.low && (double)mark->step <= p->steps.high)
            write_mark(p, mark, is_only ? alone : plot_color(i));
    }
}

void plot_write_panel(FILE *out, const struct plot_run *runs, int n_runs,
                      enum plot_quantity quantity, const struct plot_box *box)
{
    struct panel p = {.out = out, .box = box, .steps = plot_step_axis(runs, n_runs)};
    const bool has_values = plot_value_axis(runs, n_runs, quantity, &p.values);
    const char *none = quantity == PLOT_MEMORY ? "Memory is not in the log" : "No finite value";
    (void)fprintf(out, "<g id=\"%s\">\n<text class=\"panel\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
                  ids[quantity], box->left, box->top - 18, has_values ? p.values.name : none);
    write_step_ticks(&p);
    if (has_values)
        write_value_ticks(&p);
    for (int i = 0; i < n_runs; i++)
        write_marks(&p, &runs[i], i, n_runs == 1);
    for (int i = 0; i < n_runs && has_values; i++)
        write_curve(&p, &runs[i], i, quantity);
    for (int i = 0; i < n_runs && has_values && quantity == PLOT_LOSS; i++)
        write_evaluations(&p, &runs[i], i);
    (void)fprintf(out,
                  "<rect class=\"frame\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
                  "height=\"%.1f\"/>\n</g>\n",
                  box->left, box->top, box->width, box->height);
}
