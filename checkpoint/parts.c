/* Waits for reports and joins them (parts.h). */
#include "checkpoint/parts.h"

#include "base/clock.h"
#include "checkpoint/blocks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_MS_MIN = 1, POLL_MS_MAX = 50 };

/* The layout of a file that a report names; NULL when there is no such file. */
static const struct dpt_file_layout *layout_of(const struct dpt_attempt *attempt, const char *name)
{
    enum dpt_kind kind;
    int i, n;
    char exact[DPT_CHECKPOINT_NAME_BYTES];
    if (!dpt_name_parse_tensors(name, &kind, &i, &n) || (int)kind >= attempt->n_kinds ||
        n != attempt->files.n)
        return NULL;
    dpt_files_name(&attempt->files, kind, i, exact);
    return strcmp(name, exact) == 0 ? &attempt->files.file[i] : NULL;
}

static enum dpt_status check_part(const struct dpt_attempt *attempt, int writer,
                                  const struct dpt_manifest *part, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
    if (part->step != spec->state.step || part->n_writers != spec->n_writers)
        return dpt_fail(err, DPT_ECORRUPT,
                        "writer %d reports files of step %lld by %d writers, expected step %lld by "
                        "%d",
                        writer, (long long)part->step, part->n_writers, (long long)spec->state.step,
                        spec->n_writers);
    if (part->not_finite[0])
        return dpt_attempt_refuse_values(part, err);
    for (int i = 0; i < part->n_files; i++) {
        const struct dpt_manifest_file *run = &part->files[i];
        const struct dpt_file_layout *file = layout_of(attempt, run->name);
        if (!file || run->first + run->bytes > file->bytes)
            return dpt_fail(err, DPT_ECORRUPT,
                            "writer %d reports bytes %lld to %lld of '%s', which are no part of "
                            "this checkpoint",
                            writer, (long long)run->first, (long long)(run->first + run->bytes),
                            run->name);
    }
    return DPT_OK;
}

/* DPT_ENOENT: the writer has not reported yet. Writer -1: the report about writer 0's common
 * files. */
static enum dpt_status read_part(const struct dpt_attempt *attempt, int writer,
                                 struct dpt_manifest *ret, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    dpt_name_part(writer, name);
    DPT_TRY(dpt_manifest_read(&attempt->temporary, name, ret, err));
    enum dpt_status status = DPT_OK;
    if (ret->writer != writer)
        status = dpt_fail(err, DPT_ECORRUPT, "'%s' is the report of another writer", name);
    else if (writer >= 0)
        status = check_part(attempt, writer, ret, err);
    if (status != DPT_OK)
        dpt_manifest_fini(ret);
    return status;
}

static void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL); /* interrupted by a signal: the next poll comes earlier */
}

/* Polls: no other way to notice a file works on every shared file system. */
static enum dpt_status wait_for_part(const struct dpt_attempt *attempt, int writer,
                                     int64_t deadline_ms, struct dpt_err *err)
{
    for (int64_t pause = POLL_MS_MIN;; pause = pause * 2 < POLL_MS_MAX ? pause * 2 : POLL_MS_MAX) {
        struct dpt_manifest part = {0};
        struct dpt_err why;
        enum dpt_status status = read_part(attempt, writer, &part, &why);
        dpt_manifest_fini(&part);
        if (status == DPT_OK)
            return DPT_OK;
        if (status != DPT_ENOENT)
            return dpt_pass(err, &why);
        DPT_TRY(dpt_attempt_check_cancelled(attempt, err));
        const int64_t now = dpt_now_ms();
        if (now >= deadline_ms)
            return dpt_fail(err, DPT_ETIMEOUT, "writer %d of %d has not reported its part in time",
                            writer, attempt->spec->n_writers);
        pause_ms(pause < deadline_ms - now ? pause : deadline_ms - now);
    }
}

enum dpt_status dpt_parts_wait(const struct dpt_attempt *attempt, int64_t deadline_ms,
                               struct dpt_err *err)
{
    for (int writer = 0; writer < attempt->spec->n_writers; writer++)
        DPT_TRY(wait_for_part(attempt, writer, deadline_ms, err));
    return DPT_OK;
}

static enum dpt_status check_file(const struct dpt_attempt *attempt,
                                  const struct dpt_manifest *joined, enum dpt_kind kind, int i,
                                  struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    const int64_t wanted = attempt->files.file[i].bytes;
    dpt_files_name(&attempt->files, kind, i, name);
    const struct dpt_manifest_file *file = dpt_manifest_find(joined, name);
    if (!file || file->bytes != wanted)
        return dpt_fail(err, DPT_ECORRUPT, "no writer reports bytes %lld to %lld of '%s'",
                        file ? (long long)file->bytes : 0, (long long)wanted, name);
    return dpt_blocks_check_size(&attempt->temporary, file, err);
}

enum dpt_status dpt_parts_join(const struct dpt_attempt *attempt, bool common,
                               struct dpt_manifest *ret, struct dpt_err *err)
{
    const int n_writers = attempt->spec->n_writers;
    struct dpt_manifest joined = {
        .step = attempt->spec->state.step, .writer = -1, .n_writers = n_writers};
    enum dpt_status status = DPT_OK;
    for (int writer = common ? -1 : 0; status == DPT_OK && writer < n_writers; writer++) {
        struct dpt_manifest part = {0};
        status = read_part(attempt, writer, &part, err);
        if (status == DPT_OK)
            status = dpt_manifest_take(&joined, &part, err);
        dpt_manifest_fini(&part);
    }
    if (status == DPT_OK)
        status = dpt_manifest_join(&joined, err);
    for (int kind = 0; status == DPT_OK && kind < attempt->n_kinds; kind++)
        for (int i = 0; status == DPT_OK && i < attempt->files.n; i++)
            status = check_file(attempt, &joined, (enum dpt_kind)kind, i, err);
    if (status != DPT_OK)
        dpt_manifest_fini(&joined);
    else
        *ret = joined;
    return status;
}

struct block_hash {
    bool known;
    struct dpt_hash128 hash;
};

static enum dpt_status gather_hashes(const struct dpt_manifest *joined, struct block_hash *blocks,
                                     int64_t n_blocks, struct dpt_err *err)
{
    for (int i = 0; i < joined->n_hashes; i++) {
        const struct dpt_manifest_hashes *run = &joined->hashes[i];
        for (int64_t k = 0; k < run->n; k++) {
            const int64_t at = run->first + k;
            if (at >= n_blocks || blocks[at].known)
                return dpt_fail(err, DPT_ECORRUPT, "block %lld of the weights is hashed %s",
                                (long long)at,
                                at >= n_blocks ? "but does not exist" : "by two writers");
            blocks[at] = (struct block_hash){.known = true, .hash = run->hash[k]};
        }
    }
    return DPT_OK;
}

/* The file whose blocks are read back; one file is open at a time. */
struct read_back {
    const struct dpt_attempt *attempt;
    const struct dpt_manifest *joined;
    struct dpt_blocks blocks;
    float *values;
};

static enum dpt_status hash_read_back(struct read_back *r, const struct dpt_tensor_layout *tensor,
                                      int64_t block, struct dpt_hash128 *ret, struct dpt_err *err)
{
    const int64_t first = block * DPT_WEIGHTS_HASH_BLOCK, left = tensor->numel - first;
    const int64_t numel = left < DPT_WEIGHTS_HASH_BLOCK ? left : DPT_WEIGHTS_HASH_BLOCK;
    const int64_t bytes = numel * (int64_t)sizeof(float);
    char name[DPT_CHECKPOINT_NAME_BYTES];
    DPT_TRY(dpt_attempt_check_cancelled(r->attempt, err));
    dpt_files_name(&r->attempt->files, DPT_KIND_PARAM, tensor->file, name);
    const struct dpt_manifest_file *file = dpt_manifest_find(r->joined, name);
    if (file != r->blocks.file) {
        dpt_blocks_close(&r->blocks);
        DPT_TRY(dpt_blocks_open(&r->attempt->temporary, file, &r->blocks, err));
    }
    DPT_TRY(dpt_blocks_read(&r->blocks, tensor->begin + first * (int64_t)sizeof(float), bytes,
                            r->values, err));
    *ret = dpt_hash128(r->values, (size_t)bytes);
    return DPT_OK;
}

static enum dpt_status join_hashes(struct read_back *r, struct block_hash *blocks,
                                   struct dpt_hash128 *ret, struct dpt_err *err)
{
    const struct dpt_files *files = &r->attempt->files;
    const int n_tensors = r->attempt->spec->n_tensors;
    struct dpt_hash128 h = {0, 0};
    for (int i = 0; i < n_tensors; i++) {
        const int64_t end = i + 1 < n_tensors ? files->tensor[i + 1].block : files->n_blocks;
        for (int64_t at = files->tensor[i].block; at < end; at++) {
            if (!blocks[at].known)
                DPT_TRY(hash_read_back(r, &files->tensor[i], at - files->tensor[i].block,
                                       &blocks[at].hash, err));
            h = dpt_hash128_join(h, blocks[at].hash);
        }
    }
    *ret = h;
    return DPT_OK;
}

enum dpt_status dpt_parts_weights_hash(const struct dpt_attempt *attempt,
                                       const struct dpt_manifest *joined, struct dpt_hash128 *ret,
                                       struct dpt_err *err)
{
    const int64_t n = attempt->files.n_blocks;
    struct read_back r = {.attempt = attempt, .joined = joined};
    struct block_hash *blocks = calloc((size_t)n + 1, sizeof *blocks);
    r.values = malloc(DPT_WEIGHTS_HASH_BLOCK * sizeof *r.values);
    enum dpt_status status = blocks && r.values ? DPT_OK : dpt_fail_nomem(err, "weights hash");
    if (status == DPT_OK)
        status = gather_hashes(joined, blocks, n, err);
    if (status == DPT_OK)
        status = join_hashes(&r, blocks, ret, err);
    dpt_blocks_close(&r.blocks);
    free(r.values);
    free(blocks);
    return status;
}
