/* An HTML page: well-formed XML, for light and dark screens of any width. It has no script and
 * loads nothing.
 *
 * A picture is SVG within the page. Its x coordinates are in percent of its box, its y coordinates
 * in pixels. So text has one size on a phone and on a large screen. Labels beside the box are in
 * the box's padding, at x below 0 or above 100 %. Lines of many points are in a layer, whose width
 * is DPT_HTML_LAYER_WIDTH units.
 *
 * Classes of the style, beside HTML's elements:
 *     note       a paragraph of small text          key, legend   the colours of a picture
 *     scroll     a table wider than the screen      name          a cell with a long text
 *     compute, comm, wait, other, data, checkpoint, optimizer, phase, idle, mark: colours of shapes
 *     dense      a section whose tables have low rows
 *     bars, lanes, curve: pictures with labels at the left */
#ifndef DPT_WORKER_HTML_PAGE_H
#define DPT_WORKER_HTML_PAGE_H

#include <stdio.h>

enum { DPT_HTML_LAYER_WIDTH = 2000 };

/* Writes the head and opens the body. `kicker` is a line above the title; NULL: none. */
void dpt_html_begin(FILE *out, const char *title, const char *kicker);
void dpt_html_end(FILE *out);

/* A table that scrolls sideways on a narrow screen, for the keyboard too. `name` says what the
 * table has. After it: the rows, with <thead> and <tbody>. */
void dpt_html_table_begin(FILE *out, const char *name);
void dpt_html_table_end(FILE *out);

/* An item of <ul class="legend">: the colour of shapes of this class, and its name. */
void dpt_html_key(FILE *out, const char *class, const char *name);

/* A picture `height` pixels high. `title` describes it to a reader who does not see it. */
void dpt_html_picture_begin(FILE *out, const char *class, int height, const char *title);
void dpt_html_picture_end(FILE *out);

/* A layer over the whole box of a picture: x from 0 to DPT_HTML_LAYER_WIDTH, y in pixels. */
void dpt_html_layer_begin(FILE *out, int height);
void dpt_html_layer_end(FILE *out);

/* Vertical lines at the ticks from 0 to `end` (more than 0), from y `top` to `bottom`, with labels
 * below. The right end of the box is `end`. */
void dpt_html_ticks(FILE *out, double end, int top, int bottom);

#endif
