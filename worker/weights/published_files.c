/* Opens the files of a Hugging Face folder and reads their headers. */
#include "worker/weights/published_files.h"

#include "base/fs.h"
#include "checkpoint/names.h"
#include "worker/weights/hf_folder_kind.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILES_MAX = 1024, INDEX_BYTES_MAX = 1 << 26 };

/* A clone without git-lfs has a pointer in place of a large file
 * (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md, "The Pointer"). */
static enum dpt_status refuse_pointer(const struct dpt_published_file *file, int64_t bytes,
                                      struct dpt_err *err)
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

static enum dpt_status read_header(struct dpt_published_file *file, int64_t bytes,
                                   struct dpt_err *err)
{
    uint8_t length[DPT_SAFETENSORS_LENGTH_BYTES];
    size_t n;
    if (bytes < DPT_SAFETENSORS_LENGTH_BYTES)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes: it is cut off", file->path,
                        (long long)bytes);
    DPT_TRY(dpt_fs_pread_all(file->fd, length, sizeof length, 0, file->path, err));
    if (memcmp(length, "version ", sizeof length) == 0) /* these bytes are no length of a header */
        DPT_TRY(refuse_pointer(file, bytes, err));
    DPT_TRY(dpt_safetensors_parse_length(length, bytes, file->path, &n, err));
    char *json = malloc(n);
    if (!json)
        return dpt_fail_nomem(err, "read '%s'", file->path);
    enum dpt_status status = dpt_fs_pread_all(file->fd, json, n, sizeof length, file->path, err);
    if (status == DPT_OK)
        status = dpt_safetensors_parse(json, n, bytes, file->path, &file->header, err);
    free(json);
    return status;
}

/* Follows links: Hugging Face's cache consists of links. */
static enum dpt_status add_file(struct dpt_published_files *p, const char *name,
                                struct dpt_err *err)
{
    struct dpt_published_file *file = &p->files[p->n];
    struct stat st;
    DPT_TRY(dpt_fs_join(p->dir, name, file->path, sizeof file->path, err));
    file->fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", file->path);
    p->n++;
    if (fstat(file->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return dpt_fail(err, DPT_ECONFIG, "'%s' is no regular file", file->path);
    DPT_TRY(read_header(file, st.st_size, err));
    p->n_tensors += file->header.n;
    return DPT_OK;
}

static enum dpt_status alloc_files(struct dpt_published_files *p, size_t n, struct dpt_err *err)
{
    p->files = calloc(n ? n : 1, sizeof *p->files);
    return p->files ? DPT_OK : dpt_fail_nomem(err, "open weights");
}

static enum dpt_status add_single(struct dpt_published_files *p, const char *name,
                                  struct dpt_err *err)
{
    DPT_TRY(alloc_files(p, 1, err));
    return add_file(p, name, err);
}

/* Collects the files that an index names, each once: the index's values become keys of `names`. */
static enum dpt_status add_indexed(struct dpt_published_files *p, const json_t *map, json_t *names,
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
        DPT_TRY(dpt_wrap(err, add_file(p, name, err), DPT_NAME_INDEX " names it"));
    }
    return DPT_OK;
}

static enum dpt_status open_shards(struct dpt_published_files *p, struct dpt_err *err)
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

static enum dpt_status open_weights(struct dpt_published_files *p, bool adapters,
                                    struct dpt_err *err)
{
    if (adapters && dpt_hf_folder_has_adapters(p->dir))
        return add_single(p, DPT_NAME_ADAPTERS, err);
    DPT_TRY(dpt_hf_folder_check_model(p->dir, err));
    if (dpt_hf_folder_has(p->dir, DPT_NAME_SINGLE))
        return add_single(p, DPT_NAME_SINGLE, err);
    if (dpt_hf_folder_has(p->dir, DPT_NAME_INDEX))
        return open_shards(p, err);
    return dpt_fail(err, DPT_ENOENT,
                    "'%s' has neither " DPT_NAME_SINGLE " nor " DPT_NAME_INDEX
                    "; save the model with transformers' save_pretrained there",
                    p->dir);
}

enum dpt_status dpt_published_files_open(const char *dir, bool adapters,
                                         struct dpt_published_files *ret, struct dpt_err *err)
{
    *ret = (struct dpt_published_files){.dir = dir};
    const enum dpt_status status = open_weights(ret, adapters, err);
    if (status != DPT_OK)
        dpt_published_files_close(ret);
    return status;
}

void dpt_published_files_close(struct dpt_published_files *files)
{
    for (int i = 0; i < files->n; i++) {
        dpt_safetensors_fini(&files->files[i].header);
        (void)close(files->files[i].fd); /* opened for reading */
    }
    free(files->files);
    *files = (struct dpt_published_files){0};
}
