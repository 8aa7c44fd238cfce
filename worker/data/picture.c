/* Pictures: their memory, and which decoder a file is for. */
#include "worker/data/picture.h"

#include <stdlib.h>
#include <string.h>

void dpt_picture_fini(struct dpt_picture *picture)
{
    free(picture->rgb);
    *picture = (struct dpt_picture){.rgb = NULL};
}

enum dpt_status dpt_picture_resize(struct dpt_picture *picture, int64_t width, int64_t height,
                                   struct dpt_err *err)
{
    if (width < 1 || height < 1 || width > DPT_PICTURE_SIDE_MAX || height > DPT_PICTURE_SIDE_MAX ||
        width * height > DPT_PICTURE_PIXELS_MAX)
        return dpt_fail(err, DPT_ECORRUPT,
                        "it has %lld x %lld pixels; from 1 x 1 to %d in all can be read",
                        (long long)width, (long long)height, DPT_PICTURE_PIXELS_MAX);
    const size_t bytes = (size_t)width * (size_t)height * DPT_PICTURE_CHANNELS;
    if (bytes > picture->room) {
        uint8_t *rgb = malloc(bytes);
        if (!rgb)
            return dpt_fail(err, DPT_ENOMEM, "no memory for its %zu bytes of pixels", bytes);
        free(picture->rgb);
        picture->rgb = rgb;
        picture->room = bytes;
    }
    picture->width = (int)width;
    picture->height = (int)height;
    return DPT_OK;
}

static bool begins(const uint8_t *file, size_t bytes, const void *magic, size_t magic_bytes)
{
    return bytes >= magic_bytes && memcmp(file, magic, magic_bytes) == 0;
}

enum dpt_status dpt_picture_decode(const uint8_t *file, size_t bytes, struct dpt_picture *ret,
                                   struct dpt_err *err)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff};
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (begins(file, bytes, jpeg, sizeof jpeg))
        return dpt_picture_decode_jpeg(file, bytes, ret, err);
    if (begins(file, bytes, png, sizeof png))
        return dpt_picture_decode_png(file, bytes, ret, err);
    return dpt_fail(err, DPT_ECORRUPT, "its first bytes are neither a JPEG's nor a PNG's");
}
