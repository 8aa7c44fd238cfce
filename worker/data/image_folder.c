/* Folders of images: what is in them, read file by file (image_folder.h). */
#include "worker/data/image_folder.h"

#include "base/array.h"
#include "base/fs.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES = 2 * DPT_CONFIG_PATH_BYTES,
    LEFT_OUT_NAMED = 10,         /* damaged images that the warning names at most */
    LEFT_OUT_NAMES_BYTES = 1024, /* of their names; longer ones are named in fewer */
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

/* A file's bytes, owned. */
static enum dpt_status read_bytes(const struct dpt_data_file *file, uint8_t **ret,
                                  struct dpt_err *err)
{
    int fd = -1;
    if (file->bytes > DPT_PICTURE_FILE_BYTES_MAX)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes; files of at most %d are read",
                        file->path, (long long)file->bytes, DPT_PICTURE_FILE_BYTES_MAX);
    uint8_t *bytes = malloc(file->bytes > 0 ? (size_t)file->bytes : 1);
    if (!bytes)
        return dpt_fail_nomem(err, "read '%s'", file->path);
    enum dpt_status status = dpt_data_file_open(file, &fd, err);
    if (status == DPT_OK)
        status = dpt_fs_pread_all(fd, bytes, (size_t)file->bytes, 0, file->path, err);
    if (fd >= 0)
        (void)close(fd); /* opened for reading */
    if (status == DPT_OK)
        *ret = bytes;
    else
        free(bytes);
    return status;
}

static enum dpt_status decode(const struct dpt_data_file *file, const uint8_t *bytes,
                              struct dpt_picture *ret, struct dpt_err *err)
{
    const enum dpt_status status = dpt_picture_decode(bytes, (size_t)file->bytes, ret, err);
    return status == DPT_ECORRUPT ? dpt_wrap(err, status, "'%s' is damaged", file->path) : status;
}

enum dpt_status dpt_image_folder_read(const struct dpt_image_folder *folder, int64_t i,
                                      struct dpt_picture *ret, struct dpt_err *err)
{
    uint8_t *bytes = NULL;
    DPT_TRY(read_bytes(&folder->images[i].file, &bytes, err));
    const enum dpt_status status = decode(&folder->images[i].file, bytes, ret, err);
    free(bytes);
    return status;
}

/* Before the run begins, where the file can still be left out. */
static enum dpt_status verify(const struct dpt_data_file *file, const uint8_t *bytes,
                              struct dpt_picture *picture, struct dpt_err *err)
{
    struct dpt_err why;
    const enum dpt_status status = decode(file, bytes, picture, &why);
    if (status == DPT_OK)
        return DPT_OK;
    if (status != DPT_ECORRUPT)
        return dpt_pass(err, &why);
    return dpt_fail(err, status, "%s; replace it, or set data.damaged_images: skip", why.text);
}

static enum dpt_status add_to_hash(const struct dpt_image_folder *folder, int64_t i,
                                   struct dpt_picture *picture, struct dpt_hash128 *h,
                                   struct dpt_err *err)
{
    const struct dpt_image *image = &folder->images[i];
    uint8_t *bytes = NULL;
    enum dpt_status status = DPT_OK;
    DPT_TRY(read_bytes(&image->file, &bytes, err));
    if (!folder->decoded)
        status = verify(&image->file, bytes, picture, err);
    if (status == DPT_OK) {
        const struct dpt_hash128 content = dpt_hash128(bytes, (size_t)image->file.bytes);
        const struct dpt_hash128 head = {(uint64_t)image->label, (uint64_t)image->file.bytes};
        *h = dpt_hash128_join(dpt_hash128_join(*h, head), content);
    }
    free(bytes);
    return status;
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

/* ---------------------------------------------------------------- looking */

struct looking {
    const struct dpt_config *config;
    const char *key;
    struct dpt_image_folder *folder;
    struct dpt_picture picture;          /* room to decode in */
    char left_out[LEFT_OUT_NAMES_BYTES]; /* names of the first damaged images */
    int named;                           /* how many they are */
};

static bool is_image(const char *name)
{
    return dpt_fs_has_ending(name, "jpg,jpeg,png");
}

/* A user would miss such an image if it were passed over. */
static bool is_other_image(const char *name)
{
    return dpt_fs_has_ending(name, "bmp,gif,heic,pgm,ppm,tif,tiff,webp,avif");
}

/* Adds a damaged image to the names of the warning if there is room. */
static void name_left_out(struct looking *l, const char *path)
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
static void warn_of_left_out(const struct looking *l)
{
    const struct dpt_image_folder *folder = l->folder;
    const long long left_out = folder->left_out, all = left_out + folder->n;
    char more[32] = "";
    if (left_out > l->named)
        (void)snprintf(more, sizeof more, " and %lld more", left_out - l->named);
    dpt_log(DPT_LOG_WARN, "%s: %lld of the %lld images in '%s' left out as damaged: %s%s", l->key,
            left_out, all, folder->path, l->left_out, more);
}

/* Decodes the last image of the list; takes it off again if it is damaged. */
static enum dpt_status try_last(struct looking *l, struct dpt_err *err)
{
    struct dpt_image_folder *folder = l->folder;
    struct dpt_image *last = &folder->images[folder->n - 1];
    struct dpt_err why;
    uint8_t *bytes = NULL;
    DPT_TRY(read_bytes(&last->file, &bytes, err));
    const enum dpt_status status = decode(&last->file, bytes, &l->picture, &why);
    free(bytes);
    if (status != DPT_ECORRUPT)
        return status == DPT_OK ? DPT_OK : dpt_pass(err, &why);
    dpt_log(DPT_LOG_DEBUG, "%s: left out: %s", l->key, why.text);
    name_left_out(l, last->file.path);
    free(last->file.path);
    folder->n--;
    folder->left_out++;
    return DPT_OK;
}

static enum dpt_status add_image(struct looking *l, const char *path, int32_t label,
                                 struct dpt_err *err)
{
    int fd = -1;
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
    DPT_TRY(dpt_data_file_open_first(&image->file, &fd, err));
    (void)close(fd); /* opened for reading */
    return l->folder->decoded ? try_last(l, err) : DPT_OK;
}

static enum dpt_status look_at_file(struct looking *l, const char *folder, const char *name,
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

static enum dpt_status look_at_files(struct looking *l, const char *folder, int32_t label,
                                     struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(folder, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        status = look_at_file(l, folder, names[i], label, err);
    dpt_fs_list_free(&names, n);
    return status;
}

/* Folders of a class: its own and those below it. */
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

/* A name that is an image's is a file's. A symbolic link to nothing is no folder. */
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

/* Adds the folder and those below it, through symbolic links, too. */
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

static int by_path(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* torchvision sorts whole paths of folders, and names in each: make_dataset of
 * torchvision/datasets/folder.py. */
static enum dpt_status look_at_tree(struct looking *l, const char *path, int32_t label,
                                    struct dpt_err *err)
{
    struct tree tree = {.n = 0};
    enum dpt_status status = add_tree(&tree, path, 0, err);
    if (status == DPT_OK)
        qsort(tree.paths, tree.n, sizeof *tree.paths, by_path);
    for (size_t i = 0; status == DPT_OK && i < tree.n; i++)
        status = look_at_files(l, tree.paths[i], label, err);
    dpt_fs_list_free(&tree.paths, tree.n);
    return status;
}

static enum dpt_status look_at_class(struct looking *l, const char *path, int32_t label,
                                     struct dpt_err *err)
{
    const int64_t before = l->folder->n, left_out = l->folder->left_out;
    DPT_TRY(look_at_tree(l, path, label, err));
    if (l->folder->n > before)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "the folder '%s' of class %d has no %simage; put .jpg or .png files there, "
                    "or remove the folder and set model.labels: %d",
                    path, (int)label, l->folder->left_out > left_out ? "sound " : "",
                    l->config->model.labels - 1);
}

/* Keeps those of the names that are folders of classes, in their order; `*n` of them. */
static enum dpt_status keep_folders(const char *path, char **names, size_t *n, struct dpt_err *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < *n; i++) {
        char whole[PATH_BYTES];
        struct stat st;
        if (names[i][0] == '.')
            continue;
        DPT_TRY(dpt_fs_join(path, names[i], whole, sizeof whole, err));
        if (stat(whole, &st) != 0)
            return dpt_fail_errno(err, errno, "look at '%s'", whole);
        if (!S_ISDIR(st.st_mode))
            continue;
        char *name = names[kept];
        names[kept++] = names[i];
        names[i] = name;
    }
    *n = kept;
    return DPT_OK;
}

static enum dpt_status check_classes(const struct looking *l, const char *path, size_t n,
                                     struct dpt_err *err)
{
    const int labels = l->config->model.labels;
    if (n == 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' has no sub-folders; put the images of each class into one", path);
    if (n == (size_t)labels)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' has %zu sub-folders, a class each, and model.labels is %d; set it to "
                    "%zu, or name the folder of %d classes",
                    path, n, labels, n, labels);
}

static enum dpt_status look_at_classes(struct looking *l, const char *path, char **names, size_t n,
                                       struct dpt_err *err)
{
    DPT_TRY(keep_folders(path, names, &n, err));
    DPT_TRY(check_classes(l, path, n, err));
    l->folder->class_names = calloc(n, sizeof *l->folder->class_names);
    if (!l->folder->class_names)
        return dpt_fail_nomem(err, "look at '%s'", path);
    for (size_t i = 0; i < n; i++) {
        char whole[PATH_BYTES];
        const struct dpt_hash128 name = dpt_hash128(names[i], strlen(names[i]));
        l->folder->class_names[i] = strdup(names[i]);
        if (!l->folder->class_names[i])
            return dpt_fail_nomem(err, "look at '%s'", path);
        l->folder->n_classes++;
        DPT_TRY(dpt_fs_join(path, names[i], whole, sizeof whole, err));
        DPT_TRY(look_at_class(l, whole, (int32_t)i, err));
        l->folder->classes = dpt_hash128_join(l->folder->classes, name);
    }
    return DPT_OK;
}

enum dpt_status dpt_image_folder_open(const struct dpt_config *config, const char *key,
                                      const char *path, struct dpt_image_folder **ret,
                                      struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    struct looking l = {.config = config, .key = key};
    DPT_TRY(dpt_fs_list(path, &names, &n, err));
    l.folder = calloc(1, sizeof *l.folder);
    if (l.folder)
        l.folder->path = strdup(path);
    enum dpt_status status =
        l.folder && l.folder->path ? DPT_OK : dpt_fail_nomem(err, "look at '%s'", path);
    if (status == DPT_OK) {
        l.folder->decoded = config->data.damaged_images == DPT_DAMAGED_IMAGES_SKIP;
        status = look_at_classes(&l, path, names, n, err);
    }
    if (status == DPT_OK && l.folder->left_out > 0)
        warn_of_left_out(&l);
    dpt_fs_list_free(&names, n);
    dpt_picture_fini(&l.picture);
    if (status == DPT_OK)
        *ret = l.folder;
    else
        dpt_image_folder_close(&l.folder);
    return status;
}
