/* JPEG by libjpeg-turbo.
 *
 * The library reports an error by a call that may not return. That call jumps back to
 * dpt_picture_decode_jpeg, over frames of the library alone. Their memory is freed by
 * jpeg_destroy_decompress. Warnings about damaged data end the decoding, too: the library would
 * continue with grey.
 *
 * The decoder's settings are the library's defaults (accurate integer DCT, smooth upsampling),
 * which have the same bits with and without SIMD. */
#include "worker/data/picture.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

#include <jerror.h>

struct decoding {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors; /* jpeg.err */
    jmp_buf failed;
    char why[JMSG_LENGTH_MAX];
    struct dpt_picture *picture;
    struct dpt_err *err;
    enum dpt_status status; /* the result of decoding */
};

static struct decoding *decoding_of(j_common_ptr jpeg)
{
    return jpeg->client_data;
}

static void on_error(j_common_ptr jpeg)
{
    struct decoding *d = decoding_of(jpeg);
    d->errors.format_message(jpeg, d->why);
    longjmp(d->failed, 1);
}

static bool is_damage(int code)
{
    switch (code) {
    case JWRN_ARITH_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_JPEG_EOF:
    case JWRN_MUST_RESYNC:
        return true;
    default:
        return false;
    }
}

/* `level` < 0: a warning; else a trace. */
static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0 && is_damage(jpeg->err->msg_code))
        on_error(jpeg);
}

/* a * b / 255, rounded. */
static uint8_t multiply_bytes(int a, int b)
{
    const int product = a * b + 128;
    return (uint8_t)((product + (product >> 8)) >> 8);
}

/* A row of CMYK as RGB. The numbers are inverted, as Adobe's programs write them: 255 is no ink. */
static void convert_cmyk_row(const uint8_t *cmyk, int width, uint8_t *ret_rgb)
{
    for (int x = 0; x < width; x++, cmyk += 4, ret_rgb += DPT_PICTURE_CHANNELS)
        for (int c = 0; c < DPT_PICTURE_CHANNELS; c++)
            ret_rgb[c] = (uint8_t)(cmyk[3] - multiply_bytes(255 - cmyk[c], cmyk[3]));
}

static void read_rows(struct decoding *d, bool cmyk)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    const size_t row_bytes = (size_t)d->picture->width * DPT_PICTURE_CHANNELS;
    /* The library's memory, freed with the rest. */
    JSAMPARRAY wide =
        cmyk ? jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE, jpeg->output_width * 4, 1)
             : NULL;
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *rgb = d->picture->rgb + jpeg->output_scanline * row_bytes;
        JSAMPROW row = cmyk ? wide[0] : rgb;
        (void)jpeg_read_scanlines(jpeg, &row, 1);
        if (cmyk)
            convert_cmyk_row(row, d->picture->width, rgb);
    }
}

/* May jump to d->failed at any place. */
static void decode_jpeg(struct decoding *d, const uint8_t *file, size_t bytes)
{
    struct jpeg_decompress_struct *jpeg = &d->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg_mem_src(jpeg, file, bytes);
    (void)jpeg_read_header(jpeg, TRUE);
    const bool cmyk = jpeg->num_components == 4;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    d->status = dpt_picture_set_size(d->picture, jpeg->image_width, jpeg->image_height, d->err);
    if (d->status != DPT_OK)
        return;
    (void)jpeg_start_decompress(jpeg);
    read_rows(d, cmyk);
    (void)jpeg_finish_decompress(jpeg);
}

/* False: decoding failed for the reason d->why. `d` belongs to the caller, because a local variable
 * has no defined value after a jump. */
static bool decode_until_error(struct decoding *d, const uint8_t *file, size_t bytes)
{
    if (setjmp(d->failed) != 0)
        return false;
    decode_jpeg(d, file, bytes);
    return true;
}

enum dpt_status dpt_picture_decode_jpeg(const uint8_t *file, size_t bytes, struct dpt_picture *ret,
                                        struct dpt_err *err)
{
    struct decoding d = {.picture = ret, .err = err, .status = DPT_OK};
    d.jpeg.err = jpeg_std_error(&d.errors);
    d.jpeg.client_data = &d;
    d.errors.error_exit = on_error;
    d.errors.emit_message = on_message;
    if (!decode_until_error(&d, file, bytes))
        d.status = dpt_fail(err, DPT_ECORRUPT, "JPEG: %s", d.why);
    jpeg_destroy_decompress(&d.jpeg);
    return d.status;
}
