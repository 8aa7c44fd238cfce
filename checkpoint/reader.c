/* Opens a checkpoint and reads tensors from it, with any number of readers: a reader finds a tensor
 * by name and reads the blocks that hold its bytes. */
#include "checkpoint/reader.h"

#include "checkpoint/blocks.h"
#include "checkpoint/complete_checkpoint.h"

#include <stdlib.h>
#include <string.h>

static int by_kind_and_number(const void *a, const void *b)
{
    const struct dpt_checkpoint_file *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

static int by_kind_and_name(const void *a, const void *b)
{
    const struct dpt_tensor_at *x = a, *y = b;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return strcmp(x->entry->name, y->entry->name);
}

static enum dpt_status read_state(struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    const struct dpt_manifest_file *file = dpt_manifest_find(&checkpoint->manifest, DPT_NAME_STATE);
    if (!file)
        return dpt_fail(err, DPT_ECORRUPT, "'%s' holds no " DPT_NAME_STATE,
                        checkpoint->folder.path);
    char *text;
    DPT_TRY(dpt_blocks_read_file(&checkpoint->folder, file, DPT_STATE_BYTES_MAX, &text, err));
    enum dpt_status status =
        dpt_state_json_parse(text, (size_t)file->bytes, &checkpoint->state, err);
    free(text);
    if (status == DPT_OK && checkpoint->state.state.step != checkpoint->manifest.step)
        return dpt_fail(err, DPT_ECORRUPT, "'%s/" DPT_NAME_STATE "' belongs to step %lld",
                        checkpoint->folder.path, (long long)checkpoint->state.state.step);
    return status;
}

static enum dpt_status read_header(const struct dpt_folder *folder,
                                   struct dpt_checkpoint_file *file, struct dpt_err *err)
{
    struct dpt_blocks blocks = {0};
    uint8_t length[DPT_SAFETENSORS_LENGTH_BYTES];
    char *json = NULL;
    size_t n = 0;
    DPT_TRY(dpt_blocks_open(folder, file->file, &blocks, err));
    enum dpt_status status = dpt_blocks_read(&blocks, 0, sizeof length, length, err);
    if (status == DPT_OK)
        status = dpt_safetensors_parse_length(length, file->file->bytes, blocks.path, &n, err);
    if (status == DPT_OK) {
        json = malloc(n);
        status = json ? dpt_blocks_read(&blocks, sizeof length, (int64_t)n, json, err)
                      : dpt_fail_nomem(err, "read '%s'", blocks.path);
    }
    if (status == DPT_OK)
        status = dpt_safetensors_parse(json, n, file->file->bytes, blocks.path, &file->header, err);
    if (status == DPT_OK)
        status = dpt_safetensors_check_f32(&file->header, blocks.path, err);
    free(json);
    dpt_blocks_close(&blocks);
    return status;
}

static enum dpt_status read_headers(struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    const struct dpt_manifest *manifest = &checkpoint->manifest;
    int n_of;
    checkpoint->files = calloc((size_t)manifest->n_files + 1, sizeof *checkpoint->files);
    if (!checkpoint->files)
        return dpt_fail_nomem(err, "open checkpoint");
    for (int i = 0; i < manifest->n_files; i++) {
        struct dpt_checkpoint_file *file = &checkpoint->files[checkpoint->n_files];
        if (!dpt_name_parse_tensors(manifest->files[i].name, &file->kind, &file->number, &n_of))
            continue;
        file->file = &manifest->files[i];
        checkpoint->n_files++;
        DPT_TRY(read_header(&checkpoint->folder, file, err));
        checkpoint->n_tensors += file->header.n;
    }
    qsort(checkpoint->files, (size_t)checkpoint->n_files, sizeof *checkpoint->files,
          by_kind_and_number);
    return DPT_OK;
}

static enum dpt_status index_tensors(struct dpt_checkpoint *checkpoint, struct dpt_err *err)
{
    checkpoint->tensors = calloc((size_t)checkpoint->n_tensors + 1, sizeof *checkpoint->tensors);
    if (!checkpoint->tensors)
        return dpt_fail_nomem(err, "open checkpoint");
    int n = 0;
    for (int f = 0; f < checkpoint->n_files; f++) {
        const struct dpt_checkpoint_file *file = &checkpoint->files[f];
        for (int i = 0; i < file->header.n; i++)
            checkpoint->tensors[n++] = (struct dpt_tensor_at){
                .kind = file->kind, .in = file, .entry = &file->header.entries[i]};
    }
    qsort(checkpoint->tensors, (size_t)n, sizeof *checkpoint->tensors, by_kind_and_name);
    for (int i = 1; i < n; i++)
        if (by_kind_and_name(&checkpoint->tensors[i - 1], &checkpoint->tensors[i]) == 0)
            return dpt_fail(err, DPT_ECORRUPT, "'%s': tensor '%s' is in two files",
                            checkpoint->folder.path, checkpoint->tensors[i].entry->name);
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_open(const char *dir, int64_t step, struct dpt_checkpoint **ret,
                                    struct dpt_err *err)
{
    return dpt_checkpoint_open_named(dir, step, DPT_COMPLETE_ANY, ret, err);
}

enum dpt_status dpt_checkpoint_open_named(const char *dir, int64_t step,
                                          enum dpt_complete_name name, struct dpt_checkpoint **ret,
                                          struct dpt_err *err)
{
    struct dpt_complete complete;
    struct dpt_folder parent = DPT_FOLDER_CLOSED;
    struct dpt_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (!checkpoint)
        return dpt_fail_nomem(err, "open checkpoint");
    checkpoint->folder.fd = -1;
    enum dpt_status status = dpt_folder_open(dir, &parent, err);
    if (status == DPT_OK)
        status = dpt_complete_open(&parent, step, name, &complete, err);
    if (status == DPT_OK) {
        checkpoint->folder = complete.folder;
        checkpoint->manifest = complete.manifest;
        status = read_state(checkpoint, err);
    }
    if (status == DPT_OK)
        status = read_headers(checkpoint, err);
    if (status == DPT_OK)
        status = index_tensors(checkpoint, err);
    dpt_folder_close(&parent);
    if (status != DPT_OK)
        dpt_checkpoint_close(&checkpoint);
    else
        *ret = checkpoint;
    return status;
}

void dpt_checkpoint_close(struct dpt_checkpoint **checkpoint)
{
    struct dpt_checkpoint *c = *checkpoint;
    if (!c)
        return;
    for (int i = 0; i < c->n_files; i++)
        dpt_safetensors_fini(&c->files[i].header);
    free(c->files);
    free(c->tensors);
    dpt_state_json_fini(&c->state);
    dpt_manifest_fini(&c->manifest);
    dpt_folder_close(&c->folder);
    free(c);
    *checkpoint = NULL;
}

const struct dpt_checkpoint_state *dpt_checkpoint_get_state(const struct dpt_checkpoint *checkpoint)
{
    return &checkpoint->state.state;
}

static const struct dpt_tensor_at *find_tensor(const struct dpt_checkpoint *checkpoint,
                                               enum dpt_kind kind, const char *name)
{
    struct dpt_safetensors_entry entry = {.name = (char *)(uintptr_t)name};
    const struct dpt_tensor_at key = {.kind = kind, .entry = &entry};
    return bsearch(&key, checkpoint->tensors, (size_t)checkpoint->n_tensors,
                   sizeof *checkpoint->tensors, by_kind_and_name);
}

/* `at` is NULL when the checkpoint does not have the tensor. */
static enum dpt_status check_found_tensor(const struct dpt_checkpoint *checkpoint,
                                          enum dpt_kind kind,
                                          const struct dpt_checkpoint_tensor *want,
                                          const struct dpt_tensor_at *at, struct dpt_err *err)
{
    static const char *const what[DPT_KIND_COUNT] = {"weights", "first moments", "second moments"};
    if (!at)
        return dpt_fail(err, DPT_ECONFIG,
                        "checkpoint '%s' has no %s of tensor '%s': it is of another model",
                        checkpoint->folder.path, what[kind], want->name);
    bool same = at->entry->ndim == want->ndim;
    for (int d = 0; same && d < want->ndim; d++)
        same = at->entry->dim[d] == want->dim[d];
    if (!same)
        return dpt_fail(err, DPT_ECONFIG,
                        "checkpoint '%s': tensor '%s' has another shape than the model's: it is of "
                        "another model",
                        checkpoint->folder.path, want->name);
    return DPT_OK;
}

/* Reads the pieces of one kind. A file stays open until a piece of another file follows. */
static enum dpt_status read_kind(const struct dpt_checkpoint *checkpoint, enum dpt_kind kind,
                                 const struct dpt_checkpoint_tensor *tensors,
                                 const struct dpt_checkpoint_piece *pieces, int n_pieces,
                                 struct dpt_err *err)
{
    struct dpt_blocks blocks = {0};
    enum dpt_status status = DPT_OK;
    for (int i = 0; status == DPT_OK && i < n_pieces; i++) {
        const struct dpt_checkpoint_piece *piece = &pieces[i];
        const struct dpt_checkpoint_tensor *want = &tensors[piece->tensor];
        float *const values[DPT_KIND_COUNT] = {piece->param, piece->m, piece->v};
        if (!values[kind])
            continue;
        const struct dpt_tensor_at *at = find_tensor(checkpoint, kind, want->name);
        status = check_found_tensor(checkpoint, kind, want, at, err);
        if (!at || status != DPT_OK)
            break;
        if (blocks.file != at->in->file) {
            dpt_blocks_close(&blocks);
            status = dpt_blocks_open(&checkpoint->folder, at->in->file, &blocks, err);
        }
        const int64_t first = piece->first * (int64_t)sizeof(float);
        const int64_t end = piece->end * (int64_t)sizeof(float);
        DPT_ASSERT(first >= 0 && first <= end && end <= at->entry->end - at->entry->begin);
        if (status == DPT_OK)
            status =
                dpt_blocks_read(&blocks, at->entry->begin + first, end - first, values[kind], err);
    }
    dpt_blocks_close(&blocks);
    return status;
}

enum dpt_status dpt_checkpoint_read_pieces(struct dpt_checkpoint *checkpoint,
                                           const struct dpt_checkpoint_tensor *tensors,
                                           const struct dpt_checkpoint_piece *pieces, int n_pieces,
                                           struct dpt_err *err)
{
    for (int kind = 0; kind < DPT_KIND_COUNT; kind++)
        DPT_TRY(read_kind(checkpoint, (enum dpt_kind)kind, tensors, pieces, n_pieces, err));
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_check_names(const struct dpt_checkpoint *checkpoint,
                                           const struct dpt_checkpoint_tensor *tensors,
                                           int n_tensors, struct dpt_err *err)
{
    for (int i = 0; i < checkpoint->n_tensors; i++) {
        const struct dpt_tensor_at *at = &checkpoint->tensors[i];
        bool known = at->kind != DPT_KIND_PARAM;
        for (int t = 0; !known && t < n_tensors; t++)
            known = strcmp(tensors[t].name, at->entry->name) == 0;
        if (!known)
            return dpt_fail(err, DPT_ECONFIG,
                            "checkpoint '%s' has a tensor '%s', which the model has not: it is of "
                            "another model",
                            checkpoint->folder.path, at->entry->name);
    }
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_read(struct dpt_checkpoint *checkpoint,
                                    const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                                    struct dpt_err *err)
{
    struct dpt_checkpoint_piece *pieces = calloc((size_t)n_tensors + 1, sizeof *pieces);
    if (!pieces)
        return dpt_fail_nomem(err, "read checkpoint");
    dpt_checkpoint_whole_tensors(tensors, n_tensors, pieces);
    enum dpt_status status =
        dpt_checkpoint_read_pieces(checkpoint, tensors, pieces, n_tensors, err);
    free(pieces);
    return status;
}
