/* Writes a Hugging Face folder under a temporary name beside its place, then renames it
 * (hf_folder.h). */
#include "worker/weights/hf_folder.h"

#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/io.h"
#include "checkpoint/names.h"
#include "kernels/half.h"
#include "worker/model/hf_config.h"
#include "worker/model/peft_config.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { COPY_BYTES_MAX = 1 << 28 };

struct writing {
    const struct dpt_hf_folder_spec *spec;
    const struct dpt_weights_source *source;
    struct dpt_folder folder; /* temporary */
    float *values;            /* [DPT_WEIGHTS_CHUNK] */
    uint16_t *halves;         /* [DPT_WEIGHTS_CHUNK] */
    int *first;               /* [n_files + 1] first tensor of each file */
    int n_files;
    int64_t bytes; /* of all tensors */
};

static bool has_adapters(const struct writing *w)
{
    return dpt_model_base(w->source->model) != NULL;
}

static int64_t tensor_bytes(const struct writing *w, int param)
{
    return dpt_model_param(w->source->model, param)->numel * dpt_safetensors_width(w->spec->dtype);
}

/* ---- which tensors go into which file ---- */

/* Divides the tensors, in order, among files of at most spec->shard_bytes. */
static enum dpt_status assign_files(struct writing *w, struct dpt_err *err)
{
    const int n = dpt_model_n_params(w->source->model);
    int64_t in_file = 0;
    w->first = calloc((size_t)n + 1, sizeof *w->first);
    if (!w->first)
        return dpt_fail_nomem(err, "files of the weights");
    w->n_files = 1;
    DPT_ASSERT(!has_adapters(w) || w->spec->shard_bytes == 0);
    for (int i = 0; i < n; i++) {
        const int64_t bytes = tensor_bytes(w, i);
        if (w->spec->shard_bytes > 0 && in_file > 0 && in_file + bytes > w->spec->shard_bytes) {
            w->first[w->n_files++] = i;
            in_file = 0;
        }
        in_file += bytes;
        w->bytes += bytes;
    }
    w->first[w->n_files] = n;
    if (w->n_files > DPT_CHECKPOINT_FILES_MAX)
        return dpt_fail(err, DPT_EINVAL, "%d files, more than %d; give a larger --shard-size",
                        w->n_files, DPT_CHECKPOINT_FILES_MAX);
    return DPT_OK;
}

static void file_name(const struct writing *w, int file, char ret[DPT_CHECKPOINT_NAME_BYTES])
{
    if (w->n_files == 1)
        (void)snprintf(ret, DPT_CHECKPOINT_NAME_BYTES, "%s",
                       has_adapters(w) ? DPT_NAME_ADAPTERS : "model.safetensors");
    else
        dpt_name_tensors(DPT_KIND_PARAM, file, w->n_files, ret);
}

/* ---- files ---- */

static enum dpt_status print_header(const struct writing *w, int file, char **ret_head,
                                    size_t *ret_bytes, struct dpt_err *err)
{
    const int first = w->first[file], n = w->first[file + 1] - first;
    struct dpt_checkpoint_tensor *tensors = calloc((size_t)n + 1, sizeof *tensors);
    if (!tensors)
        return dpt_fail_nomem(err, "header of tensor files");
    for (int i = 0; i < n; i++) {
        const struct dpt_param *param = dpt_model_param(w->source->model, first + i);
        tensors[i] = (struct dpt_checkpoint_tensor){.name = param->name, .ndim = param->ndim};
        memcpy(tensors[i].dim, param->dim, sizeof param->dim);
    }
    enum dpt_status status =
        dpt_safetensors_print(tensors, n, w->spec->dtype, ret_head, ret_bytes, err);
    free(tensors);
    return status;
}

static enum dpt_status round_values(struct writing *w, const struct dpt_param *param, int64_t n,
                                    struct dpt_err *err)
{
    const bool bf16 = w->spec->dtype == DPT_SAFETENSORS_BF16;
    for (int64_t i = 0; i < n; i++) {
        const float x = w->values[i];
        w->halves[i] = bf16 ? dpt_bf16_of_f32(x) : dpt_f16_of_f32(x);
        if (!bf16 && isfinite(x) && !isfinite(dpt_f32_of_f16(w->halves[i])))
            return dpt_fail(err, DPT_EINVAL,
                            "tensor '%s' has the value %g, which fp16 cannot hold; give --dtype "
                            "bf16 or fp32",
                            param->name, (double)x);
    }
    return DPT_OK;
}

/* Writes one tensor to the file, from byte `at` on. */
static enum dpt_status write_tensor(struct writing *w, int param, int fd, int64_t at,
                                    const char *path, struct dpt_err *err)
{
    const struct dpt_param *p = dpt_model_param(w->source->model, param);
    const int64_t width = dpt_safetensors_width(w->spec->dtype);
    for (int64_t first = 0; first < p->numel; first += DPT_WEIGHTS_CHUNK) {
        const int64_t end =
            p->numel - first < DPT_WEIGHTS_CHUNK ? p->numel : first + DPT_WEIGHTS_CHUNK;
        DPT_TRY(dpt_weights_source_read(w->source, param, first, end, w->values, err));
        if (w->spec->dtype != DPT_SAFETENSORS_F32)
            DPT_TRY(round_values(w, p, end - first, err));
        const void *from =
            w->spec->dtype == DPT_SAFETENSORS_F32 ? (const void *)w->values : w->halves;
        DPT_TRY(
            dpt_io_write(fd, from, (size_t)((end - first) * width), at + first * width, path, err));
    }
    return DPT_OK;
}

static enum dpt_status write_file(struct writing *w, int file, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES], path[PATH_MAX], *head = NULL;
    size_t head_bytes = 0;
    int fd = -1;
    file_name(w, file, name);
    DPT_TRY(print_header(w, file, &head, &head_bytes, err));
    enum dpt_status status = dpt_io_create(&w->folder, name, &fd, path, err);
    if (status == DPT_OK)
        status = dpt_io_write(fd, head, head_bytes, 0, path, err);
    int64_t at = (int64_t)head_bytes;
    for (int i = w->first[file]; i < w->first[file + 1] && status == DPT_OK; i++) {
        status = write_tensor(w, i, fd, at, path, err);
        at += tensor_bytes(w, i);
    }
    if (status == DPT_OK)
        status = dpt_io_sync(fd, path, err);
    if (status == DPT_OK)
        status = dpt_io_close(&fd, path, err);
    if (fd >= 0)
        (void)close(fd); /* after an error; the folder is removed */
    free(head);
    return status;
}

static enum dpt_status write_index(struct writing *w, struct dpt_err *err)
{
    json_t *map = json_object();
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)w->bytes,
                             "weight_map", map);
    bool good = root != NULL;
    for (int file = 0; file < w->n_files; file++) {
        char name[DPT_CHECKPOINT_NAME_BYTES];
        file_name(w, file, name);
        for (int i = w->first[file]; i < w->first[file + 1] && good; i++)
            good = json_object_set_new(map, dpt_model_param(w->source->model, i)->name,
                                       json_string(name)) == 0;
    }
    char *text = good ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    enum dpt_status status =
        text ? dpt_io_write_small(&w->folder, DPT_NAME_INDEX, text, strlen(text), err)
             : dpt_fail_nomem(err, "index of tensor files");
    free(text);
    json_decref(root);
    return status;
}

static const char *torch_name(enum dpt_safetensors_dtype dtype)
{
    return dtype == DPT_SAFETENSORS_F32    ? "float32"
           : dtype == DPT_SAFETENSORS_BF16 ? "bfloat16"
                                           : "float16";
}

static enum dpt_status write_config(struct writing *w, struct dpt_err *err)
{
    char *text = NULL;
    const bool adapters = has_adapters(w);
    if (adapters)
        DPT_TRY(dpt_peft_config_print(w->spec->config, w->source->model, &text, err));
    else
        DPT_TRY(dpt_hf_config_print(w->spec->config, &w->spec->beside, torch_name(w->spec->dtype),
                                    &text, err));
    enum dpt_status status = dpt_io_write_small(
        &w->folder, adapters ? DPT_NAME_ADAPTER_CONFIG : DPT_NAME_CONFIG, text, strlen(text), err);
    free(text);
    return status;
}

static enum dpt_status copy_file(struct writing *w, const struct dpt_hf_folder_copy *copy,
                                 struct dpt_err *err)
{
    char *text;
    size_t bytes;
    DPT_TRY(dpt_fs_read_file(copy->from, COPY_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = dpt_io_write_small(&w->folder, copy->name, text, bytes, err);
    free(text);
    return status;
}

static enum dpt_status write_all(struct writing *w, struct dpt_err *err)
{
    DPT_TRY(assign_files(w, err));
    w->values = malloc(DPT_WEIGHTS_CHUNK * sizeof *w->values);
    w->halves = malloc(DPT_WEIGHTS_CHUNK * sizeof *w->halves);
    if (!w->values || !w->halves)
        return dpt_fail_nomem(err, "room for a part of a tensor");
    for (int file = 0; file < w->n_files; file++)
        DPT_TRY(write_file(w, file, err));
    DPT_TRY(dpt_weights_source_check(w->source, err));
    if (w->n_files > 1)
        DPT_TRY(write_index(w, err));
    DPT_TRY(write_config(w, err));
    for (int i = 0; i < w->spec->n_copies; i++)
        DPT_TRY(copy_file(w, &w->spec->copy[i], err));
    return dpt_folder_sync(&w->folder, err);
}

/* ---- the folder ---- */

enum dpt_status dpt_hf_folder_write(const char *dir, const struct dpt_hf_folder_spec *spec,
                                    const struct dpt_weights_source *source, struct dpt_err *err)
{
    struct writing w = {.spec = spec, .source = source, .folder = DPT_FOLDER_CLOSED};
    char path[PATH_MAX], temporary[PATH_MAX], parent[PATH_MAX];
    const int n = snprintf(path, sizeof path, "%s", dir);
    for (size_t end = strlen(path); end > 1 && path[end - 1] == '/'; end--)
        path[end - 1] = '\0';
    const int m = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    if (n <= 0 || n >= PATH_MAX || m >= PATH_MAX)
        return dpt_fail(err, DPT_EINVAL, "the path of the folder is empty or too long");
    if (dpt_fs_exists(path))
        return dpt_fail(err, DPT_EEXIST, "'%s' is there already; name a folder that is not", path);
    if (mkdir(temporary, 0777) != 0)
        return dpt_fail_errno(err, errno, "make folder '%s'", temporary);
    enum dpt_status status = dpt_folder_open(temporary, &w.folder, err);
    if (status == DPT_OK)
        status = write_all(&w, err);
    dpt_folder_close(&w.folder);
    if (status == DPT_OK && rename(temporary, path) != 0)
        status = dpt_fail_errno(err, errno, "rename '%s' to '%s'", temporary, path);
    if (status == DPT_OK)
        status = dpt_fs_folder(path, parent, err);
    if (status == DPT_OK)
        status = dpt_fs_sync_dir(parent, err);
    struct dpt_err why;
    if (status != DPT_OK && dpt_fs_exists(temporary) &&
        dpt_fs_remove_tree(temporary, &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "the unfinished folder was not removed: %s", why.text);
    free(w.values);
    free(w.halves);
    free(w.first);
    return status;
}
