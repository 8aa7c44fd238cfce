/* A folder of images: a sub-folder for each class, numbered in the bytewise order of their names,
 * as torchvision's ImageFolder does, with JPEG and PNG files in it and in the folders below it. */
#ifndef DPT_WORKER_DATA_IMAGE_FOLDER_H
#define DPT_WORKER_DATA_IMAGE_FOLDER_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"
#include "worker/data/file.h"
#include "worker/data/picture.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_IMAGES_MAX = 1 << 27 };

struct dpt_image {
    struct dpt_data_file file;
    int32_t label; /* 0 … model.labels - 1 */
};

struct dpt_image_folder {
    char *path;
    struct dpt_image *images; /* (n) by class, path of the folder and name, bytewise */
    int64_t n;
    size_t room;
    int64_t left_out;   /* damaged images */
    char **class_names; /* (n_classes) of the sub-folders, in the order of labels */
    size_t n_classes;
    struct dpt_hash128 classes; /* hash of the names */
    bool decoded;               /* each file was decoded once when the folder was opened */
};

/* Lists the folder `path`, which `key` of the config names. Skips names that begin with a dot,
 * files beside the sub-folders, and in them files without the ending of an image. Follows symbolic
 * links, and at most 16 levels of folders below a class. With damaged_images: skip all files are
 * decoded, and damaged ones are left out: one warning has their number and the first 10 names, and
 * a line of level debug tells the reason of each. DPT_ECONFIG: the number of sub-folders is not
 * model.labels, one has no images, there are more levels, or a file is another kind of image (.gif,
 * .webp, …). Errors name the file or folder. */
DPT_MUST_USE enum dpt_status dpt_image_folder_open(const struct dpt_config *config, const char *key,
                                                   const char *path, struct dpt_image_folder **ret,
                                                   struct dpt_err *err);
void dpt_image_folder_close(struct dpt_image_folder **folder);

/* Decodes image `i`. DPT_ECORRUPT: the file was changed, or is damaged; the error names it. Any
 * thread. */
DPT_MUST_USE enum dpt_status dpt_image_folder_read(const struct dpt_image_folder *folder, int64_t i,
                                                   struct dpt_picture *ret, struct dpt_err *err);

/* The hash of every image's label and the bytes of its file, in order. Decodes images that were not
 * decoded yet: DPT_ECORRUPT as in dpt_image_folder_read. */
DPT_MUST_USE enum dpt_status dpt_image_folder_hash(const struct dpt_image_folder *folder,
                                                   struct dpt_hash128 *ret, struct dpt_err *err);

/* The hash of the identities of the files. */
struct dpt_hash128 dpt_image_folder_stamp(const struct dpt_image_folder *folder);

#endif
