/* PNG in a build without librsvg (png.h). */
#include "worker/plot/png.h"

bool plot_has_png(void)
{
    return false;
}

enum dpt_status plot_write_png(const char *svg, size_t bytes, int width, int height,
                               const char *path, struct dpt_err *err)
{
    (void)svg;
    (void)bytes;
    (void)width;
    (void)height;
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "cannot write '%s': this dpt-plot was built without librsvg and writes SVG "
                    "only; install librsvg2-dev and build again",
                    path);
}
