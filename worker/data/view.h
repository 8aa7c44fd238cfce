/* From a picture to a sample: which part of the picture, in which size, mirrored or not, and as
 * which numbers a model reads it. In training the part is drawn. The key of the draw is the seed
 * and the sample's number in the run, so it is the same for every rank, thread and world. */
#ifndef DPT_WORKER_DATA_VIEW_H
#define DPT_WORKER_DATA_VIEW_H

#include "base/config.h"
#include "worker/data/picture.h"

#include <stdbool.h>
#include <stdint.h>

/* Settings of the config. */
struct dpt_view_rule {
    enum dpt_data_kind kind; /* cifar10 or images */
    enum dpt_augment augment;
    int size, resize, padding;
    uint64_t seed;
};

struct dpt_view_rule dpt_view_rule(const struct dpt_config *config);

/* One view of a picture. The part `from` is resized to width x height; the sample is the size x
 * size pixels from (x, y) on. Pixels outside the resized part are black. */
struct dpt_view {
    struct dpt_area from;
    int width, height, x, y;
    bool mirrored; /* left and right */
};

/* The view of a picture of this size for sample `number` of the run, or, with DPT_DATA_NOT_VARIED
 * (worker/data/data.h), for an evaluation. Pure. The result is the same on all machines: no
 * function of libm decides it except sqrt, which every libm rounds correctly.
 *
 *   - An evaluation, or augment none. cifar10: the whole picture. images: the shorter side is
 *     resized to `resize`, the longer side in proportion (rounded down). The sample is the middle
 *     size x size pixels of that (a half rounded to even).
 *   - crop_flip: the same, moved by -padding … padding pixels in each direction, and mirrored in
 *     half of the cases.
 *   - resized_crop_flip: a part at any place, with 8 to 100 % of the area and a ratio of width to
 *     height of 3/4 to 4/3 (its logarithm is uniform). It is resized to size x size, and mirrored
 *     in half of the cases. After ten draws that do not fit the picture, the middle.
 *
 * These are torchvision's Resize and CenterCrop, RandomCrop(size, padding) of a size x size image,
 * RandomResizedCrop and RandomHorizontalFlip. */
struct dpt_view dpt_view_of(const struct dpt_view_rule *rule, int width, int height,
                            int64_t number);

/* Writes the sample to `ret`: (size, size, 3) numbers (value / 255 - mean) / std of red, green and
 * blue. The means and deviations are those of CIFAR-10's images, or of ImageNet's. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_view_render(const struct dpt_view_rule *rule,
                                             const struct dpt_view *view,
                                             const struct dpt_picture *picture, float *ret,
                                             struct dpt_err *err);

#endif
