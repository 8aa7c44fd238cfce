/* One writer's part of a checkpoint: its tensors as up to three safetensors files, made durable,
 * then reported with their block checksums. Bytes go through one buffer: aligned writes of
 * whole blocks, each checksummed while it is in the cache. */
#include "checkpoint/attempt.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 2 * DPT_CHECKPOINT_BLOCK_BYTES };
_Static_assert(DPT_CHECKPOINT_BLOCK_BYTES % DPT_IO_DIRECT_ALIGN == 0, "blocks are aligned");

struct sink {
    const struct dpt_checkpoint_spec *spec;
    struct dpt_manifest_file *file;
    int fd;
    uint8_t *buffer; /* BUFFER_BYTES */
    size_t used;
    char path[PATH_MAX];
};

static enum dpt_status flush(struct sink *sink, struct dpt_err *err)
{
    if (sink->used == 0)
        return DPT_OK;
    const int64_t at = sink->file->bytes;
    DPT_TRY(dpt_attempt_go_on(sink->spec, err));
    for (size_t done = 0; done < sink->used; done += DPT_CHECKPOINT_BLOCK_BYTES) {
        const size_t left = sink->used - done;
        DPT_TRY(dpt_manifest_add_block(
            sink->file, sink->buffer + done,
            left < DPT_CHECKPOINT_BLOCK_BYTES ? left : DPT_CHECKPOINT_BLOCK_BYTES, err));
    }
    if (sink->used < BUFFER_BYTES) /* the last piece */
        dpt_io_direct(sink->fd, false);
    DPT_TRY(dpt_io_write(sink->fd, sink->buffer, sink->used, at, sink->path, err));
    sink->used = 0;
    return DPT_OK;
}

static enum dpt_status put(struct sink *sink, const void *data, size_t bytes, struct dpt_err *err)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t room = BUFFER_BYTES - sink->used;
        const size_t n = bytes < room ? bytes : room;
        memcpy(sink->buffer + sink->used, from, n);
        sink->used += n;
        from += n;
        bytes -= n;
        if (sink->used == BUFFER_BYTES)
            DPT_TRY(flush(sink, err));
    }
    return DPT_OK;
}

static const float *values_of(const struct dpt_checkpoint_tensor *tensor, enum dpt_kind kind)
{
    switch (kind) {
    case DPT_KIND_M:
        return tensor->m;
    case DPT_KIND_V:
        return tensor->v;
    default:
        return tensor->param;
    }
}

static enum dpt_status put_tensors(struct sink *sink, enum dpt_kind kind,
                                   const struct dpt_checkpoint_tensor *tensors, int n_tensors,
                                   struct dpt_err *err)
{
    char *head;
    size_t head_bytes;
    DPT_TRY(dpt_safetensors_print(tensors, n_tensors, &head, &head_bytes, err));
    enum dpt_status status = put(sink, head, head_bytes, err);
    free(head);
    for (int i = 0; status == DPT_OK && i < n_tensors; i++) {
        int64_t bytes;
        status = dpt_tensor_bytes(&tensors[i], &bytes, err);
        if (status == DPT_OK)
            status = put(sink, values_of(&tensors[i], kind), (size_t)bytes, err);
    }
    return status == DPT_OK ? flush(sink, err) : status;
}

/* Writes and syncs the file of one kind, and adds it to `part`. */
static enum dpt_status write_file(const struct dpt_checkpoint_spec *spec,
                                  const struct dpt_attempt *attempt, enum dpt_kind kind,
                                  uint8_t *buffer, struct dpt_manifest *part, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    const int first = attempt->first[spec->writer], end = attempt->first[spec->writer + 1];
    struct sink sink = {.spec = spec, .fd = -1, .buffer = buffer};
    dpt_name_tensors(kind, spec->writer, attempt->n_files, name);
    DPT_TRY(dpt_manifest_add(part, name, &sink.file, err));
    DPT_TRY(dpt_io_create(&attempt->temporary, name, &sink.fd, sink.path, err));
    dpt_io_direct(sink.fd, true);
    enum dpt_status status = put_tensors(&sink, kind, spec->tensors + first, end - first, err);
    if (status == DPT_OK)
        status = dpt_io_sync(sink.fd, sink.path, err);
    if (status != DPT_OK) {
        (void)close(sink.fd); /* the first error is the one to report */
        return status;
    }
    return dpt_io_close(&sink.fd, sink.path, err);
}

static enum dpt_status write_files(const struct dpt_checkpoint_spec *spec,
                                   const struct dpt_attempt *attempt, struct dpt_manifest *part,
                                   struct dpt_err *err)
{
    if (spec->writer >= attempt->n_files)
        return DPT_OK; /* more writers than tensors */
    uint8_t *buffer = aligned_alloc(DPT_IO_DIRECT_ALIGN, BUFFER_BYTES);
    if (!buffer)
        return dpt_fail(err, DPT_ENOMEM, "write buffer: out of memory");
    enum dpt_status status = DPT_OK;
    const int n_kinds = attempt->moments ? DPT_KIND_COUNT : 1;
    if (attempt->moments)
        status = dpt_folder_make(&attempt->temporary, DPT_NAME_OPTIMIZER, err);
    for (int kind = 0; status == DPT_OK && kind < n_kinds; kind++)
        status = write_file(spec, attempt, (enum dpt_kind)kind, buffer, part, err);
    if (status == DPT_OK && attempt->moments) {
        struct dpt_folder optimizer = DPT_FOLDER_CLOSED;
        status = dpt_folder_open_in(&attempt->temporary, DPT_NAME_OPTIMIZER, &optimizer, err);
        if (status == DPT_OK)
            status = dpt_folder_sync(&optimizer, err);
        dpt_folder_close(&optimizer);
    }
    free(buffer);
    return status;
}

enum dpt_status dpt_checkpoint_write_part(const struct dpt_checkpoint_spec *spec,
                                          struct dpt_err *err)
{
    struct dpt_attempt attempt;
    struct dpt_manifest part = {
        .step = spec->state.step, .writer = spec->writer, .n_writers = spec->n_writers};
    enum dpt_status status = dpt_attempt_init(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_go_on(spec, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&attempt, true, err);
    if (status == DPT_OK)
        status = write_files(spec, &attempt, &part, err);
    /* The report says that everything it names is durable: the entries first, then the report. */
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt.temporary, err);
    if (status == DPT_OK)
        status = dpt_attempt_write_part(&attempt, &part, err);
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt.temporary, err);
    dpt_manifest_fini(&part);
    dpt_attempt_fini(&attempt);
    return status == DPT_OK ? DPT_OK : dpt_attempt_wrap(spec, status, err);
}
