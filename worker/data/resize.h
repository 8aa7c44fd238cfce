/* Pictures in another size, by Pillow's bilinear filter: each pixel of the result is the mean of
 * those below a triangle as wide as two of its pixels, or as two of theirs if that is more. Weights
 * are rounded to 22 bits, and columns and rows are summed one after the other, rounded to 8 bits
 * between (Pillow, src/libImaging/Resample.c, on which torchvision's transforms of PIL images
 * stand): the result has its bits. */
#ifndef DPT_WORKER_DATA_RESIZE_H
#define DPT_WORKER_DATA_RESIZE_H

#include "worker/data/picture.h"

/* A part of a picture. */
struct dpt_area {
    int x, y, width, height;
};

/* The part `from` of a picture, resized to width x height, of which the part `cut` is wanted. */
struct dpt_scaling {
    struct dpt_area from;
    int width, height;
    struct dpt_area cut;
};

/* Writes that part to `ret`, another picture. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_picture_scale(const struct dpt_picture *source,
                                               const struct dpt_scaling *scaling,
                                               struct dpt_picture *ret, struct dpt_err *err);

#endif
