/* Memory of pictures. */
#include "worker/data/picture.h"

#include <stdlib.h>

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
            return dpt_fail_nomem(err, "its %zu bytes of pixels", bytes);
        free(picture->rgb);
        picture->rgb = rgb;
        picture->room = bytes;
    }
    picture->width = (int)width;
    picture->height = (int)height;
    return DPT_OK;
}
