/* PNG of the picture with librsvg and cairo (png.h). */
#include "worker/plot/png.h"

#include "base/array.h"
#include "base/fs.h"

#include <librsvg/rsvg.h>
#include <stdlib.h>
#include <string.h>

/* The PNG file in memory. */
struct image {
    unsigned char *bytes; /* owned */
    size_t n, room;
};

static cairo_status_t take_bytes(void *closure, const unsigned char *data, unsigned int n)
{
    struct image *image = closure;
    if (!dpt_array_reserve(&image->bytes, &image->room, image->n + n, 1))
        return CAIRO_STATUS_NO_MEMORY;
    memcpy(image->bytes + image->n, data, n);
    image->n += n;
    return CAIRO_STATUS_SUCCESS;
}

bool plot_has_png(void)
{
    return true;
}

/* Takes the error of librsvg. */
static enum dpt_status fail_svg(GError *why, const char *path, struct dpt_err *err)
{
    const enum dpt_status status =
        dpt_fail(err, DPT_EIO, "draw '%s': %s", path, why ? why->message : "librsvg failed");
    g_clear_error(&why);
    return status;
}

static enum dpt_status draw_svg(const char *svg, size_t bytes, cairo_surface_t *surface,
                                const char *path, struct dpt_err *err)
{
    GError *why = NULL;
    const RsvgRectangle all = {.width = cairo_image_surface_get_width(surface),
                               .height = cairo_image_surface_get_height(surface)};
    RsvgHandle *handle = rsvg_handle_new_from_data((const guint8 *)svg, bytes, &why);
    if (!handle)
        return fail_svg(why, path, err);
    cairo_t *cairo = cairo_create(surface);
    const gboolean drawn = rsvg_handle_render_document(handle, cairo, &all, &why);
    cairo_destroy(cairo);
    g_object_unref(handle);
    return drawn ? DPT_OK : fail_svg(why, path, err);
}

enum dpt_status plot_write_png(const char *svg, size_t bytes, int width, int height,
                               const char *path, struct dpt_err *err)
{
    struct image image = {.n = 0};
    cairo_surface_t *surface = cairo_image_surface_create(CAIRO_FORMAT_RGB24, width, height);
    cairo_status_t drawn = cairo_surface_status(surface);
    enum dpt_status status = DPT_OK;
    if (drawn == CAIRO_STATUS_SUCCESS)
        status = draw_svg(svg, bytes, surface, path, err);
    if (drawn == CAIRO_STATUS_SUCCESS && status == DPT_OK)
        drawn = cairo_surface_write_to_png_stream(surface, take_bytes, &image);
    cairo_surface_destroy(surface);
    if (status == DPT_OK && drawn != CAIRO_STATUS_SUCCESS)
        status = dpt_fail(err, DPT_EIO, "draw '%s': %s", path, cairo_status_to_string(drawn));
    if (status == DPT_OK)
        status = dpt_fs_write_file_atomic(path, image.bytes, image.n, err);
    free(image.bytes);
    return status;
}
