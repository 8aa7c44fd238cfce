/* The tensors of a Hugging Face folder (published.h). */
#include "worker/weights/published.h"

#include "base/fs.h"
#include "checkpoint/names.h"
#include "kernels/half.h"
#include "worker/model/hf_config.h"
#include "worker/weights/foreign_tensor.h"
#include "worker/weights/hf_folder_kind.h"
#include "worker/weights/published_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 15, SHAPE_BYTES = 96 };

/* Where a tensor of the model is. */
struct place {
    const struct dpt_published_file *file;
    const struct dpt_safetensors_entry *entry;
};

struct dpt_published {
    const struct dpt_model *model; /* NULL: any model */
    struct dpt_published_files files;
    struct place *places;   /* (files.n_tensors), sorted by name */
    bool *used;             /* (files.n_tensors): the tensor is in the model */
    struct place *of_param; /* of each tensor of the model */
};

/* ---- tensors ---- */

enum dpt_status dpt_published_sizes(const char *dir, struct dpt_config_sizes *ret,
                                    struct dpt_err *err)
{
    char path[PATH_MAX];
    DPT_TRY(dpt_hf_folder_check_model(dir, err));
    DPT_TRY(dpt_fs_join(dir, DPT_NAME_CONFIG, path, sizeof path, err));
    return dpt_hf_config_read(path, ret, err);
}

static int compare_names(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return strcmp(x->entry->name, y->entry->name);
}

static enum dpt_status index_tensors(struct dpt_published *p, struct dpt_err *err)
{
    p->places = calloc((size_t)p->files.n_tensors + 1, sizeof *p->places);
    p->used = calloc((size_t)p->files.n_tensors + 1, sizeof *p->used);
    p->of_param = calloc(p->model ? (size_t)dpt_model_n_params(p->model) : 1, sizeof *p->of_param);
    if (!p->places || !p->used || !p->of_param)
        return dpt_fail_nomem(err, "open weights");
    int n = 0;
    for (int f = 0; f < p->files.n; f++) {
        const struct dpt_published_file *file = &p->files.files[f];
        for (int i = 0; i < file->header.n; i++)
            p->places[n++] = (struct place){file, &file->header.entries[i]};
    }
    qsort(p->places, (size_t)n, sizeof *p->places, compare_names);
    for (int i = 1; i < n; i++)
        if (compare_names(&p->places[i - 1], &p->places[i]) == 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': tensor '%s' is in another file, too",
                            p->places[i].file->path, p->places[i].entry->name);
    return DPT_OK;
}

static const struct place *tensor_named(const struct dpt_published *p, const char *name)
{
    struct dpt_safetensors_entry entry = {.name = (char *)(uintptr_t)name};
    const struct place key = {.entry = &entry};
    return bsearch(&key, p->places, (size_t)p->files.n_tensors, sizeof *p->places, compare_names);
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

/* The place of a parameter, by its name or by its name in the base model; NULL: there is none. */
static enum dpt_status find_param(const struct dpt_published *p, const char *name,
                                  const struct place **ret, struct dpt_err *err)
{
    const struct place *place = tensor_named(p, name),
                       *base = tensor_named(p, dpt_foreign_tensor_base_name(name));
    if (place && base && place != base)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s': tensor '%s' is there as '%s', too; remove one of the two",
                        base->file->path, base->entry->name, place->entry->name);
    *ret = place ? place : base;
    return DPT_OK;
}

/* Whether the tensor belongs to the labels' head, which starts from the seed if the folder's head
 * is missing or has another shape. */
static bool is_score(const struct dpt_published *p, int param)
{
    const int score = dpt_model_score(p->model);
    return score >= 0 && param >= score;
}

static enum dpt_status match_params(struct dpt_published *p, struct dpt_err *err)
{
    for (int i = 0; i < dpt_model_n_params(p->model); i++) {
        const struct dpt_param *param = dpt_model_param(p->model, i);
        const struct place *place = NULL;
        DPT_TRY(find_param(p, param->name, &place, err));
        if (is_score(p, i) && (!place || !same_shape(place, param)))
            continue;
        if (!place)
            return dpt_fail(err, DPT_ECONFIG, "'%s': tensor '%s' is missing%s",
                            p->files.n == 1 ? p->files.files[0].path : p->files.dir, param->name,
                            p->files.n == 1 ? "" : " in all its files");
        DPT_TRY(check_entry(place, param, err));
        p->of_param[i] = *place;
        p->used[place - p->places] = true;
    }
    return DPT_OK;
}

/* ---- tensors that are not in the model ---- */

/* Whether a tensor that is not in the model belongs to the model's body: it has the base model's
 * prefix, or the first part of its name is that of a tensor of the model, and it is no head. */
static bool is_in_body(const struct dpt_published *p, const char *name)
{
    const char *base = dpt_foreign_tensor_base_name(name);
    const size_t n = dpt_foreign_tensor_part_bytes(base);
    if (dpt_foreign_tensor_is_head(name))
        return false;
    if (base != name)
        return true;
    for (int i = 0; i < dpt_model_n_params(p->model) && !is_score(p, i); i++) {
        const char *ours = dpt_foreign_tensor_base_name(dpt_model_param(p->model, i)->name);
        if (dpt_foreign_tensor_part_bytes(ours) == n && memcmp(ours, base, n) == 0)
            return true;
    }
    return false;
}

/* Only heads may be left out: without a tensor of the body the model would be a different one. */
static enum dpt_status check_unused(const struct dpt_published *p, struct dpt_err *err)
{
    const struct place *first = NULL;
    char more[32] = "";
    int n = 0;
    for (int i = 0; i < p->files.n_tensors; i++) {
        const struct place *place = &p->places[i];
        if (p->used[i] || dpt_foreign_tensor_is_buffer(place->entry->name) ||
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
    enum dpt_status status = dpt_published_files_open(dir, !model, &p->files, err);
    if (status == DPT_OK)
        status = index_tensors(p, err);
    if (status == DPT_OK && model)
        status = match_params(p, err);
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
    dpt_published_files_close(&p->files);
    free(p->places);
    free(p->of_param);
    free(p->used);
    free(p);
    *published = NULL;
}

enum dpt_status dpt_published_labels(const char *dir, int64_t *ret, struct dpt_err *err)
{
    struct dpt_published_files files;
    *ret = 0;
    DPT_TRY(dpt_published_files_open(dir, true, &files, err));
    for (int f = 0; f < files.n; f++)
        for (int i = 0; i < files.files[f].header.n; i++) {
            const struct dpt_safetensors_entry *entry = &files.files[f].header.entries[i];
            if (strcmp(entry->name, "score.weight") == 0 && entry->ndim > 0)
                *ret = entry->dim[0];
        }
    dpt_published_files_close(&files);
    return DPT_OK;
}

/* " [4, 64]" for a tensor of the labels' head that is left out because of its shape; else "". */
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
    for (int i = 0; i < published->files.n_tensors; i++) {
        const char *name = published->places[i].entry->name;
        char shape[SHAPE_BYTES];
        if (published->used[i] || dpt_foreign_tensor_is_buffer(name))
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
    return dpt_foreign_tensor_check_finite(place->file->path, place->entry->name, first, end, ret,
                                           err);
}

/* ---- tensors of any model ---- */

int dpt_published_n_tensors(const struct dpt_published *published)
{
    return published->files.n_tensors;
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

static enum dpt_status read_in_parts(struct dpt_published *p, int param,
                                     const struct dpt_published_sink *sink, float *block,
                                     struct dpt_hash128 *h, struct dpt_err *err)
{
    _Static_assert((int)DPT_PUBLISHED_PART == (int)DPT_WEIGHTS_HASH_BLOCK,
                   "a part is a block of the hash");
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
            status = read_in_parts(published, i, sink, block, &h, err);
    free(block);
    if (status == DPT_OK)
        *ret = h;
    return status;
}
