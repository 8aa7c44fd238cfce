/* Pictures: what JPEG and PNG files hold, as bytes of red, green and blue.
 *
 * The first bytes of a file say which kind it is; its name does not. All become three channels of 8
 * bits as by Pillow's convert("RGB"): grey three times, palettes looked up, transparency dropped,
 * of 16 bits the upper 8 (Pillow makes grey of 16 bits white), CMYK multiplied out. Profiles, gamma
 * and orientation are not applied. */
#ifndef DPT_WORKER_DATA_PICTURE_H
#define DPT_WORKER_DATA_PICTURE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum {
    DPT_PICTURE_SIDE_MAX = 65535,
    DPT_PICTURE_PIXELS_MAX = 1 << 26, /* 200 MB */
    DPT_PICTURE_FILE_BYTES_MAX = 1 << 28,
    DPT_PICTURE_CHANNELS = 3
};

/* Zero-initialise; may be filled again and again. */
struct dpt_picture {
    int width, height;
    uint8_t *rgb; /* (height, width, 3); owned */
    size_t room;  /* bytes */
};

void dpt_picture_fini(struct dpt_picture *picture);

/* Sets the size, with room for as many pixels, whose values are left open. DPT_ECORRUPT: a side is
 * 0, or one of the limits above is passed. */
DPT_MUST_USE enum dpt_status dpt_picture_resize(struct dpt_picture *picture, int64_t width,
                                                int64_t height, struct dpt_err *err);

/* Decodes a file's bytes. DPT_ECORRUPT: neither JPEG nor PNG, or the decoder met damage, also where
 * it could go on. Errors do not name the file. Any thread; nothing is printed. */
DPT_MUST_USE enum dpt_status dpt_picture_decode(const uint8_t *file, size_t bytes,
                                                struct dpt_picture *ret, struct dpt_err *err);

/* Of these kinds. */
DPT_MUST_USE enum dpt_status dpt_picture_decode_jpeg(const uint8_t *file, size_t bytes,
                                                     struct dpt_picture *ret, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_picture_decode_png(const uint8_t *file, size_t bytes,
                                                    struct dpt_picture *ret, struct dpt_err *err);

#endif
