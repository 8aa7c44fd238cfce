/* Chooses the decoder of an image file by its first bytes. */
#include "worker/data/picture.h"

#include <string.h>

static bool begins_with(const uint8_t *file, size_t bytes, const void *magic, size_t magic_bytes)
{
    return bytes >= magic_bytes && memcmp(file, magic, magic_bytes) == 0;
}

enum dpt_status dpt_picture_decode(const uint8_t *file, size_t bytes, struct dpt_picture *ret,
                                   struct dpt_err *err)
{
    static const uint8_t jpeg[] = {0xff, 0xd8, 0xff};
    static const uint8_t png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    if (begins_with(file, bytes, jpeg, sizeof jpeg))
        return dpt_picture_decode_jpeg(file, bytes, ret, err);
    if (begins_with(file, bytes, png, sizeof png))
        return dpt_picture_decode_png(file, bytes, ret, err);
    return dpt_fail(err, DPT_ECORRUPT, "its first bytes are neither a JPEG's nor a PNG's");
}
