/* From a picture to a sample: the part of the picture, its size, mirrored or not, as the numbers
 * that a model reads. In training the part is drawn, keyed by the seed and the sample's number in
 * the run: the same for every rank, thread and world. */
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

/* One view of a picture: the part `from`, resized to width x height, of which the size x size
 * pixels from (x, y) on are the sample. Pixels outside the resized part are black. */
struct dpt_view {
    struct dpt_area from;
    int width, height, x, y;
    bool mirrored; /* left and right */
};

/* The view of a picture of this size for sample `number` of the run, or, with DPT_DATA_NOT_VARIED
 * (worker/data/data.h), for an evaluation. Pure; no function of libm but sqrt decides.
 *
 * - An evaluation, or augment none. cifar10: the whole picture. images: the shorter side
 *   resized to `resize`, the longer in proportion (rounded down); of that the middle size x size
 *   (a half rounded to even).
 * - crop_flip: the same, moved by -padding … padding pixels in each direction, mirrored in half
 *   of the cases.
 * - resized_crop_flip: a part of 8 to 100 % of the area and of 3/4 to 4/3 in width by height
 *   (even in its logarithm), at any place, resized to size x size, mirrored in half of the cases;
 *   after ten draws that do not fit, the middle.
 *
 * These are torchvision's Resize and CenterCrop, RandomCrop(size, padding) of a size x size image,
 * RandomResizedCrop and RandomHorizontalFlip. */
struct dpt_view dpt_view_of(const struct dpt_view_rule *rule, int width, int height,
                            int64_t number);

/* The sample: (size, size, 3) numbers (value / 255 - mean) / std of red, green and blue, in `ret`.
 * The means and deviations are those of CIFAR-10's images, or of ImageNet's. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status dpt_view_render(const struct dpt_view_rule *rule,
                                             const struct dpt_view *view,
                                             const struct dpt_picture *picture, float *ret,
                                             struct dpt_err *err);

#endif
