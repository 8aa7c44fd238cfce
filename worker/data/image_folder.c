/* Folders of images: listing their files, reading and hashing them (image_folder.h). */
#include "worker/data/image_folder.h"

#include "base/array.h"
#include "base/fs.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
    PATH_BYTES = 2 * DPT_CONFIG_PATH_BYTES,
    LEFT_OUT_NAMED = 10,         /* damaged images that the warning names at most */
    LEFT_OUT_NAMES_BYTES = 1024, /* room for these names; if they are long, fewer are named */
    LEVELS_MAX = 16              /* of folders below a class */
};

void dpt_image_folder_close(struct dpt_image_folder **folder)
{
    if (!*folder)
        return;
    for (int64_t i = 0; i < (*folder)->n; i++)
        free((*folder)->images[i].file.path);
    free((*folder)->images);
    dpt_fs_list_free(&(*folder)->class_names, (*folder)->n_classes);
    free((*folder)->path);
    free(*folder);
    *folder = NULL;
}

/* ---------------------------------------------------------------- reading */

/* The bytes of image `i`'s file, owned. */
static enum dpt_status read_image_file(const struct dpt_image_folder *folder, int64_t i,
                                       uint8_t **ret, struct dpt_err *err)
{
    const struct dpt_data_file *file = &folder->images[i].file;
    if (file->bytes > DPT_PICTURE_FILE_BYTES_MAX)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes; files of at most %d are read",
                        file->path, (long long)file->bytes, DPT_PICTURE_FILE_BYTES_MAX);
    uint8_t *bytes = malloc(file->bytes > 0 ? (size_t)file->bytes : 1);
    if (!bytes)
        return dpt_fail_nomem(err, "read '%s'", file->path);
    const enum dpt_status status = dpt_data_file_read(file, 0, bytes, (size_t)file->bytes, err);
    if (status == DPT_OK)
        *ret = bytes;
    else
        free(bytes);
    return status;
}

static enum dpt_status decode_image(const struct dpt_data_file *file, const uint8_t *bytes,
                                    struct dpt_picture *ret, struct dpt_err *err)
{
    const enum dpt_status status = dpt_picture_decode(bytes, (size_t)file->bytes, ret, err);
    return status == DPT_ECORRUPT ? dpt_wrap(err, status, "'%s' is damaged", file->path) : status;
}

enum dpt_status dpt_image_folder_read(const struct dpt_image_folder *folder, int64_t i,
                                      struct dpt_picture *ret, struct dpt_err *err)
{
    uint8_t *bytes = NULL;
    DPT_TRY(read_image_file(folder, i, &bytes, err));
    const enum dpt_status status = decode_image(&folder->images[i].file, bytes, ret, err);
    free(bytes);
    return status;
}

/* Adds an image to the hash. Decodes it if it was not decoded when the folder was opened: the run
 * has not begun yet, so the error can name the setting that leaves out damaged images. */
static enum dpt_status add_to_hash(const struct dpt_image_folder *folder, int64_t i,
                                   struct dpt_picture *picture, struct dpt_hash128 *h,
                                   struct dpt_err *err)
{
    const struct dpt_image *image = &folder->images[i];
    struct dpt_err why = {.status = DPT_OK};
    uint8_t *bytes = NULL;
    DPT_TRY(read_image_file(folder, i, &bytes, err));
    const enum dpt_status status =
        folder->decoded ? DPT_OK : decode_image(&image->file, bytes, picture, &why);
    const struct dpt_hash128 content = dpt_hash128(bytes, (size_t)image->file.bytes);
    const struct dpt_hash128 head = {(uint64_t)image->label, (uint64_t)image->file.bytes};
    *h = dpt_hash128_join(dpt_hash128_join(*h, head), content);
    free(bytes);
    if (status == DPT_ECORRUPT)
        return dpt_fail(err, status, "%s; replace it, or set data.damaged_images: skip", why.text);
    return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
}

enum dpt_status dpt_image_folder_hash(const struct dpt_image_folder *folder,
                                      struct dpt_hash128 *ret, struct dpt_err *err)
{
    struct dpt_hash128 h = {0, 0};
    struct dpt_picture picture = {.rgb = NULL};
    enum dpt_status status = DPT_OK;
    for (int64_t i = 0; status == DPT_OK && i < folder->n; i++)
        status = add_to_hash(folder, i, &picture, &h, err);
    dpt_picture_fini(&picture);
    if (status == DPT_OK)
        *ret = h;
    return status;
}

struct dpt_hash128 dpt_image_folder_stamp(const struct dpt_image_folder *folder)
{
    struct dpt_hash128 h = {0, 0};
    for (int64_t i = 0; i < folder->n; i++)
        h = dpt_data_file_stamp(&folder->images[i].file, h);
    return h;
}

/* ---------------------------------------------------------------- listing */

struct listing {
    const struct dpt_config *config;
    const char *key;
    struct dpt_image_folder *folder;
    struct dpt_picture picture;          /* room to decode in */
    char left_out[LEFT_OUT_NAMES_BYTES]; /* names of the first damaged images */
    int named;                           /* number of names in left_out */
};

static bool is_image(const char *name)
{
    return dpt_fs_has_ending(name, "jpg,jpeg,png");
}

/* An image that must be refused: if it were skipped, the user would miss it. */
static bool is_other_image(const char *name)
{
    return dpt_fs_has_ending(name, "bmp,gif,heic,pgm,ppm,tif,tiff,webp,avif");
}

/* Adds a damaged image to the names of the warning if there is room. */
static void name_left_out(struct listing *l, const char *path)
{
    const size_t used = strlen(l->left_out), room = sizeof l->left_out - used;
    const char *name = path + strlen(l->folder->path);
    while (*name == '/')
        name++;
    const size_t n = strlen(name) + strlen("'', ");
    if (l->named < l->folder->left_out || l->named == LEFT_OUT_NAMED || n >= room)
        return;
    (void)snprintf(l->left_out + used, room, "%s'%s'", l->named > 0 ? ", " : "", name);
    l->named++;
}

/* One warning for all damaged images; each has its reason in a line of level debug. */
static void warn_of_left_out(const struct listing *l)
{
    const struct dpt_image_folder *folder = l->folder;
    const long long left_out = folder->left_out, all = left_out + folder->n;
    char more[32] = "";
    if (left_out > l->named)
        (void)snprintf(more, sizeof more, " and %lld more", left_out - l->named);
    dpt_log(DPT_LOG_WARN, "%s: %lld of the %lld images in '%s' left out as damaged: %s%s", l->key,
            left_out, all, folder->path, l->left_out, more);
}

/* Decodes the last image of the list; removes it from the list if it is damaged. */
static enum dpt_status keep_last_if_sound(struct listing *l, struct dpt_err *err)
{
    struct dpt_image_folder *folder = l->folder;
    struct dpt_data_file *file = &folder->images[folder->n - 1].file;
    struct dpt_err why;
    uint8_t *bytes = NULL;
    DPT_TRY(read_image_file(folder, folder->n - 1, &bytes, err));
    const enum dpt_status status = decode_image(file, bytes, &l->picture, &why);
    free(bytes);
    if (status != DPT_ECORRUPT)
        return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
    dpt_log(DPT_LOG_DEBUG, "%s: left out: %s", l->key, why.text);
    name_left_out(l, file->path);
    free(file->path);
    folder->n--;
    folder->left_out++;
    return DPT_OK;
}

static enum dpt_status add_image(struct listing *l, const char *path, int32_t label,
                                 struct dpt_err *err)
{
    struct dpt_image_folder *folder = l->folder;
    if (folder->n >= DPT_IMAGES_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "there are more than %d images", DPT_IMAGES_MAX);
    char *copy = strdup(path);
    if (!copy || !dpt_array_reserve(&folder->images, &folder->room, (size_t)folder->n + 1,
                                    sizeof *folder->images)) {
        free(copy);
        return dpt_fail_nomem(err, "list '%s'", path);
    }
    struct dpt_image *image = &folder->images[folder->n++];
    *image = (struct dpt_image){.label = label, .file.path = copy};
    DPT_TRY(dpt_data_file_identify(&image->file, err));
    return folder->decoded ? keep_last_if_sound(l, err) : DPT_OK;
}

static enum dpt_status list_file(struct listing *l, const char *folder, const char *name,
                                 int32_t label, struct dpt_err *err)
{
    char path[PATH_BYTES];
    if (name[0] == '.')
        return DPT_OK;
    DPT_TRY(dpt_fs_join(folder, name, path, sizeof path, err));
    if (is_other_image(name))
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' is an image of another kind; convert it to .png or .jpg, or move it "
                        "out of the folder",
                        path);
    return is_image(name) ? add_image(l, path, label, err) : DPT_OK;
}

static enum dpt_status list_files(struct listing *l, const char *folder, int32_t label,
                                  struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(folder, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        status = list_file(l, folder, names[i], label, err);
    dpt_fs_list_free(&names, n);
    return status;
}

/* The folder of a class and the folders below it. */
struct tree {
    char **paths; /* (n) owned */
    size_t n, room;
};

static enum dpt_status add_folder(struct tree *tree, const char *path, struct dpt_err *err)
{
    char *copy = strdup(path);
    if (!copy || !dpt_array_reserve(&tree->paths, &tree->room, tree->n + 1, sizeof *tree->paths)) {
        free(copy);
        return dpt_fail_nomem(err, "list the folder '%s'", path);
    }
    tree->paths[tree->n++] = copy;
    return DPT_OK;
}

/* Whether the entry is a folder to list. An entry whose name ends like an image is a file. A
 * symbolic link to nothing is no folder. */
static enum dpt_status is_folder(const char *path, const char *name, bool *ret, struct dpt_err *err)
{
    struct stat st;
    const bool asked = name[0] != '.' && !is_image(name) && !is_other_image(name);
    const bool found = asked && stat(path, &st) == 0;
    if (asked && !found && errno != ENOENT)
        return dpt_fail_errno(err, errno, "look at '%s'", path);
    *ret = found && S_ISDIR(st.st_mode);
    return DPT_OK;
}

/* Adds the folder and all folders below it, also through symbolic links. */
static enum dpt_status add_tree(struct tree *tree, const char *path, int level, struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    if (level > LEVELS_MAX)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' is more than %d folders below its class; is a symbolic link in it a "
                        "loop? Remove it, or put the images higher",
                        path, LEVELS_MAX);
    DPT_TRY(add_folder(tree, path, err));
    DPT_TRY(dpt_fs_list(path, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        char below[PATH_BYTES];
        bool folder = false;
        status = dpt_fs_join(path, names[i], below, sizeof below, err);
        if (status == DPT_OK)
            status = is_folder(below, names[i], &folder, err);
        if (status == DPT_OK && folder)
            status = add_tree(tree, below, level + 1, err);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Lists the images of a class in torchvision's order: folders by their whole paths, then names in
 * each folder (make_dataset of torchvision/datasets/folder.py). */
static enum dpt_status list_tree(struct listing *l, const char *path, int32_t label,
                                 struct dpt_err *err)
{
    struct tree tree = {.n = 0};
    enum dpt_status status = add_tree(&tree, path, 0, err);
    if (status == DPT_OK)
        qsort(tree.paths, tree.n, sizeof *tree.paths, compare_paths);
    for (size_t i = 0; status == DPT_OK && i < tree.n; i++)
        status = list_files(l, tree.paths[i], label, err);
    dpt_fs_list_free(&tree.paths, tree.n);
    return status;
}

static enum dpt_status list_class(struct listing *l, const char *path, int32_t label,
                                  struct dpt_err *err)
{
    const int64_t before = l->folder->n, left_out = l->folder->left_out;
    DPT_TRY(list_tree(l, path, label, err));
    if (l->folder->n > before)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "the folder '%s' of class %d has no %simage; put .jpg or .png files there, "
                    "or remove the folder and set model.labels: %d",
                    path, (int)label, l->folder->left_out > left_out ? "sound " : "",
                    l->config->model.labels - 1);
}

/* Moves the names of the sub-folders from the `n` names of the folder's entries to class_names. */
static enum dpt_status take_class_names(struct dpt_image_folder *folder, char **names, size_t n,
                                        struct dpt_err *err)
{
    /* + 1: calloc of 0 bytes may return NULL. */
    folder->class_names = calloc(n + 1, sizeof *folder->class_names);
    if (!folder->class_names)
        return dpt_fail_nomem(err, "list '%s'", folder->path);
    for (size_t i = 0; i < n; i++) {
        char path[PATH_BYTES];
        struct stat st;
        if (names[i][0] == '.')
            continue;
        DPT_TRY(dpt_fs_join(folder->path, names[i], path, sizeof path, err));
        if (stat(path, &st) != 0)
            return dpt_fail_errno(err, errno, "look at '%s'", path);
        if (!S_ISDIR(st.st_mode))
            continue;
        folder->class_names[folder->n_classes++] = names[i];
        names[i] = NULL;
    }
    return DPT_OK;
}

static enum dpt_status check_classes(const struct listing *l, struct dpt_err *err)
{
    const int labels = l->config->model.labels;
    const size_t n = l->folder->n_classes;
    if (n == 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has no sub-folders; put the images of each class into one",
                        l->folder->path);
    if (n == (size_t)labels)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' has %zu sub-folders, a class each, and model.labels is %d; set it to "
                    "%zu, or name the folder of %d classes",
                    l->folder->path, n, labels, n, labels);
}

static enum dpt_status list_classes(struct listing *l, struct dpt_err *err)
{
    struct dpt_image_folder *folder = l->folder;
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(folder->path, &names, &n, err));
    const enum dpt_status status = take_class_names(folder, names, n, err);
    dpt_fs_list_free(&names, n);
    if (status != DPT_OK)
        return status;
    DPT_TRY(check_classes(l, err));
    for (size_t i = 0; i < folder->n_classes; i++) {
        char path[PATH_BYTES];
        const char *name = folder->class_names[i];
        DPT_TRY(dpt_fs_join(folder->path, name, path, sizeof path, err));
        DPT_TRY(list_class(l, path, (int32_t)i, err));
        folder->classes = dpt_hash128_join(folder->classes, dpt_hash128(name, strlen(name)));
    }
    return DPT_OK;
}

enum dpt_status dpt_image_folder_open(const struct dpt_config *config, const char *key,
                                      const char *path, struct dpt_image_folder **ret,
                                      struct dpt_err *err)
{
    struct listing l = {.config = config, .key = key, .folder = calloc(1, sizeof *l.folder)};
    if (l.folder)
        l.folder->path = strdup(path);
    if (!l.folder || !l.folder->path) {
        dpt_image_folder_close(&l.folder);
        return dpt_fail_nomem(err, "list '%s'", path);
    }
    l.folder->decoded = config->data.damaged_images == DPT_DAMAGED_IMAGES_SKIP;
    const enum dpt_status status = list_classes(&l, err);
    dpt_picture_fini(&l.picture);
    if (status != DPT_OK) {
        dpt_image_folder_close(&l.folder);
        return status;
    }
    if (l.folder->left_out > 0)
        warn_of_left_out(&l);
    *ret = l.folder;
    return DPT_OK;
}
