/* PNG of the picture. png.c draws the SVG with librsvg; png_absent.c takes its place in a build
 * without librsvg. */
#ifndef DPT_WORKER_PLOT_PNG_H
#define DPT_WORKER_PLOT_PNG_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

bool plot_has_png(void);

/* Draws an SVG of width:height into a PNG file of these pixels, which is written whole or not at
 * all. DPT_EUNSUPPORTED: this build has no librsvg. */
DPT_MUST_USE enum dpt_status plot_write_png(const char *svg, size_t bytes, int width, int height,
                                            const char *path, struct dpt_err *err);

#endif
