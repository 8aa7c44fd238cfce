/* Writes one page of bar charts: bars that end at every place, so that their figures lie at every
 * place of the grid, and figures that are equal, close, zero, very small and very large. For
 * test_charts.py. */
#include "worker/bench/chart.h"

#include <stdbool.h>
#include <stdlib.h>

enum { CHARTS = 12 };

static void write_every_place(FILE *out, int part)
{
    static const char *const label = "bar";
    struct chart c = {.title = "Bars that end at every place",
                      .axis = "milliseconds",
                      .n = CHART_BARS_MAX,
                      .value_name = "computes",
                      .part_name = "waits"};
    for (int i = 0; i < c.n; i++) {
        c.label[i] = label;
        c.value[i] = 8.0 * (i * CHARTS + part + 1) / (CHARTS * CHART_BARS_MAX);
        c.part[i] = i % 2 ? c.value[i] / 3 : 0;
        c.mark[i] = -1;
    }
    c.value[c.n - 1] = 8.0; /* every chart has the same axis */
    chart_write(out, &c);
}

static void write_row(FILE *out, const char *title, const double *values, const double *marks,
                      int n)
{
    struct chart c = {.title = title, .axis = "MiB", .n = n, .value_name = "counted"};
    c.mark_name = marks ? "by the formula" : NULL;
    for (int i = 0; i < n; i++) {
        c.label[i] = "a label that is too long for its place";
        c.value[i] = values[i];
        c.mark[i] = marks ? marks[i] : -1;
    }
    chart_write(out, &c);
}

int main(int argc, char **argv)
{
    static const double close[] = {7.794, 7.7941, 7.794, 7.793}, none[] = {0, 0};
    static const double wide[] = {1.2345e+12, 3.3e-9, 0, 987654.3}, tiny[] = {2.5e-7, 1.2345e-7};
    static const double value[] = {4, 4, 4, 4, 0}, mark[] = {3.999, 4, 8, 0, 2};
    FILE *out = argc == 2 ? fopen(argv[1], "we") : NULL;
    if (!out) {
        (void)fprintf(stderr, "usage: test_worker_bench_charts FILE\n");
        return EXIT_FAILURE;
    }
    chart_page_begin(out, "charts");
    for (int part = 0; part < CHARTS; part++)
        write_every_place(out, part);
    write_row(out, "Close figures", close, NULL, 4);
    write_row(out, "No figure above zero", none, NULL, 2);
    write_row(out, "Figures of many sizes", wide, NULL, 4);
    write_row(out, "Small figures", tiny, NULL, 2);
    write_row(out, "Marks at, before and beyond the end of a bar", value, mark, 5);
    chart_page_end(out);
    const bool failed = ferror(out) != 0;
    return fclose(out) != 0 || failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
