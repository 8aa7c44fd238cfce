/* The tensors of a Hugging Face folder (published.h). */
#include "worker/weights/published.h"

#include "base/fs.h"
#include "checkpoint/names.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights_hash.h"
#include "kernels/half.h"
#include "worker/model/hf_config.h"
#include "worker/weights/finite.h"
#include "worker/weights/folder_kind.h"
#include "worker/weights/tensor_name.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 1024, INDEX_BYTES_MAX = 1 << 26, CHUNK = 1 << 15, SHAPE_BYTES = 96 };

struct file {
    char path[PATH_MAX];
    int fd;
    struct dpt_safetensors header;
};

/* Where a tensor of the model is. */
struct place {
    const struct file *file;
    const struct dpt_safetensors_entry *entry;
};

struct dpt_published {
    const struct dpt_model *model; /* NULL: of any model */
    const char *dir;               /* the caller's, while it is being opened */
    struct file *files;            /* [n_files] */
    int n_files;
    struct place *places; /* of all tensors in the files, by name; then of each of the model's */
    int n_tensors;
    struct place *of_param;
    bool *used; /* [n_tensors] */
};

/* ---- files ---- */

/* A clone without git-lfs has a pointer in place of a large file
 * (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, "The Pointer"). */
static enum dpt_status refuse_pointer(const struct file *file, int64_t bytes, struct dpt_err *err)
{
    static const char front[] = "version https://git-lfs";
    char text[sizeof front - 1];
    if (bytes < (int64_t)sizeof text)
        return DPT_OK;
    DPT_TRY(dpt_fs_pread_all(file->fd, text, sizeof text, 0, file->path, err));
    return memcmp(text, front, sizeof text) != 0
               ? DPT_OK
               : dpt_fail(err, DPT_ECORRUPT,
                          "'%s' is a pointer of Git LFS and has no weights; run `git lfs pull` in "
                          "the clone, or download the file",
                          file->path);
}

static enum dpt_status read_header(struct file *file, int64_t bytes, struct dpt_err *err)
{
    uint8_t length[DPT_SAFETENSORS_LENGTH_BYTES];
    size_t n;
    if (bytes < DPT_SAFETENSORS_LENGTH_BYTES)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes: it is cut off", file->path,
                        (long long)bytes);
    DPT_TRY(dpt_fs_pread_all(file->fd, length, sizeof length, 0, file->path, err));
    if (memcmp(length, "version ", sizeof length) == 0) /* no file is as long as that says */
        DPT_TRY(refuse_pointer(file, bytes, err));
    DPT_TRY(dpt_safetensors_parse_length(length, bytes, file->path, &n, err));
    char *json = malloc(n);
    if (!json)
        return dpt_fail_nomem(err, "read '%s'", file->path);
    enum dpt_status status = dpt_fs_pread_all(file->fd, json, n, sizeof length, file->path, err);
    if (status == DPT_OK)
        status = dpt_safetensors_parse_any(json, n, bytes, file->path, &file->header, err);
    free(json);
    return status;
}

/* Links are followed: Hugging Face's cache is made of them. */
static enum dpt_status add_file(struct dpt_published *p, const char *name, struct dpt_err *err)
{
    struct file *file = &p->files[p->n_files];
    struct stat st;
    DPT_TRY(dpt_fs_join(p->dir, name, file->path, sizeof file->path, err));
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    p->n_files++;
    if (fstat(file->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return dpt_fail(err, DPT_ECONFIG, "'%s' is no regular file", file->path);
    DPT_TRY(read_header(file, st.st_size, err));
    p->n_tensors += file->header.n;
    return DPT_OK;
}

static enum dpt_status alloc_files(struct dpt_published *p, size_t n, struct dpt_err *err)
{
    p->files = calloc(n ? n : 1, sizeof *p->files);
    return p->files ? DPT_OK : dpt_fail_nomem(err, "open weights");
}

static enum dpt_status add_single(struct dpt_published *p, const char *name, struct dpt_err *err)
{
    DPT_TRY(alloc_files(p, 1, err));
    return add_file(p, name, err);
}

/* The files that an index names, each once: its values as the keys of an object. */
static enum dpt_status add_indexed(struct dpt_published *p, const json_t *map, json_t *names,
                                   struct dpt_err *err)
{
    const char *tensor, *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        name = json_string_value(value);
        if (!name || !dpt_name_is_listable(name) || strchr(name, '/'))
            return dpt_fail(err, DPT_ECONFIG,
                            "'%s/" DPT_NAME_INDEX "': tensor '%.100s' is in no file of this folder",
                            p->dir, tensor);
        if (json_object_set_new(names, name, json_null()) != 0)
            return dpt_fail_nomem(err, "open weights");
    }
    if (json_object_size(names) > FILES_MAX)
        return dpt_fail(err, DPT_ECONFIG, "'%s/" DPT_NAME_INDEX "': more than %d files", p->dir,
                        FILES_MAX);
    DPT_TRY(alloc_files(p, json_object_size(names), err));
    json_object_foreach(names, name, value)
    {
        enum dpt_status status = add_file(p, name, err);
        if (status != DPT_OK)
            return dpt_wrap(err, status, DPT_NAME_INDEX " names it");
    }
    return DPT_OK;
}

static enum dpt_status open_shards(struct dpt_published *p, struct dpt_err *err)
{
    char path[PATH_MAX], *text;
    size_t bytes;
    json_error_t at;
    DPT_TRY(dpt_fs_join(p->dir, DPT_NAME_INDEX, path, sizeof path, err));
    DPT_TRY(dpt_fs_read_file(path, INDEX_BYTES_MAX, &text, &bytes, err));
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &at), *names = json_object();
    free(text);
    const json_t *map = json_object_get(root, "weight_map");
    enum dpt_status status;
    if (!root)
        status = dpt_fail(err, DPT_ECONFIG, "'%s/" DPT_NAME_INDEX "', line %d: no JSON: %s", p->dir,
                          at.line, at.text);
    else if (!json_is_object(map) || !names)
        status = dpt_fail(err, DPT_ECONFIG, "'%s/" DPT_NAME_INDEX "' has no weight_map", p->dir);
    else
        status = add_indexed(p, map, names, err);
    json_decref(names);
    json_decref(root);
    return status;
}

static enum dpt_status open_files(struct dpt_published *p, struct dpt_err *err)
{
    if (!p->model && dpt_folder_has_adapters(p->dir))
        return add_single(p, DPT_NAME_ADAPTERS, err);
    DPT_TRY(dpt_folder_check_model(p->dir, err));
    if (dpt_folder_has(p->dir, DPT_NAME_SINGLE))
        return add_single(p, DPT_NAME_SINGLE, err);
    if (dpt_folder_has(p->dir, DPT_NAME_INDEX))
        return open_shards(p, err);
    return dpt_fail(err, DPT_ENOENT,
                    "'%s' has neither " DPT_NAME_SINGLE " nor " DPT_NAME_INDEX
                    "; save the model with transformers' save_pretrained there",
                    p->dir);
}

enum dpt_status dpt_published_sizes(const char *dir, struct dpt_config_sizes *ret,
                                    struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_folder_check_model(dir, err));
    DPT_TRY(dpt_fs_join(dir, DPT_NAME_CONFIG, path, sizeof path, err));
    return dpt_hf_config_read(path, ret, err);
}

/* ---- tensors ---- */

static int by_name(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return strcmp(x->entry->name, y->entry->name);
}

static enum dpt_status index_tensors(struct dpt_published *p, struct dpt_err *err)
{
    p->places = calloc((size_t)p->n_tensors + 1, sizeof *p->places);
    p->used = calloc((size_t)p->n_tensors + 1, sizeof *p->used);
    p->of_param = calloc(p->model ? (size_t)dpt_model_n_params(p->model) : 1, sizeof *p->of_param);
    if (!p->places || !p->used || !p->of_param)
        return dpt_fail_nomem(err, "open weights");
    int n = 0;
    for (int f = 0; f < p->n_files; f++)
        for (int i = 0; i < p->files[f].header.n; i++)
            p->places[n++] = (struct place){&p->files[f], &p->files[f].header.entries[i]};
    qsort(p->places, (size_t)n, sizeof *p->places, by_name);
    for (int i = 1; i < n; i++)
        if (by_name(&p->places[i - 1], &p->places[i]) == 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': tensor '%s' is in another file, too",
                            p->places[i].file->path, p->places[i].entry->name);
    return DPT_OK;
}

static const struct place *find(const struct dpt_published *p, const char *name)
{
    struct dpt_safetensors_entry entry = {.name = (char *)(uintptr_t)name};
    const struct place key = {.entry = &entry};
    return bsearch(&key, p->places, (size_t)p->n_tensors, sizeof *p->places, by_name);
}

static void format_shape(const int64_t *dim, int ndim, char ret[SHAPE_BYTES])
{
    int used = snprintf(ret, SHAPE_BYTES, "[");
    for (int d = 0; d < ndim; d++)
        used += snprintf(ret + used, SHAPE_BYTES - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)dim[d]);
    (void)snprintf(ret + used, SHAPE_BYTES - (size_t)used, "]");
}

static bool same_shape(const struct place *place, const struct dpt_param *param)
{
    const struct dpt_safetensors_entry *entry = place->entry;
    return entry->ndim == param->ndim &&
           memcmp(entry->dim, param->dim, (size_t)param->ndim * sizeof *param->dim) == 0;
}

static enum dpt_status check_dtype(const struct place *place, struct dpt_err *err)
{
    return place->entry->dtype != DPT_SAFETENSORS_OTHER
               ? DPT_OK
               : dpt_fail(err, DPT_EUNSUPPORTED,
                          "'%s': tensor '%s' has dtype %s; F32, BF16 and F16 are read",
                          place->file->path, place->entry->name, place->entry->dtype_name);
}

static enum dpt_status check_entry(const struct place *place, const struct dpt_param *param,
                                   struct dpt_err *err)
{
    const struct dpt_safetensors_entry *entry = place->entry;
    char is[SHAPE_BYTES], wanted[SHAPE_BYTES];
    if (!same_shape(place, param)) {
        format_shape(entry->dim, entry->ndim, is);
        format_shape(param->dim, param->ndim, wanted);
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s': tensor '%s' has the shape %s, by the model's sizes it is %s",
                        place->file->path, entry->name, is, wanted);
    }
    return check_dtype(place, err);
}

/* The place of a parameter, under its name or under the base model's; NULL: there is none. */
static enum dpt_status find_param(const struct dpt_published *p, const char *name,
                                  const struct place **ret, struct dpt_err *err)
{
    const struct place *place = find(p, name), *base = find(p, dpt_tensor_base_name(name));
    if (place && base && place != base)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s': tensor '%s' is there as '%s', too; remove one of the two",
                        base->file->path, base->entry->name, place->entry->name);
    *ret = place ? place : base;
    return DPT_OK;
}

/* Of the labels' head, which begins fresh where the folder's is missing or of another shape. */
static bool is_score(const struct dpt_published *p, int param)
{
    const int score = dpt_model_score(p->model);
    return score >= 0 && param >= score;
}

static enum dpt_status match(struct dpt_published *p, struct dpt_err *err)
{
    for (int i = 0; i < dpt_model_n_params(p->model); i++) {
        const struct dpt_param *param = dpt_model_param(p->model, i);
        const struct place *place = NULL;
        DPT_TRY(find_param(p, param->name, &place, err));
        if (is_score(p, i) && (!place || !same_shape(place, param)))
            continue;
        if (!place)
            return dpt_fail(err, DPT_ECONFIG, "'%s': tensor '%s' is missing%s",
                            p->n_files == 1 ? p->files[0].path : p->dir, param->name,
                            p->n_files == 1 ? "" : " in all its files");
        DPT_TRY(check_entry(place, param, err));
        p->of_param[i] = *place;
        p->used[place - p->places] = true;
    }
    return DPT_OK;
}

/* ---- tensors that are not in the model ---- */

/* Whether a tensor lies beneath the heads, where the model's tensors are: below the base model's
 * front, or beside tensors of the model. */
static bool is_in_body(const struct dpt_published *p, const char *name)
{
    const char *base = dpt_tensor_base_name(name);
    const size_t n = dpt_tensor_part_bytes(base);
    if (dpt_tensor_is_head(name))
        return false;
    if (base != name)
        return true;
    for (int i = 0; i < dpt_model_n_params(p->model) && !is_score(p, i); i++) {
        const char *ours = dpt_tensor_base_name(dpt_model_param(p->model, i)->name);
        if (dpt_tensor_part_bytes(ours) == n && memcmp(ours, base, n) == 0)
            return true;
    }
    return false;
}

/* A model without some of the body's tensors would be another than the one that was saved: heads
 * alone may be left out. */
static enum dpt_status check_unused(const struct dpt_published *p, struct dpt_err *err)
{
    const struct place *first = NULL;
    char more[32] = "";
    int n = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        const struct place *place = &p->places[i];
        if (p->used[i] || dpt_tensor_is_buffer(place->entry->name) ||
            !is_in_body(p, place->entry->name))
            continue;
        first = first ? first : place;
        n++;
    }
    if (n > 1)
        (void)snprintf(more, sizeof more, " and %d more", n - 1);
    return n == 0
               ? DPT_OK
               : dpt_fail(err, DPT_ECONFIG,
                          "'%s': by the model's sizes there is no tensor '%s'%s; config.json and "
                          "the tensors must be of one model: correct the number of layers or the "
                          "biases in config.json, or take another folder",
                          first->file->path, first->entry->name, more);
}

enum dpt_status dpt_published_open(const char *dir, const struct dpt_model *model,
                                   struct dpt_published **ret, struct dpt_err *err)
{
    struct dpt_published *p = calloc(1, sizeof *p);
    if (!p)
        return dpt_fail_nomem(err, "open weights");
    p->model = model;
    p->dir = dir;
    enum dpt_status status = open_files(p, err);
    if (status == DPT_OK)
        status = index_tensors(p, err);
    if (status == DPT_OK && model)
        status = match(p, err);
    if (status == DPT_OK && model)
        status = check_unused(p, err);
    if (status == DPT_OK)
        *ret = p;
    else
        dpt_published_close(&p);
    return status;
}

void dpt_published_close(struct dpt_published **published)
{
    struct dpt_published *p = *published;
    if (!p)
        return;
    for (int i = 0; i < p->n_files; i++) {
        dpt_safetensors_fini(&p->files[i].header);
        (void)close(p->files[i].fd); /* opened for reading */
    }
    free(p->files);
    free(p->places);
    free(p->of_param);
    free(p->used);
    free(p);
    *published = NULL;
}

enum dpt_status dpt_published_labels(const char *dir, int64_t *ret, struct dpt_err *err)
{
    struct dpt_published *p = calloc(1, sizeof *p);
    if (!p)
        return dpt_fail_nomem(err, "open weights");
    p->dir = dir;
    *ret = 0;
    const enum dpt_status status = open_files(p, err);
    for (int f = 0; f < p->n_files && status == DPT_OK; f++)
        for (int i = 0; i < p->files[f].header.n; i++) {
            const struct dpt_safetensors_entry *entry = &p->files[f].header.entries[i];
            if (strcmp(entry->name, "score.weight") == 0 && entry->ndim > 0)
                *ret = entry->dim[0];
        }
    dpt_published_close(&p);
    return status;
}

/* " [4, 64]" of a head's tensor, which is left out for its shape alone; else "". */
static void format_unfit(const struct dpt_published *p, const struct dpt_safetensors_entry *entry,
                         char ret[SHAPE_BYTES])
{
    char shape[SHAPE_BYTES];
    ret[0] = '\0';
    for (int i = 0; i < dpt_model_n_params(p->model); i++)
        if (is_score(p, i) && strcmp(dpt_model_param(p->model, i)->name, entry->name) == 0) {
            format_shape(entry->dim, entry->ndim, shape);
            (void)snprintf(ret, SHAPE_BYTES, " %.*s", SHAPE_BYTES - 2, shape);
        }
}

int dpt_published_left_out(const struct dpt_published *published,
                           char ret_names[DPT_PUBLISHED_LEFT_OUT_BYTES])
{
    enum { ROOM_FOR_COUNT = 24 };
    const size_t room = DPT_PUBLISHED_LEFT_OUT_BYTES - ROOM_FOR_COUNT;
    int n = 0, named = 0;
    size_t used = 0;
    ret_names[0] = '\0';
    for (int i = 0; i < published->n_tensors; i++) {
        const char *name = published->places[i].entry->name;
        char shape[SHAPE_BYTES];
        if (published->used[i] || dpt_tensor_is_buffer(name))
            continue;
        format_unfit(published, published->places[i].entry, shape);
        if (named == n && used + strlen(name) + strlen(shape) + 2 < room) {
            used += (size_t)snprintf(ret_names + used, room - used, "%s%s%s", n ? ", " : "", name,
                                     shape);
            named++;
        }
        n++;
    }
    if (n > named)
        (void)snprintf(ret_names + used, DPT_PUBLISHED_LEFT_OUT_BYTES - used, " and %d more",
                       n - named);
    return n;
}

/* ---- values ---- */

bool dpt_published_has(const struct dpt_published *published, int param)
{
    return published->of_param[param].entry != NULL;
}

static enum dpt_status read_halves(const struct place *place, int64_t at, int64_t n, float *ret,
                                   struct dpt_err *err)
{
    const bool bf16 = place->entry->dtype == DPT_SAFETENSORS_BF16;
    uint16_t chunk[CHUNK];
    for (int64_t done = 0; done < n;) {
        const int64_t some = n - done < CHUNK ? n - done : CHUNK;
        DPT_TRY(dpt_fs_pread_all(place->file->fd, chunk, (size_t)some * sizeof *chunk,
                                 at + done * (int64_t)sizeof *chunk, place->file->path, err));
        for (int64_t i = 0; i < some; i++)
            ret[done + i] = bf16 ? dpt_f32_of_bf16(chunk[i]) : dpt_f32_of_f16(chunk[i]);
        done += some;
    }
    return DPT_OK;
}

static enum dpt_status read_place(const struct place *place, int64_t first, int64_t end, float *ret,
                                  struct dpt_err *err)
{
    const int64_t width = dpt_safetensors_width(place->entry->dtype);
    const int64_t at = place->entry->begin + first * width, n = end - first;
    DPT_ASSERT(first >= 0 && n >= 0 && at + n * width <= place->entry->end);
    if (place->entry->dtype != DPT_SAFETENSORS_F32)
        return read_halves(place, at, n, ret, err);
    return dpt_fs_pread_all(place->file->fd, ret, (size_t)(n * width), at, place->file->path, err);
}

enum dpt_status dpt_published_read(struct dpt_published *published, int param, int64_t first,
                                   int64_t end, float *ret, struct dpt_err *err)
{
    const struct place *place = &published->of_param[param];
    DPT_TRY(read_place(place, first, end, ret, err));
    return dpt_weights_check_finite(place->file->path, place->entry->name, first, end, ret, err);
}

/* ---- tensors of any model ---- */

int dpt_published_n_tensors(const struct dpt_published *published)
{
    return published->n_tensors;
}

const struct dpt_safetensors_entry *dpt_published_tensor(const struct dpt_published *published,
                                                         int i)
{
    return published->places[i].entry;
}

enum dpt_status dpt_published_read_tensor(struct dpt_published *published, int i, int64_t first,
                                          int64_t end, float *ret, struct dpt_err *err)
{
    DPT_TRY(check_dtype(&published->places[i], err));
    return read_place(&published->places[i], first, end, ret, err);
}

/* A part is a block of the weights hash. */
static enum dpt_status read_tensor(struct dpt_published *p, int param,
                                   const struct dpt_published_sink *sink, float *block,
                                   struct dpt_hash128 *h, struct dpt_err *err)
{
    _Static_assert((int)DPT_PUBLISHED_PART == (int)DPT_WEIGHTS_HASH_BLOCK, "it is hashed whole");
    const int64_t numel = dpt_model_param(p->model, param)->numel;
    for (int64_t at = 0; at < numel; at += DPT_PUBLISHED_PART) {
        const int64_t end = numel - at < DPT_PUBLISHED_PART ? numel : at + DPT_PUBLISHED_PART;
        DPT_TRY(dpt_published_read(p, param, at, end, block, err));
        *h = dpt_weights_hash_add(*h, block, end - at);
        if (sink)
            DPT_TRY(sink->take(sink->ctx, param, at, end, block, err));
    }
    return DPT_OK;
}

enum dpt_status dpt_published_read_all(struct dpt_published *published,
                                       const struct dpt_published_sink *sink,
                                       struct dpt_hash128 *ret, struct dpt_err *err)
{
    struct dpt_hash128 h = {0, 0};
    enum dpt_status status = DPT_OK;
    float *block = malloc(DPT_PUBLISHED_PART * sizeof *block);
    if (!block)
        return dpt_fail_nomem(err, "read weights");
    for (int i = 0; i < dpt_model_n_params(published->model) && status == DPT_OK; i++)
        if (dpt_published_has(published, i))
            status = read_tensor(published, i, sink, block, &h, err);
    free(block);
    if (status == DPT_OK)
        *ret = h;
    return status;
}

enum dpt_status dpt_published_hash(struct dpt_published *published, struct dpt_hash128 *ret,
                                   struct dpt_err *err)
{
    return dpt_published_read_all(published, NULL, ret, err);
}
