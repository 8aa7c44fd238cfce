/* A folder of images with a sub-folder for each class. The classes are numbered in the bytewise
 * order of the sub-folders' names, as by torchvision's ImageFolder. A sub-folder and the folders
 * below it have JPEG and PNG files. */
#ifndef DPT_WORKER_DATA_IMAGE_FOLDER_H
#define DPT_WORKER_DATA_IMAGE_FOLDER_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"
#include "worker/data/data_file.h"
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

/* Lists the folder `path`, which config key `key` names. Skips names that begin with a dot, files
 * beside the sub-folders, and files in the sub-folders without the ending of an image. Follows
 * symbolic links, and at most 16 levels of folders below a class. With damaged_images: skip it
 * decodes all files and leaves out damaged ones: one warning gives their number and the first 10
 * names, and one debug line for each gives the reason. DPT_ECONFIG: the number of sub-folders is
 * not model.labels, a sub-folder has no images, there are more levels, or a file is another kind of
 * image (.gif, .webp, …). Errors name the file or folder. */
DPT_MUST_USE enum dpt_status dpt_image_folder_open(const struct dpt_config *config, const char *key,
                                                   const char *path, struct dpt_image_folder **ret,
                                                   struct dpt_err *err);
void dpt_image_folder_close(struct dpt_image_folder **folder);

/* Decodes image `i`. DPT_ECORRUPT: the file was changed, or is damaged; the error names it. Any
 * thread. */
DPT_MUST_USE enum dpt_status dpt_image_folder_read(const struct dpt_image_folder *folder, int64_t i,
                                                   struct dpt_picture *ret, struct dpt_err *err);

/* The hash of all images in order: the label and the file's bytes of each. Decodes images that were
 * not decoded yet: DPT_ECORRUPT as in dpt_image_folder_read. */
DPT_MUST_USE enum dpt_status dpt_image_folder_hash(const struct dpt_image_folder *folder,
                                                   struct dpt_hash128 *ret, struct dpt_err *err);

/* The hash of the identities of the files. */
struct dpt_hash128 dpt_image_folder_stamp(const struct dpt_image_folder *folder);

#endif
