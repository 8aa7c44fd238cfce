/* The timeline of one step: lanes of all ranks, one below the other, over one axis of time.
 *
 * Wide spans are shapes of their own with a tooltip. Spans of a fraction of a pixel are parts of
 * one path of their class, so that a step of many ranks with thousands of ops stays a page of a few
 * megabytes. */
#include "worker/html/page.h"
#include "worker/html/text.h"
#include "worker/report/page_number.h"
#include "worker/report/page_parts.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Pixels, and limits. */
enum {
    LANE = 14,
    LANE_GAP = 2,
    RANK_HEAD = 16, /* above the lanes of a rank */
    RANK_GAP = 6,
    DENSE_LANE = 6,
    DENSE_GAP = 1,
    FOOT = 40,
    LANES_MAX = 6, /* of a rank */
    SHAPES_MAX = 5000,
    LANE_CHARACTERS = 16
};

/* A span whose width is at least this share of the step has its name within it. */
static const double named_share = 0.12;
/* Spans of at least this share are shapes of their own, unless they are more than SHAPES_MAX. */
static const double least_share = 0.001;

static const struct {
    const char *class, *thin_class, *name;
} class_of[REPORT_SPAN_CLASSES] = {
    [REPORT_SPAN_COMPUTE] = {"compute", "compute", "compute"},
    [REPORT_SPAN_COMMUNICATION] = {"comm", "comm", "communication"},
    [REPORT_SPAN_WAIT] = {"wait", "wait-thin", "wait for late peers"},
    [REPORT_SPAN_DATA] = {"data", "data", "data"},
    [REPORT_SPAN_CHECKPOINT] = {"checkpoint", "checkpoint", "checkpoint"},
    [REPORT_SPAN_OPTIMIZER] = {"optimizer", "optimizer", "optimizer"},
    [REPORT_SPAN_PHASE] = {"phase", "phase", "part of the step"},
};

struct lane {
    const struct dpt_report_span *spans;
    size_t n;
    int y;
};

struct timeline {
    FILE *out;
    const struct dpt_report *report;
    double end_ns;
    bool is_dense;
    int lane_height, height; /* of the box, without the labels below */
    double shape_share;
    enum dpt_report_span_class thin_class; /* of the path that is written */
};

/* The next lane of a rank from span `*at` on: spans of one lane are neighbours. */
static bool next_lane(const struct dpt_report_rank *rank, size_t *at, struct lane *lane)
{
    if (*at == rank->n_spans)
        return false;
    lane->spans = &rank->spans[*at];
    lane->n = 0;
    while (*at < rank->n_spans && strcmp(rank->spans[*at].lane, lane->spans->lane) == 0) {
        lane->n++;
        (*at)++;
    }
    return true;
}

/* Calls `visit` for each lane that is drawn, from top to bottom. Returns the height of all. */
static int visit_lanes(struct timeline *t,
                       void (*visit)(struct timeline *, const struct dpt_report_rank *,
                                     const struct lane *, int lane_of_rank))
{
    int y = 0;
    for (size_t i = 0; i < t->report->n_ranks; i++) {
        const struct dpt_report_rank *rank = &t->report->ranks[i];
        size_t at = 0;
        struct lane lane;
        if (rank->n_spans > 0)
            y += t->is_dense ? 0 : RANK_HEAD;
        for (int k = 0; k < LANES_MAX && next_lane(rank, &at, &lane); k++) {
            lane.y = y;
            if (visit)
                visit(t, rank, &lane, k);
            y += t->lane_height + (t->is_dense ? DENSE_GAP : LANE_GAP);
        }
        y += rank->n_spans > 0 ? RANK_GAP : 0;
    }
    return y;
}

static double share_of(const struct timeline *t, int64_t ns)
{
    return fmin(1, fmax(0, (double)ns / t->end_ns));
}

/* ---- spans ---- */

static bool is_shape(const struct timeline *t, const struct dpt_report_span *span)
{
    return share_of(t, span->end_ns) - share_of(t, span->begin_ns) >= t->shape_share;
}

static size_t count_shapes(const struct timeline *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->report->n_ranks; i++)
        for (size_t k = 0; k < t->report->ranks[i].n_spans; k++)
            n += is_shape(t, &t->report->ranks[i].spans[k]);
    return n;
}

static void write_shape(const struct timeline *t, const struct lane *lane,
                        const struct dpt_report_span *span)
{
    const double begin = share_of(t, span->begin_ns), width = share_of(t, span->end_ns) - begin;
    const struct page_unit unit = page_time_unit((double)(span->end_ns - span->begin_ns));
    char time[DPT_NUMBER_BYTES];
    (void)fprintf(t->out,
                  "<rect class=\"%s\" x=\"%.2f%%\" y=\"%d\" width=\"%.2f%%\" height=\"%d\"><title>",
                  class_of[span->class].class, 100 * begin, lane->y, 100 * width, t->lane_height);
    dpt_html_short_text(t->out, span->name, PAGE_NAME_CHARACTERS);
    (void)fprintf(
        t->out, ": %s %s</title></rect>\n",
        page_number((double)(span->end_ns - span->begin_ns) / unit.size, unit.decimals, time),
        unit.name);
    if (span->class != REPORT_SPAN_PHASE || t->is_dense || width < named_share)
        return;
    /* A picture within the picture cuts a text that is too long. */
    (void)fprintf(
        t->out,
        "<svg x=\"%.2f%%\" y=\"%d\" width=\"%.2f%%\" height=\"%d\"><text class=\"inside\" "
        "x=\"4\" y=\"%d\">",
        100 * begin, lane->y, 100 * width, t->lane_height, t->lane_height - 4);
    dpt_html_text(t->out, span->name);
    (void)fputs("</text></svg>\n", t->out);
}

static void write_lane(struct timeline *t, const struct dpt_report_rank *rank,
                       const struct lane *lane, int lane_of_rank)
{
    if (lane_of_rank == 0)
        (void)fprintf(
            t->out,
            "<text class=\"%s\" x=\"0\" dx=\"-8\" y=\"%d\" text-anchor=\"end\">rank %d</text>\n",
            t->is_dense ? "tick" : "strong", t->is_dense ? lane->y + 8 : lane->y - 4, rank->rank);
    if (!t->is_dense) {
        (void)fprintf(t->out,
                      "<text class=\"tick\" x=\"0\" dx=\"-8\" y=\"%d\" text-anchor=\"end\">",
                      lane->y + t->lane_height - 3);
        dpt_html_short_text(t->out, lane->spans->lane, LANE_CHARACTERS);
        (void)fputs("</text>\n", t->out);
    }
    for (size_t i = 0; i < lane->n; i++)
        if (is_shape(t, &lane->spans[i]))
            write_shape(t, lane, &lane->spans[i]);
}

static void write_track(struct timeline *t, const struct dpt_report_rank *rank,
                        const struct lane *lane, int lane_of_rank)
{
    (void)rank;
    (void)lane_of_rank;
    (void)fprintf(t->out, "<rect class=\"track\" y=\"%d\" width=\"100%%\" height=\"%d\"/>\n",
                  lane->y, t->lane_height);
}

/* ---- spans of a fraction of a pixel ---- */

static void write_thin(const struct timeline *t, const struct lane *lane, long from, long to)
{
    if (to > from)
        (void)fprintf(t->out, "M%ld %dh%ldv%dh-%ldz", from, lane->y, to - from, t->lane_height,
                      to - from);
}

/* Spans that touch in units of the layer become one. */
static void write_thin_lane(struct timeline *t, const struct dpt_report_rank *rank,
                            const struct lane *lane, int lane_of_rank)
{
    long from = 0, to = 0;
    (void)rank;
    (void)lane_of_rank;
    for (size_t i = 0; i < lane->n; i++) {
        const struct dpt_report_span *span = &lane->spans[i];
        if (span->class != t->thin_class || is_shape(t, span))
            continue;
        const long begin = lround(floor(share_of(t, span->begin_ns) * DPT_HTML_LAYER_WIDTH));
        const long end = lround(ceil(share_of(t, span->end_ns) * DPT_HTML_LAYER_WIDTH));
        if (begin > to) {
            write_thin(t, lane, from, to);
            from = begin;
        }
        to = end > to ? end : to;
    }
    write_thin(t, lane, from, to);
}

static bool has_class(const struct dpt_report *report, int class)
{
    for (size_t i = 0; i < report->n_ranks; i++)
        for (size_t k = 0; k < report->ranks[i].n_spans; k++)
            if ((int)report->ranks[i].spans[k].class == class)
                return true;
    return false;
}

static void write_thin_spans(struct timeline *t)
{
    dpt_html_layer_begin(t->out, t->height);
    for (int class = 0; class < REPORT_SPAN_CLASSES; class ++) {
        if (!has_class(t->report, class))
            continue;
        t->thin_class = (enum dpt_report_span_class) class;
        (void)fprintf(t->out, "<path class=\"%s\" d=\"", class_of[class].thin_class);
        (void)visit_lanes(t, write_thin_lane);
        (void)fputs("\"/>\n", t->out);
    }
    dpt_html_layer_end(t->out);
}

/* ---- the section ---- */

static int64_t end_of(const struct dpt_report *report)
{
    int64_t end_ns = 0;
    for (size_t i = 0; i < report->n_ranks; i++)
        for (size_t k = 0; k < report->ranks[i].n_spans; k++)
            if (report->ranks[i].spans[k].end_ns > end_ns)
                end_ns = report->ranks[i].spans[k].end_ns;
    return end_ns;
}

static void write_legend(FILE *out, const struct dpt_report *report)
{
    (void)fputs("<ul class=\"legend\">\n", out);
    for (int class = 0; class < REPORT_SPAN_CLASSES; class ++)
        if (has_class(report, class))
            dpt_html_key(out, class_of[class].class, class_of[class].name);
    (void)fputs("</ul>\n", out);
}

static void write_picture(struct timeline *t)
{
    const struct page_unit unit = page_time_unit(t->end_ns);
    char title[96];
    (void)snprintf(title, sizeof title, "Timeline of step %lld: lanes of %zu rank%s",
                   (long long)t->report->timeline_step, t->report->n_ranks,
                   t->report->n_ranks == 1 ? "" : "s");
    dpt_html_picture_begin(t->out, "lanes", t->height + FOOT, title);
    (void)visit_lanes(t, write_track);
    dpt_html_ticks(t->out, t->end_ns / unit.size, 0, t->height);
    write_thin_spans(t);
    (void)visit_lanes(t, write_lane);
    (void)fprintf(t->out,
                  "<text class=\"tick\" x=\"50%%\" y=\"%d\" text-anchor=\"middle\">%s since the "
                  "begin of the step</text>\n",
                  t->height + 32, unit.name);
    dpt_html_picture_end(t->out);
}

void page_write_timeline(FILE *out, const struct dpt_report *report)
{
    const bool is_dense = report->n_ranks > PAGE_DENSE_RANKS;
    struct timeline t = {.out = out,
                         .report = report,
                         .end_ns = (double)end_of(report),
                         .is_dense = is_dense,
                         .lane_height = is_dense ? DENSE_LANE : LANE,
                         .shape_share = least_share};
    if (t.end_ns <= 0)
        return;
    while (count_shapes(&t) > SHAPES_MAX)
        t.shape_share *= 2;
    t.height = visit_lanes(&t, NULL);
    (void)fprintf(out, "<section>\n<h2>Step %lld on all ranks</h2>\n",
                  (long long)report->timeline_step);
    write_legend(out, report);
    write_picture(&t);
    (void)fputs("</section>\n", out);
}
