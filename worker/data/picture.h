/* Pictures: the pixels of JPEG and PNG files, as bytes of red, green and blue, and their resizing.
 *
 * The first bytes of a file tell its kind; its name does not. Every picture becomes three channels
 * of 8 bits, as by Pillow's convert("RGB"): grey is written three times, palettes are looked up,
 * transparency is dropped, CMYK is multiplied out. Of 16 bits the upper 8 are kept (Pillow makes
 * grey of 16 bits white). Profiles, gamma and orientation are not applied. */
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

/* Zero-initialise; may be filled any number of times. */
struct dpt_picture {
    int width, height;
    uint8_t *rgb; /* (height, width, 3); owned */
    size_t room;  /* bytes */
};

void dpt_picture_fini(struct dpt_picture *picture);

/* Sets the size and makes room for the pixels; their values are undefined. DPT_ECORRUPT: a side is
 * 0, or beyond one of the limits above. */
DPT_MUST_USE enum dpt_status dpt_picture_set_size(struct dpt_picture *picture, int64_t width,
                                                  int64_t height, struct dpt_err *err);

/* Decodes a file's bytes. DPT_ECORRUPT: the file is neither JPEG nor PNG, or it is damaged, even if
 * the decoder could continue. Errors do not name the file. Any thread; nothing is printed. */
DPT_MUST_USE enum dpt_status dpt_picture_decode(const uint8_t *file, size_t bytes,
                                                struct dpt_picture *ret, struct dpt_err *err);

/* dpt_picture_decode for a file of one kind. */
DPT_MUST_USE enum dpt_status dpt_picture_decode_jpeg(const uint8_t *file, size_t bytes,
                                                     struct dpt_picture *ret, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_picture_decode_png(const uint8_t *file, size_t bytes,
                                                    struct dpt_picture *ret, struct dpt_err *err);

/* A rectangle of pixels in a picture. */
struct dpt_area {
    int x, y, width, height;
};

/* The part `from` of a picture is resized to width x height. Of the result the part `cut` is
 * wanted. */
struct dpt_scaling {
    struct dpt_area from;
    int width, height;
    struct dpt_area cut;
};

/* Writes this part of the result to `ret`, another picture. The filter is Pillow's bilinear filter:
 * each pixel of the result is the weighted mean of source pixels. The weights form a triangle, as
 * wide as two pixels of the result, or as two pixels of the source if these are wider. Weights are
 * rounded to 22 bits. Rows are summed first, then columns; the values between are rounded to 8
 * bits. The result has the bits of Pillow (src/libImaging/Resample.c), which torchvision's
 * transforms of PIL images use. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_picture_scale(const struct dpt_picture *source,
                                               const struct dpt_scaling *scaling,
                                               struct dpt_picture *ret, struct dpt_err *err);

#endif
