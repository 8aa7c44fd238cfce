/* Parts that the pictures of patterns share (pattern_picture.h): colours, text, frames. */
#ifndef DPT_WORKER_BENCH_PATTERN_SVG_H
#define DPT_WORKER_BENCH_PATTERN_SVG_H

#include <stdio.h>

enum { SVG_MARGIN = 20, SVG_HEAD = 84 };

/* A strip of equal frames, several in a row. Lengths in units of the picture. */
struct svg_strip {
    const char *title, *about; /* about: one line below the title */
    int frames, per_row, width, height;
};

/* The colour of chunk or rank `i`; readable on light and on dark paper. */
const char *svg_color(int i);

void svg_begin(FILE *out, const struct svg_strip *strip);
/* Frame `i`. Inside it the upper left corner is 0, 0. */
void svg_frame_begin(FILE *out, const struct svg_strip *strip, int i, const char *title);
void svg_frame_end(FILE *out);
void svg_end(FILE *out);

/* A line of the legend in the head of the strip, at x: a sample, then the text. */
enum svg_sample { SVG_SAMPLE_SOLID, SVG_SAMPLE_DASHED, SVG_SAMPLE_CELL, SVG_SAMPLE_NODE };
void svg_legend(FILE *out, int x, enum svg_sample sample, const char *color, const char *text);

#endif
