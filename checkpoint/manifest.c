/* Lists of files and of runs of their bytes (manifest.h). */
#include "checkpoint/manifest.h"

#include "base/array.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void file_fini(struct dpt_manifest_file *file)
{
    free(file->name);
    free(file->crc);
    *file = (struct dpt_manifest_file){0};
}

void dpt_manifest_fini(struct dpt_manifest *manifest)
{
    for (int i = 0; i < manifest->n_files; i++)
        file_fini(&manifest->files[i]);
    for (int i = 0; i < manifest->n_hashes; i++)
        free(manifest->hashes[i].hash);
    free(manifest->files);
    free(manifest->hashes);
    *manifest = (struct dpt_manifest){0};
}

static enum dpt_status no_memory(struct dpt_err *err)
{
    return dpt_fail_nomem(err, "list of checkpoint files");
}

static enum dpt_status add_entry(struct dpt_manifest *manifest, struct dpt_manifest_file **ret,
                                 struct dpt_err *err)
{
    if (manifest->n_files == DPT_MANIFEST_RUNS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "more than %d runs of bytes in a checkpoint",
                        DPT_MANIFEST_RUNS_MAX);
    if (!dpt_array_reserve(&manifest->files, &manifest->files_room, (size_t)manifest->n_files + 1,
                           sizeof *manifest->files))
        return no_memory(err);
    *ret = &manifest->files[manifest->n_files];
    **ret = (struct dpt_manifest_file){0};
    return DPT_OK;
}

enum dpt_status dpt_manifest_add(struct dpt_manifest *manifest, const char *name, int64_t first,
                                 struct dpt_manifest_file **ret, struct dpt_err *err)
{
    struct dpt_manifest_file *file = NULL;
    DPT_TRY(add_entry(manifest, &file, err));
    DPT_ASSERT(file);
    file->name = strdup(name);
    if (!file->name)
        return no_memory(err);
    file->first = first;
    manifest->n_files++;
    *ret = file;
    return DPT_OK;
}

static enum dpt_status add_crc(struct dpt_manifest_file *run, uint32_t crc, struct dpt_err *err)
{
    if (!dpt_array_reserve(&run->crc, &run->crc_room, (size_t)run->n_crc + 1, sizeof *run->crc))
        return no_memory(err);
    run->crc[run->n_crc++] = crc;
    return DPT_OK;
}

enum dpt_status dpt_manifest_add_bytes(struct dpt_manifest_file *run, const void *data,
                                       size_t bytes, struct dpt_err *err)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t in_block = (size_t)((run->first + run->bytes) % DPT_CHECKPOINT_BLOCK_BYTES);
        const size_t room = DPT_CHECKPOINT_BLOCK_BYTES - in_block;
        const size_t n = bytes < room ? bytes : room;
        if (run->bytes == 0 || in_block == 0)
            DPT_TRY(add_crc(run, 0, err));
        uint32_t *crc = &run->crc[run->n_crc - 1];
        *crc = dpt_crc32c(*crc, from, n);
        run->bytes += (int64_t)n;
        from += n;
        bytes -= n;
    }
    return DPT_OK;
}

enum dpt_status dpt_manifest_add_hash(struct dpt_manifest *manifest, int64_t block,
                                      struct dpt_hash128 hash, struct dpt_err *err)
{
    struct dpt_manifest_hashes *last =
        manifest->n_hashes > 0 ? &manifest->hashes[manifest->n_hashes - 1] : NULL;
    if (!last || last->first + last->n != block) {
        if (!dpt_array_reserve(&manifest->hashes, &manifest->hashes_room,
                               (size_t)manifest->n_hashes + 1, sizeof *manifest->hashes))
            return no_memory(err);
        last = &manifest->hashes[manifest->n_hashes++];
        *last = (struct dpt_manifest_hashes){.first = block};
    }
    if (!dpt_array_reserve(&last->hash, &last->room, (size_t)last->n + 1, sizeof *last->hash))
        return no_memory(err);
    last->hash[last->n++] = hash;
    return DPT_OK;
}

const struct dpt_manifest_file *dpt_manifest_find(const struct dpt_manifest *manifest,
                                                  const char *name)
{
    for (int i = 0; i < manifest->n_files; i++)
        if (strcmp(manifest->files[i].name, name) == 0)
            return &manifest->files[i];
    return NULL;
}

enum dpt_status dpt_manifest_take(struct dpt_manifest *manifest, struct dpt_manifest *part,
                                  struct dpt_err *err)
{
    for (int i = 0; i < part->n_files; i++) {
        struct dpt_manifest_file *to = NULL;
        DPT_TRY(add_entry(manifest, &to, err));
        DPT_ASSERT(to);
        *to = part->files[i];
        part->files[i] = (struct dpt_manifest_file){0};
        manifest->n_files++;
    }
    for (int i = 0; i < part->n_hashes; i++)
        for (int64_t k = 0; k < part->hashes[i].n; k++)
            DPT_TRY(dpt_manifest_add_hash(manifest, part->hashes[i].first + k,
                                          part->hashes[i].hash[k], err));
    dpt_manifest_fini(part);
    return DPT_OK;
}

static int by_name_and_first(const void *a, const void *b)
{
    const struct dpt_manifest_file *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    if (names || x->first == y->first) /* an empty run before the run at the same byte */
        return names ? names : (x->bytes > y->bytes) - (x->bytes < y->bytes);
    return x->first < y->first ? -1 : 1;
}

/* `run` starts at the end of `file`. */
static enum dpt_status append_run(struct dpt_manifest_file *file,
                                  const struct dpt_manifest_file *run, struct dpt_err *err)
{
    const int64_t in_block = run->first % DPT_CHECKPOINT_BLOCK_BYTES;
    int64_t from = 0;
    if (run->bytes > 0 && in_block > 0) {
        const int64_t left = DPT_CHECKPOINT_BLOCK_BYTES - in_block;
        uint32_t *crc = &file->crc[file->n_crc - 1];
        *crc = dpt_crc32c_join(*crc, run->crc[0], run->bytes < left ? run->bytes : left);
        from = 1;
    }
    for (; from < run->n_crc; from++)
        DPT_TRY(add_crc(file, run->crc[from], err));
    file->bytes += run->bytes;
    return DPT_OK;
}

enum dpt_status dpt_manifest_join(struct dpt_manifest *manifest, struct dpt_err *err)
{
    struct dpt_manifest_file *files = manifest->files;
    const int n = manifest->n_files;
    int last = -1;
    if (n > 0)
        qsort(files, (size_t)n, sizeof *files, by_name_and_first);
    for (int i = 0; i < n; i++) {
        const bool continues = last >= 0 && strcmp(files[last].name, files[i].name) == 0;
        const int64_t end = continues ? files[last].bytes : 0;
        if (files[i].first != end)
            return dpt_fail(err, DPT_ECORRUPT, "%s bytes %lld to %lld of '%s'",
                            files[i].first > end ? "no writer reports" : "two writers report",
                            (long long)(files[i].first > end ? end : files[i].first),
                            (long long)(files[i].first > end ? files[i].first : end),
                            files[i].name);
        if (continues && files[i].bytes == 0 && files[last].bytes == 0)
            return dpt_fail(err, DPT_ECORRUPT, "two writers report the file '%s'", files[i].name);
        if (continues) {
            DPT_TRY(append_run(&files[last], &files[i], err));
            file_fini(&files[i]);
        } else if (++last != i) {
            files[last] = files[i];
            files[i] = (struct dpt_manifest_file){0};
        }
    }
    manifest->n_files = last + 1;
    return DPT_OK;
}
