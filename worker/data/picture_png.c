/* PNG by libpng.
 *
 * The library reports an error by a call that may not return. That call jumps back to
 * dpt_picture_decode_png, over frames of the library and of this file. Their memory is freed by
 * png_destroy_read_struct. */
#include "worker/data/picture.h"

#include <png.h>

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

enum { WHY_BYTES = 200, CHUNK_BYTES_MAX = 8 << 20 /* of text and profiles, unpacked */ };

struct decoding {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    char why[WHY_BYTES];
    const uint8_t *file;
    size_t bytes, at;
    struct dpt_picture *picture;
    struct dpt_err *err;
    enum dpt_status status; /* the result of decoding */
};

static void on_error(png_structp png, png_const_charp why)
{
    struct decoding *d = png_get_error_ptr(png);
    (void)snprintf(d->why, sizeof d->why, "%s", why);
    longjmp(d->failed, 1);
}

/* Ignores the warning: it is about chunks that the pixels do not need. */
static void on_warning(png_structp png, png_const_charp why)
{
    (void)png;
    (void)why;
}

static void read_bytes(png_structp png, png_bytep ret, size_t n)
{
    struct decoding *d = png_get_io_ptr(png);
    if (n > d->bytes - d->at)
        png_error(png, "the file ends too early");
    memcpy(ret, d->file + d->at, n);
    d->at += n;
}

/* Asks for rows of RGB with 8 bits, whatever the file holds. */
static void ask_for_rgb(struct decoding *d)
{
    png_set_strip_16(d->png);
    png_set_packing(d->png);
    png_set_expand(d->png); /* palettes, grey of 1, 2 and 4 bits, transparent colours */
    png_set_strip_alpha(d->png);
    png_set_gray_to_rgb(d->png);
}

/* May jump to d->failed at any place. */
static void decode_png(struct decoding *d)
{
    png_set_user_limits(d->png, DPT_PICTURE_SIDE_MAX, DPT_PICTURE_SIDE_MAX);
    png_set_chunk_malloc_max(d->png, CHUNK_BYTES_MAX);
    /* Also checks chunks that the pixels do not need, as Pillow does. */
    png_set_crc_action(d->png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_read_fn(d->png, d, read_bytes);
    png_read_info(d->png, d->info);
    const png_uint_32 width = png_get_image_width(d->png, d->info),
                      height = png_get_image_height(d->png, d->info);
    d->status = dpt_picture_set_size(d->picture, width, height, d->err);
    if (d->status != DPT_OK)
        return;
    ask_for_rgb(d);
    const int passes = png_set_interlace_handling(d->png);
    png_read_update_info(d->png, d->info);
    const size_t row_bytes = (size_t)width * DPT_PICTURE_CHANNELS;
    if (png_get_rowbytes(d->png, d->info) != row_bytes)
        png_error(d->png, "its pixels do not become RGB");
    for (int pass = 0; pass < passes; pass++)
        for (png_uint_32 y = 0; y < height; y++)
            png_read_row(d->png, d->picture->rgb + y * row_bytes, NULL);
    png_read_end(d->png, NULL);
}

/* False: decoding failed for the reason d->why. `d` belongs to the caller, because a local variable
 * has no defined value after a jump. */
static bool decode_until_error(struct decoding *d)
{
    if (setjmp(d->failed) != 0)
        return false;
    d->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, d, on_error, on_warning);
    d->info = d->png ? png_create_info_struct(d->png) : NULL;
    if (d->info)
        decode_png(d);
    else
        d->status = dpt_fail_nomem(d->err, "PNG");
    return true;
}

enum dpt_status dpt_picture_decode_png(const uint8_t *file, size_t bytes, struct dpt_picture *ret,
                                       struct dpt_err *err)
{
    struct decoding d = {
        .file = file, .bytes = bytes, .picture = ret, .err = err, .status = DPT_OK};
    if (!decode_until_error(&d))
        d.status = dpt_fail(err, DPT_ECORRUPT, "PNG: %s", d.why);
    png_destroy_read_struct(&d.png, &d.info, NULL);
    return d.status;
}
