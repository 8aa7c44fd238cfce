/* Writes one writer's part of a checkpoint: writes its ranges to their places in the tensor files,
 * makes them durable, then reports them with their checksums. All bytes go through one buffer,
 * which is aligned to the grid of direct writes. Whole pages are written directly. The ends of a
 * run go through the page cache, because other writers may share their pages. */
#include "base/finite.h"
#include "base/fs.h"
#include "checkpoint/attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 2 * DPT_CHECKPOINT_BLOCK_BYTES,
    UNSYNCED_MAX = 64 /* files that stay open until they are synced together */
};

struct unsynced {
    int fd;
    char name[DPT_CHECKPOINT_NAME_BYTES];
};

/* The file that is being written. */
struct sink {
    const struct dpt_attempt *attempt;
    struct dpt_manifest *part;
    uint8_t *buffer; /* [BUFFER_BYTES] */
    int64_t base;    /* place of buffer[0] in the file, a multiple of DPT_IO_DIRECT_ALIGN */
    size_t from, to; /* bytes of the buffer that are not written yet */
    struct dpt_manifest_file *run; /* the run that ends at `to`; NULL: none */
    int fd;
    const char *name;
    char path[PATH_MAX];
    int n_unsynced;
    struct unsynced unsynced[UNSYNCED_MAX];
};

/* The length of the next write of [from, to), and whether it can be direct. */
static size_t next_write(size_t from, size_t to, bool *ret_direct)
{
    const size_t past = from % DPT_IO_DIRECT_ALIGN, whole = (to - from) / DPT_IO_DIRECT_ALIGN;
    *ret_direct = past == 0 && whole > 0;
    if (*ret_direct)
        return whole * DPT_IO_DIRECT_ALIGN;
    const size_t to_grid = DPT_IO_DIRECT_ALIGN - past;
    return to_grid < to - from ? to_grid : to - from;
}

static enum dpt_status sink_flush(struct sink *sink, struct dpt_err *err)
{
    if (sink->from < sink->to)
        DPT_TRY(dpt_attempt_check_cancelled(sink->attempt, err));
    while (sink->from < sink->to) {
        bool direct;
        const size_t n = next_write(sink->from, sink->to, &direct);
        dpt_io_direct(sink->fd, direct);
        DPT_TRY(dpt_io_write(sink->fd, sink->buffer + sink->from, n,
                             sink->base + (int64_t)sink->from, sink->path, err));
        sink->from += n;
    }
    return DPT_OK;
}

/* The next sink_put writes to byte `at` of the file. */
static enum dpt_status sink_seek(struct sink *sink, int64_t at, struct dpt_err *err)
{
    if (sink->run && at == sink->base + (int64_t)sink->to)
        return DPT_OK;
    DPT_TRY(sink_flush(sink, err));
    sink->from = sink->to = (size_t)(at % DPT_IO_DIRECT_ALIGN);
    sink->base = at - (int64_t)sink->to;
    return dpt_manifest_add(sink->part, sink->name, at, &sink->run, err);
}

/* `data` NULL: zeroes. */
static enum dpt_status sink_put(struct sink *sink, const void *data, size_t bytes,
                                struct dpt_err *err)
{
    const uint8_t *from = data;
    while (bytes > 0) {
        const size_t room = BUFFER_BYTES - sink->to;
        const size_t n = bytes < room ? bytes : room;
        if (from)
            memcpy(sink->buffer + sink->to, from, n);
        else
            memset(sink->buffer + sink->to, 0, n);
        DPT_TRY(dpt_manifest_add_bytes(sink->run, sink->buffer + sink->to, n, err));
        sink->to += n;
        from = from ? from + n : NULL;
        bytes -= n;
        if (sink->to < BUFFER_BYTES)
            break;
        DPT_TRY(sink_flush(sink, err));
        sink->base += BUFFER_BYTES;
        sink->from = sink->to = 0;
    }
    return DPT_OK;
}

/* Notes the first tensor with a value that is not finite. An attempt with such a note is never
 * committed. */
static void note_not_finite(struct sink *sink, enum dpt_kind kind, const char *tensor,
                            const float *values, size_t n)
{
    static const char *const what[DPT_KIND_COUNT] = {"", "first moment of ", "second moment of "};
    if (!sink->part->not_finite[0] && !dpt_all_finite(values, n))
        (void)snprintf(sink->part->not_finite, sizeof sink->part->not_finite, "%stensor '%.80s'",
                       what[kind], tensor);
}

/* Writes the piece in blocks of the weights hash, and checks and hashes each block while it is in
 * the cache. Hashes only weights, and only blocks that lie whole in the piece. */
static enum dpt_status put_piece(struct sink *sink, enum dpt_kind kind,
                                 const struct dpt_checkpoint_piece *piece, struct dpt_err *err)
{
    const struct dpt_tensor_layout *tensor = &sink->attempt->files.tensor[piece->tensor];
    const char *name = sink->attempt->spec->tensors[piece->tensor].name;
    const float *const values[DPT_KIND_COUNT] = {piece->param, piece->m, piece->v};
    DPT_TRY(sink_seek(sink, tensor->begin + piece->first * (int64_t)sizeof(float), err));
    for (int64_t at = piece->first; at < piece->end;) {
        const int64_t block = at / DPT_WEIGHTS_HASH_BLOCK, first = block * DPT_WEIGHTS_HASH_BLOCK;
        const int64_t left = tensor->numel - first;
        const int64_t end = first + (left < DPT_WEIGHTS_HASH_BLOCK ? left : DPT_WEIGHTS_HASH_BLOCK);
        const int64_t stop = end < piece->end ? end : piece->end;
        const float *from = values[kind] ? values[kind] + (at - piece->first) : NULL;
        const size_t bytes = (size_t)(stop - at) * sizeof *from;
        if (from)
            note_not_finite(sink, kind, name, from, (size_t)(stop - at));
        if (kind == DPT_KIND_PARAM && at == first && stop == end)
            DPT_TRY(dpt_manifest_add_hash(sink->part, tensor->block + block,
                                          dpt_hash128(from, bytes), err));
        DPT_TRY(sink_put(sink, from, bytes, err));
        at = stop;
    }
    return DPT_OK;
}

/* The writer of a file's first element also writes its header. */
static bool writes_head(const struct sink *sink, const struct dpt_file_layout *file,
                        const struct dpt_checkpoint_piece *pieces, int n_pieces)
{
    const struct dpt_files *files = &sink->attempt->files;
    int tensor = file->first;
    while (tensor < file->end && files->tensor[tensor].numel == 0)
        tensor++;
    if (tensor == file->end)
        return sink->attempt->spec->writer == 0;
    return n_pieces > 0 && pieces[0].tensor == tensor && pieces[0].first == 0;
}

static void close_files(struct sink *sink)
{
    for (int i = 0; i < sink->n_unsynced; i++)
        if (sink->unsynced[i].fd >= 0)
            (void)close(sink->unsynced[i].fd); /* an earlier error is reported */
}

/* Syncs and closes the written files, in the order of writing. */
static enum dpt_status sync_files(struct sink *sink, struct dpt_err *err)
{
    const struct dpt_folder *folder = &sink->attempt->temporary;
    for (int i = 0; i < sink->n_unsynced; i++) {
        struct unsynced *file = &sink->unsynced[i];
        DPT_TRY(dpt_attempt_check_cancelled(sink->attempt, err));
        DPT_TRY(dpt_fs_join(folder->path, file->name, sink->path, sizeof sink->path, err));
        DPT_TRY(dpt_io_sync(file->fd, sink->path, err));
        DPT_TRY(dpt_io_close(&file->fd, sink->path, err));
    }
    sink->n_unsynced = 0;
    return DPT_OK;
}

/* Writes the file's pieces of one kind. */
static enum dpt_status write_file(struct sink *sink, enum dpt_kind kind, int number,
                                  const struct dpt_checkpoint_piece *pieces, int n_pieces,
                                  struct dpt_err *err)
{
    const struct dpt_attempt *attempt = sink->attempt;
    const struct dpt_file_layout *file = &attempt->files.file[number];
    const bool head = writes_head(sink, file, pieces, n_pieces);
    if (n_pieces == 0 && !head)
        return DPT_OK;
    char name[DPT_CHECKPOINT_NAME_BYTES];
    dpt_files_name(&attempt->files, kind, number, name);
    sink->name = name;
    sink->run = NULL;
    sink->from = sink->to = 0;
    DPT_TRY(
        dpt_io_create_shared(&attempt->temporary, name, file->bytes, &sink->fd, sink->path, err));
    enum dpt_status status = DPT_OK;
    if (head)
        status = sink_seek(sink, 0, err);
    if (head && status == DPT_OK)
        status = sink_put(sink, file->head, file->head_bytes, err);
    for (int i = 0; status == DPT_OK && i < n_pieces; i++)
        status = put_piece(sink, kind, &pieces[i], err);
    if (status == DPT_OK)
        status = sink_flush(sink, err);
    struct unsynced *written = &sink->unsynced[sink->n_unsynced++];
    written->fd = sink->fd;
    memcpy(written->name, name, sizeof name);
    if (status == DPT_OK && sink->n_unsynced == UNSYNCED_MAX)
        status = sync_files(sink, err);
    return status;
}

static enum dpt_status write_kind(struct sink *sink, enum dpt_kind kind, struct dpt_err *err)
{
    const struct dpt_files *files = &sink->attempt->files;
    const struct dpt_checkpoint_spec *spec = sink->attempt->spec;
    int next = 0;
    for (int number = 0; number < files->n; number++) {
        const int first = next;
        while (next < spec->n_pieces && files->tensor[spec->pieces[next].tensor].file == number)
            next++;
        DPT_TRY(write_file(sink, kind, number, spec->pieces + first, next - first, err));
    }
    return DPT_OK;
}

static enum dpt_status sync_optimizer(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    struct dpt_folder optimizer = DPT_FOLDER_CLOSED;
    enum dpt_status status =
        dpt_folder_open_in(&attempt->temporary, DPT_NAME_OPTIMIZER, &optimizer, err);
    if (status == DPT_OK)
        status = dpt_folder_sync(&optimizer, err);
    dpt_folder_close(&optimizer);
    return status;
}

static enum dpt_status write_pieces(const struct dpt_attempt *attempt, struct dpt_manifest *part,
                                    struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
    if (spec->n_pieces == 0 && spec->writer > 0)
        return DPT_OK; /* there are more writers than blocks */
    struct sink sink = {.attempt = attempt, .part = part, .fd = -1};
    sink.buffer = aligned_alloc(DPT_IO_DIRECT_ALIGN, BUFFER_BYTES);
    if (!sink.buffer)
        return dpt_fail_nomem(err, "write buffer");
    dpt_account_add(spec->account, DPT_MEMORY_CHECKPOINT, sink.buffer, BUFFER_BYTES, BUFFER_BYTES);
    enum dpt_status status = DPT_OK;
    if (spec->moments)
        status = dpt_folder_make(&attempt->temporary, DPT_NAME_OPTIMIZER, err);
    for (int kind = 0; status == DPT_OK && kind < attempt->n_kinds; kind++)
        status = write_kind(&sink, (enum dpt_kind)kind, err);
    if (status == DPT_OK && spec->taken)
        spec->taken(spec->ctx);
    if (status == DPT_OK)
        status = sync_files(&sink, err);
    if (status == DPT_OK && spec->moments)
        status = sync_optimizer(attempt, err);
    close_files(&sink);
    dpt_account_sub(spec->account, DPT_MEMORY_CHECKPOINT, sink.buffer, BUFFER_BYTES, BUFFER_BYTES);
    free(sink.buffer);
    return status;
}

/* Writer 0 removes an attempt that it gives up. The other writers then miss files, and must report
 * the removal as the cause. */
static bool is_removed(const struct dpt_attempt *attempt, enum dpt_status why)
{
    struct stat st;
    const bool was_there = attempt->temporary.fd >= 0 || why == DPT_ENOENT;
    return was_there && attempt->dir.fd >= 0 &&
           fstatat(attempt->dir.fd, attempt->temporary_name, &st, AT_SYMLINK_NOFOLLOW) != 0 &&
           errno == ENOENT;
}

enum dpt_status dpt_checkpoint_write_part(const struct dpt_checkpoint_spec *spec,
                                          struct dpt_err *err)
{
    struct dpt_attempt attempt;
    struct dpt_manifest part = {
        .step = spec->state.step, .writer = spec->writer, .n_writers = spec->n_writers};
    enum dpt_status status = dpt_attempt_init(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_check_cancelled(&attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&attempt, true, err);
    if (status == DPT_OK)
        status = write_pieces(&attempt, &part, err);
    /* The report says that its files are durable: sync their directory entries before it. */
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt.temporary, err);
    if (status == DPT_OK)
        status = dpt_attempt_write_part(&attempt, &part, err);
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt.temporary, err);
    if (status == DPT_OK && part.not_finite[0]) /* the report tells writer 0 */
        status = dpt_attempt_refuse_values(&part, err);
    if (status != DPT_OK && spec->writer > 0 && is_removed(&attempt, status))
        status = dpt_fail(err, DPT_EABORTED, "given up by its first writer");
    dpt_manifest_fini(&part);
    return dpt_attempt_end(&attempt, status, err);
}
