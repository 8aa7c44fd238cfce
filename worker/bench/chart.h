/* Bar charts of a page (worker/html/page.h). */
#ifndef DPT_WORKER_BENCH_CHART_H
#define DPT_WORKER_BENCH_CHART_H

#include <stdio.h>

enum { CHART_BARS_MAX = 32 };

/* Horizontal bars, one for each label. Special characters in texts are escaped. */
struct chart {
    const char *title, *axis; /* the axis's name with its unit */
    int n;
    const char *label[CHART_BARS_MAX];
    double value[CHART_BARS_MAX];
    double part[CHART_BARS_MAX];                    /* of value, drawn in another colour; 0: none */
    double mark[CHART_BARS_MAX];                    /* a line across the bar; < 0: none */
    const char *value_name, *part_name, *mark_name; /* of the legend; NULL: not drawn */
};

/* Writes text with &, <, > and " quoted. */
void chart_text(FILE *out, const char *text);

void chart_page_begin(FILE *out, const char *title);
void chart_write(FILE *out, const struct chart *chart);
void chart_page_end(FILE *out);

#endif
