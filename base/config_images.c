/* Images: their keys, and impossible combinations. */
#include "base/config_table.h"

#include <string.h>

enum { CIFAR10_SIZE = 32, USUAL_SIZE = 224 };

static const char *const of_images[] = {"data.image_size", "data.resize", "data.augment",
                                        "data.crop_padding", "data.damaged_images"};

void dpt_config_resolve_images(struct dpt_config_load *load)
{
    struct dpt_config *c = &load->config;
    const bool cifar10 = c->data.kind == DPT_DATA_CIFAR10;
    if (!dpt_config_reads_images(c))
        return;
    if (c->data.image_size == DPT_AUTO)
        c->data.image_size = cifar10 ? CIFAR10_SIZE : USUAL_SIZE;
    if (c->data.resize == DPT_AUTO)
        c->data.resize = cifar10 ? CIFAR10_SIZE : c->data.image_size * 8 / 7;
    if (c->data.augment == DPT_AUGMENT_AUTO)
        c->data.augment = cifar10 ? DPT_AUGMENT_CROP_FLIP : DPT_AUGMENT_RESIZED_CROP_FLIP;
    if (!dpt_config_given(load, "train.seq_len"))
        c->train.seq_len = 1;
}

/* Images of CIFAR-10 all have the same size. They are not single files, so no file of an image can
 * be damaged. */
static enum dpt_status check_cifar10(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    if (c->data.image_size != CIFAR10_SIZE)
        return dpt_refuse_both(
            load, "data.image_size", "data.kind", err,
            "data.image_size is %d, and data.kind: cifar10 has images of %d x %d; leave it out",
            c->data.image_size, CIFAR10_SIZE, CIFAR10_SIZE);
    if (c->data.resize != CIFAR10_SIZE)
        return dpt_refuse_both(
            load, "data.resize", "data.kind", err,
            "data.resize is %d, and data.kind: cifar10 takes its images as they are; leave it out",
            c->data.resize);
    if (c->data.augment == DPT_AUGMENT_RESIZED_CROP_FLIP)
        return dpt_refuse_both(load, "data.augment", "data.kind", err,
                               "data.augment: resized_crop_flip is for data.kind: images; with "
                               "cifar10 write crop_flip or none");
    if (c->data.damaged_images == DPT_DAMAGED_IMAGES_SKIP)
        return dpt_refuse_both(
            load, "data.damaged_images", "data.kind", err,
            "data.damaged_images: skip is for data.kind: images; with cifar10 write refuse");
    return DPT_OK;
}

enum dpt_status dpt_config_check_images(const struct dpt_config_load *load, struct dpt_err *err)
{
    const struct dpt_config *c = &load->config;
    const char *kind = c->data.kind == DPT_DATA_CIFAR10 ? "cifar10" : "images";
    if (!dpt_config_reads_images(c)) {
        const char *path =
            dpt_config_first_changed(load, of_images, sizeof of_images / sizeof *of_images);
        return path == NULL
                   ? DPT_OK
                   : dpt_refuse_both(load, path, "data.kind", err,
                                     "%s is for data.kind: cifar10 or images; leave it out", path);
    }
    if (strcmp(c->model.name, "resnet") != 0)
        return dpt_refuse_both(
            load, "data.kind", "model.name", err,
            "data.kind: %s needs model.name: resnet, the model that reads images (here: %s)", kind,
            c->model.name);
    if (c->train.seq_len != 1)
        return dpt_refuse_both(load, "train.seq_len", "data.kind", err,
                               "train.seq_len is %d, and data.kind: %s has no tokens; leave it out",
                               c->train.seq_len, kind);
    if (c->data.kind == DPT_DATA_CIFAR10)
        return check_cifar10(load, err);
    if (c->data.resize < c->data.image_size)
        return dpt_refuse_both(load, "data.resize", "data.image_size", err,
                               "data.resize (%d) is less than data.image_size (%d), which is cut "
                               "out of it; set it to at least that",
                               c->data.resize, c->data.image_size);
    return DPT_OK;
}
