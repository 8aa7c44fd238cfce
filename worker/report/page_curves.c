/* Curves: the durations of the steps, and the memory of each rank. */
#include "worker/html/page.h"
#include "worker/html/scale.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Pixels, and limits. */
enum { STEPS_HEIGHT = 150, STEPS_FOOT = 40, STRIP = 46, TICK_INTERVALS = 4, TICKS_MAX = 10 };
enum { DOTS_MAX = 60, STEP_LABELS = 5, STEPS_MAX = 100000 };

/* ---- steps ---- */

/* The durations of one step over the ranks that have it. */
struct step {
    double shortest_ns, longest_ns, mean_ns;
    size_t n;
};

struct steps {
    const struct dpt_report *report;
    int64_t first, last;
    double top_ns; /* of the axis */
    struct page_unit unit;
};

/* The place of a step of a rank; n_steps: it does not have it. */
static size_t place_of(const struct dpt_report_rank *rank, int64_t number)
{
    size_t first = 0, last = rank->n_steps; /* numbers rise */
    while (first < last) {
        const size_t middle = (first + last) / 2;
        if (rank->step[middle] < number)
            first = middle + 1;
        else
            last = middle;
    }
    return first < rank->n_steps && rank->step[first] == number ? first : rank->n_steps;
}

static struct step step_at(const struct dpt_report *report, int64_t number)
{
    struct step step = {.shortest_ns = (double)INFINITY};
    double sum = 0;
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_rank *rank = &report->ranks[i];
        const size_t place = place_of(rank, number);
        if (place == rank->n_steps)
            continue;
        const double ns = (double)rank->step_ns[place];
        step.shortest_ns = fmin(step.shortest_ns, ns);
        step.longest_ns = fmax(step.longest_ns, ns);
        sum += ns;
        step.n++;
    }
    step.mean_ns = step.n > 0 ? sum / (double)step.n : 0;
    return step;
}

/* False: there is no step, or the ranks have steps that are too far apart to be of one run. */
static bool find_steps(const struct dpt_report *report, struct steps *ret)
{
    double longest = 0;
    bool has_steps = false;
    *ret = (struct steps){.report = report};
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_rank *rank = &report->ranks[i];
        if (rank->n_steps == 0)
            continue;
        const int64_t last = rank->step[rank->n_steps - 1];
        ret->first = !has_steps || rank->first_step < ret->first ? rank->first_step : ret->first;
        ret->last = !has_steps || last > ret->last ? last : ret->last;
        has_steps = true;
        for (size_t k = 0; k < rank->n_steps; k++)
            longest = fmax(longest, (double)rank->step_ns[k]);
    }
    if (!has_steps || longest <= 0 || ret->last - ret->first >= STEPS_MAX)
        return false;
    const double tick = dpt_html_tick(longest, TICK_INTERVALS);
    ret->top_ns = tick * ceil(longest / tick - 1e-9);
    ret->unit = page_time_unit(longest);
    return true;
}

/* From 0 to 1; a single step is in the middle. */
static double x_of(const struct steps *s, int64_t number)
{
    return s->last > s->first ? (double)(number - s->first) / (double)(s->last - s->first) : 0.5;
}

static double y_of(const struct steps *s, double ns)
{
    return STEPS_HEIGHT * (1 - ns / s->top_ns);
}

static void write_step_axes(FILE *out, const struct steps *s)
{
    const double tick = dpt_html_tick(s->top_ns, TICK_INTERVALS);
    const int64_t span = s->last - s->first;
    const int64_t by = span > 0 ? (int64_t)fmax(1, dpt_html_tick((double)span, STEP_LABELS)) : 1;
    for (int i = 0; i < TICKS_MAX && i * tick <= s->top_ns * 1.0001; i++)
        (void)fprintf(
            out,
            "<line class=\"grid\" x1=\"0\" x2=\"100%%\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"tick\" x=\"0\" dx=\"-8\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
            y_of(s, i * tick), y_of(s, i * tick), y_of(s, i * tick) + 4, i * tick / s->unit.size);
    for (int64_t number = s->first + (by - s->first % by) % by; number <= s->last; number += by)
        (void)fprintf(
            out, "<text class=\"tick\" x=\"%.2f%%\" y=\"%d\" text-anchor=\"middle\">%lld</text>\n",
            100 * x_of(s, number), STEPS_HEIGHT + 16, (long long)number);
    (void)fprintf(out,
                  "<text class=\"tick\" x=\"50%%\" y=\"%d\" text-anchor=\"middle\">step</text>\n",
                  STEPS_HEIGHT + 33);
}

/* Adds a step to a path, at one of its durations. A step that no rank has is left out. */
static void write_step_point(FILE *out, const struct steps *s, int64_t number, char command,
                             size_t member)
{
    const struct step step = step_at(s->report, number);
    double ns;
    memcpy(&ns, (const char *)&step + member, sizeof ns);
    if (step.n > 0)
        (void)fprintf(out, "%c%.1f %.1f", command, DPT_HTML_LAYER_WIDTH * x_of(s, number),
                      y_of(s, ns));
}

/* The range over the ranks as an area, their mean as a line. */
static void write_step_curve(FILE *out, const struct steps *s)
{
    dpt_html_layer_begin(out, STEPS_HEIGHT);
    (void)fputs("<path class=\"area\" d=\"", out);
    for (int64_t i = s->first; i <= s->last; i++)
        write_step_point(out, s, i, i == s->first ? 'M' : 'L', offsetof(struct step, longest_ns));
    for (int64_t i = s->last; i >= s->first; i--)
        write_step_point(out, s, i, 'L', offsetof(struct step, shortest_ns));
    (void)fputs("z\"/>\n<path class=\"line\" d=\"", out);
    for (int64_t i = s->first; i <= s->last; i++)
        write_step_point(out, s, i, i == s->first ? 'M' : 'L', offsetof(struct step, mean_ns));
    (void)fputs("\"/>\n", out);
    dpt_html_layer_end(out);
}

static void write_step_dots(FILE *out, const struct steps *s)
{
    for (int64_t i = s->first; i <= s->last; i++) {
        const struct step step = step_at(s->report, i);
        char mean[DPT_NUMBER_BYTES], shortest[DPT_NUMBER_BYTES], longest[DPT_NUMBER_BYTES];
        if (step.n == 0)
            continue;
        (void)fprintf(out,
                      "<circle class=\"compute\" cx=\"%.2f%%\" cy=\"%.1f\" r=\"3\"><title>step "
                      "%lld: %s %s on "
                      "average, from %s to %s</title></circle>\n",
                      100 * x_of(s, i), y_of(s, step.mean_ns), (long long)i,
                      page_number(step.mean_ns / s->unit.size, s->unit.decimals, mean),
                      s->unit.name,
                      page_number(step.shortest_ns / s->unit.size, s->unit.decimals, shortest),
                      page_number(step.longest_ns / s->unit.size, s->unit.decimals, longest));
    }
}

void page_write_steps(FILE *out, const struct dpt_report *report)
{
    struct steps s;
    if (!find_steps(report, &s))
        return;
    (void)fprintf(
        out,
        "<section>\n<h2>Durations of the steps</h2>\n<p class=\"note\">In %s: the mean over "
        "the ranks%s.</p>\n",
        s.unit.name, report->n_ranks > 1 ? ", in the range from the fastest to the slowest" : "");
    dpt_html_picture_begin(out, "curve", STEPS_HEIGHT + STEPS_FOOT, "Durations of the steps");
    write_step_axes(out, &s);
    write_step_curve(out, &s);
    if (s.last - s.first < DOTS_MAX)
        write_step_dots(out, &s);
    dpt_html_picture_end(out);
    (void)fputs("</section>\n", out);
}

/* ---- memory ---- */

/* One scale for all ranks. */
struct memory_scale {
    double end_ns, top;
    struct page_unit unit;
};

static struct memory_scale memory_scale_of(const struct dpt_report *report)
{
    struct memory_scale scale = {0};
    for (size_t i = 0; i < report->n_ranks; i++) {
        const struct dpt_report_memory *m = &report->ranks[i].memory;
        scale.top = fmax(scale.top, (double)m->peak);
        for (size_t k = 0; k < m->n_points; k++) {
            scale.top = fmax(scale.top, (double)m->points[k].bytes);
            scale.end_ns = fmax(scale.end_ns, (double)m->points[k].at_ns);
        }
    }
    scale.unit = page_memory_unit(scale.top);
    return scale;
}

static double memory_x(const struct memory_scale *scale, int64_t at_ns)
{
    return scale->end_ns > 0 ? DPT_HTML_LAYER_WIDTH * fmax(0, (double)at_ns) / scale->end_ns : 0;
}

static double memory_y(const struct memory_scale *scale, int64_t bytes)
{
    return STRIP - 1 - (STRIP - 3) * (double)bytes / scale->top;
}

/* Stairs from the first point to the right end: between two points the memory is that of the first.
 */
static void write_stairs(FILE *out, const struct dpt_report_memory *m,
                         const struct memory_scale *scale)
{
    for (size_t k = 0; k < m->n_points; k++)
        (void)fprintf(out, "H%.1fV%.1f", memory_x(scale, m->points[k].at_ns),
                      memory_y(scale, m->points[k].bytes));
    (void)fprintf(out, "H%d", DPT_HTML_LAYER_WIDTH);
}

static void write_memory_curve(FILE *out, const struct dpt_report_memory *m,
                               const struct memory_scale *scale)
{
    dpt_html_layer_begin(out, STRIP);
    (void)fprintf(out, "<path class=\"area\" d=\"M%.1f %d", memory_x(scale, m->points[0].at_ns),
                  STRIP);
    write_stairs(out, m, scale);
    (void)fprintf(out, "V%dz\"/>\n<path class=\"line\" d=\"M%.1f %.1f", STRIP,
                  memory_x(scale, m->points[0].at_ns), memory_y(scale, m->points[0].bytes));
    write_stairs(out, m, scale);
    (void)fputs("\"/>\n", out);
    dpt_html_layer_end(out);
}

static void write_memory_of_rank(FILE *out, const struct dpt_report_rank *rank,
                                 const struct memory_scale *scale)
{
    const struct dpt_report_memory *m = &rank->memory;
    char title[64];
    (void)fprintf(out, "<div class=\"strip-head\"><span>rank %d</span><span class=\"facts\">",
                  rank->rank);
    const struct {
        const char *name;
        int64_t bytes;
    } facts[] = {{"peak", m->peak}, {"p95", m->p95}, {"p50", m->p50}, {"final", m->final}};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        char number[DPT_NUMBER_BYTES];
        (void)fprintf(out, "%s%s %s", i > 0 ? ", " : "", facts[i].name,
                      page_number(page_known(facts[i].bytes) / scale->unit.size,
                                  scale->unit.decimals, number));
    }
    (void)fprintf(out, " %s</span></div>\n", scale->unit.name);
    if (m->n_points == 0)
        return;
    (void)snprintf(title, sizeof title, "Memory of rank %d over time", rank->rank);
    dpt_html_picture_begin(out, "strip", STRIP, title);
    (void)fprintf(out, "<line class=\"grid\" x2=\"100%%\" y1=\"%d.5\" y2=\"%d.5\"/>\n", STRIP - 1,
                  STRIP - 1);
    write_memory_curve(out, m, scale);
    dpt_html_picture_end(out);
}

void page_write_memory(FILE *out, const struct dpt_report *report)
{
    const struct memory_scale scale = memory_scale_of(report);
    const struct page_unit time = page_time_unit(scale.end_ns);
    char number[DPT_NUMBER_BYTES];
    if (scale.top <= 0)
        return;
    (void)fputs("<section>\n<h2>Memory</h2>\n<p class=\"note\">Allocated bytes of each rank", out);
    if (scale.end_ns > 0)
        (void)fprintf(out, " over the %s %s of the traced steps, all ranks on one scale",
                      page_number(scale.end_ns / time.size, time.decimals, number), time.name);
    (void)fputs(".</p>\n", out);
    for (size_t i = 0; i < report->n_ranks; i++) {
        page_more_ranks_begin(out, i, report->n_ranks);
        write_memory_of_rank(out, &report->ranks[i], &scale);
    }
    page_more_ranks_end(out, report->n_ranks);
    (void)fputs("</section>\n", out);
}
