/* From parts to a checkpoint: slot 0 waits for all reports, adds the common files, and after the
 * caller's grant gives the whole its name. In this order: files durable, then the list
 * of them durable, then the name, then the name durable. */
#include "checkpoint/attempt.h"
#include "checkpoint/state.h"
#include "checkpoint/whole.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MS_MIN = 1, POLL_MS_MAX = 50 };

/* A part must list the files that the dealing gives to its writer, and they must be there. */
static enum dpt_status check_part(const struct dpt_checkpoint_spec *spec,
                                  const struct dpt_attempt *attempt, int writer,
                                  const struct dpt_manifest *part, struct dpt_err *err)
{
    const int n_kinds = attempt->moments ? DPT_KIND_COUNT : 1;
    const int n_files = writer < attempt->n_files ? n_kinds : 0;
    if (part->step != spec->state.step || part->n_writers != spec->n_writers ||
        part->n_files != n_files)
        return dpt_fail(err, DPT_ECORRUPT,
                        "writer %d reports %d files of step %lld by %d writers, expected %d of "
                        "step %lld by %d",
                        writer, part->n_files, (long long)part->step, part->n_writers, n_files,
                        (long long)spec->state.step, spec->n_writers);
    for (int kind = 0; kind < n_files; kind++) {
        char name[DPT_CHECKPOINT_NAME_BYTES];
        int64_t bytes;
        dpt_name_tensors((enum dpt_kind)kind, writer, attempt->n_files, name);
        const struct dpt_manifest_file *file = dpt_manifest_find(part, name);
        if (!file)
            return dpt_fail(err, DPT_ECORRUPT, "writer %d does not report '%s'", writer, name);
        DPT_TRY(dpt_io_size(&attempt->temporary, name, &bytes, err));
        if (bytes != file->bytes)
            return dpt_fail(err, DPT_ECORRUPT, "'%s' has %lld bytes, its writer reports %lld", name,
                            (long long)bytes, (long long)file->bytes);
    }
    return DPT_OK;
}

static void pause_ms(int64_t ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL); /* cut short by a signal: polled sooner */
}

/* Polls, because a shared file system has no other means that works on all of them. */
static enum dpt_status wait_for_part(const struct dpt_checkpoint_spec *spec,
                                     const struct dpt_attempt *attempt, int writer,
                                     int64_t deadline_ms, struct dpt_err *err)
{
    for (int64_t pause = POLL_MS_MIN;; pause = pause * 2 < POLL_MS_MAX ? pause * 2 : POLL_MS_MAX) {
        struct dpt_manifest part = {0};
        struct dpt_err why;
        enum dpt_status status = dpt_attempt_read_part(attempt, writer, &part, &why);
        if (status == DPT_OK) {
            status = check_part(spec, attempt, writer, &part, err);
            dpt_manifest_fini(&part);
            return status;
        }
        if (status != DPT_ENOENT)
            return dpt_fail(err, status, "%s", why.text);
        DPT_TRY(dpt_attempt_go_on(spec, err));
        const int64_t now = dpt_now_ms();
        if (now >= deadline_ms)
            return dpt_fail(err, DPT_ETIMEOUT, "writer %d of %d has not reported its part in time",
                            writer, spec->n_writers);
        pause_ms(pause < deadline_ms - now ? pause : deadline_ms - now);
    }
}

/* Writes one common file and adds it to `part`. */
static enum dpt_status add_common(const struct dpt_attempt *attempt, const char *name,
                                  const char *text, struct dpt_manifest *part, struct dpt_err *err)
{
    const size_t bytes = strlen(text);
    struct dpt_manifest_file *file;
    DPT_TRY(dpt_manifest_add(part, name, &file, err));
    for (size_t at = 0; at < bytes; at += DPT_CHECKPOINT_BLOCK_BYTES) {
        const size_t left = bytes - at;
        DPT_TRY(dpt_manifest_add_block(
            file, text + at, left < DPT_CHECKPOINT_BLOCK_BYTES ? left : DPT_CHECKPOINT_BLOCK_BYTES,
            err));
    }
    return dpt_io_write_small(&attempt->temporary, name, text, bytes, err);
}

static enum dpt_status write_common(const struct dpt_checkpoint_spec *spec,
                                    const struct dpt_attempt *attempt, struct dpt_err *err)
{
    struct dpt_manifest part = {
        .step = spec->state.step, .writer = -1, .n_writers = spec->n_writers};
    char *index = NULL, *state = NULL;
    enum dpt_status status =
        dpt_index_print(spec->tensors, attempt->first, attempt->n_files, &index, err);
    if (status == DPT_OK)
        status = dpt_state_print(&spec->state, &state, err);
    if (status == DPT_OK)
        status = add_common(attempt, DPT_NAME_INDEX, index, &part, err);
    if (status == DPT_OK)
        status = add_common(attempt, DPT_NAME_CONFIG, spec->hf_config_json, &part, err);
    if (status == DPT_OK)
        status = add_common(attempt, DPT_NAME_STATE, state, &part, err);
    if (status == DPT_OK)
        status = dpt_attempt_write_part(attempt, &part, err);
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt->temporary, err);
    free(index);
    free(state);
    dpt_manifest_fini(&part);
    return status;
}

enum dpt_status dpt_checkpoint_collect(const struct dpt_checkpoint_spec *spec, int timeout_ms,
                                       struct dpt_err *err)
{
    DPT_ASSERT(spec->writer == 0);
    const int64_t deadline_ms = dpt_now_ms() + timeout_ms;
    struct dpt_attempt attempt;
    enum dpt_status status = dpt_attempt_init(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&attempt, false, err);
    for (int writer = 0; status == DPT_OK && writer < spec->n_writers; writer++)
        status = wait_for_part(spec, &attempt, writer, deadline_ms, err);
    if (status == DPT_OK)
        status = write_common(spec, &attempt, err);
    dpt_attempt_fini(&attempt);
    return status == DPT_OK ? DPT_OK : dpt_attempt_wrap(spec, status, err);
}

/* The parts joined into one list, written and synced; the parts are removed. */
static enum dpt_status write_manifest(const struct dpt_checkpoint_spec *spec,
                                      const struct dpt_attempt *attempt, struct dpt_err *err)
{
    struct dpt_manifest manifest = {
        .step = spec->state.step, .writer = -1, .n_writers = spec->n_writers};
    char name[DPT_CHECKPOINT_NAME_BYTES];
    char *text = NULL;
    size_t bytes;
    enum dpt_status status = DPT_OK;
    for (int writer = -1; status == DPT_OK && writer < spec->n_writers; writer++) {
        struct dpt_manifest part = {0};
        status = dpt_attempt_read_part(attempt, writer, &part, err);
        if (status == DPT_OK && writer >= 0)
            status = check_part(spec, attempt, writer, &part, err);
        if (status == DPT_OK)
            status = dpt_manifest_take(&manifest, &part, err);
        dpt_manifest_fini(&part);
    }
    if (status == DPT_OK)
        status = dpt_manifest_print(&manifest, &text, &bytes, err);
    if (status == DPT_OK)
        status = dpt_io_write_small(&attempt->temporary, DPT_NAME_MANIFEST, text, bytes, err);
    for (int writer = -1; status == DPT_OK && writer < spec->n_writers; writer++) {
        dpt_name_part(writer, name);
        status = dpt_io_unlink(&attempt->temporary, name, err);
    }
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt->temporary, err);
    free(text);
    dpt_manifest_fini(&manifest);
    return status;
}

/* Best effort on the way out of a failed commit: the error already found is the one to report. */
static void take_back(const struct dpt_folder *dir, const char *from, const char *to)
{
    struct dpt_err err;
    if (dpt_io_rename(dir, from, to, &err) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "a failed commit could not be taken back: %s", err.text);
}

static enum dpt_status publish_new(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    DPT_TRY(dpt_io_rename(dir, attempt->temporary_name, attempt->step_name, err));
    enum dpt_status status = dpt_folder_sync(dir, err);
    if (status != DPT_OK)
        take_back(dir, attempt->step_name, attempt->temporary_name);
    return status;
}

/* Where the file system cannot swap names: between the two renames the step has no checkpoint. */
static enum dpt_status replace_by_renames(const struct dpt_attempt *attempt, const char *aside,
                                          struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    DPT_TRY(dpt_io_rename(dir, attempt->step_name, aside, err));
    enum dpt_status status = publish_new(attempt, err);
    if (status != DPT_OK)
        take_back(dir, aside, attempt->step_name);
    return status;
}

/* A checkpoint of this step is there already (written before a failure that this history does not
 * contain, or damaged): it is swapped out in one step. `ret_old` is the name it has then. */
static enum dpt_status replace(const struct dpt_attempt *attempt,
                               char ret_old[DPT_CHECKPOINT_NAME_BYTES], struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    struct dpt_err why;
    enum dpt_status status =
        dpt_io_exchange(dir, attempt->temporary_name, attempt->step_name, &why);
    if (status == DPT_EUNSUPPORTED) {
        (void)snprintf(ret_old, DPT_CHECKPOINT_NAME_BYTES, "%.*s-old",
                       DPT_CHECKPOINT_NAME_BYTES - 5, attempt->temporary_name);
        return replace_by_renames(attempt, ret_old, err);
    }
    if (status != DPT_OK)
        return dpt_fail(err, status, "%s", why.text);
    (void)snprintf(ret_old, DPT_CHECKPOINT_NAME_BYTES, "%s", attempt->temporary_name);
    status = dpt_folder_sync(dir, err);
    if (status != DPT_OK &&
        dpt_io_exchange(dir, attempt->temporary_name, attempt->step_name, &why) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "a failed commit could not be taken back: %s", why.text);
    return status;
}

/* Gives the finished folder its name. After a failure the name is what it was before. */
static enum dpt_status publish(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    char old[DPT_CHECKPOINT_NAME_BYTES];
    struct stat st;
    struct dpt_err why;
    if (fstatat(dir->fd, attempt->step_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno != ENOENT)
            return dpt_fail_errno(err, errno, "look at '%s/%s'", dir->path, attempt->step_name);
        return publish_new(attempt, err);
    }
    DPT_TRY(replace(attempt, old, err));
    if (dpt_io_remove_tree(dir, old, &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "a replaced checkpoint remains: %s", why.text);
    return DPT_OK;
}

enum dpt_status dpt_checkpoint_commit(const struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    DPT_ASSERT(spec->writer == 0);
    struct dpt_attempt attempt;
    struct dpt_err why;
    enum dpt_status status = dpt_attempt_init(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&attempt, false, err);
    if (status == DPT_OK)
        status = dpt_attempt_go_on(spec, err);
    if (status == DPT_OK)
        status = write_manifest(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_go_on(spec, err); /* the last moment at which it can be taken back */
    if (status == DPT_OK)
        status = publish(&attempt, err);
    if (status == DPT_OK && dpt_whole_prune(&attempt.dir, spec->state.step, spec->keep,
                                            spec->generation, &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "the checkpoint of step %lld is whole, but older ones remain: %s",
                (long long)spec->state.step, why.text);
    dpt_attempt_fini(&attempt);
    return status == DPT_OK ? DPT_OK : dpt_attempt_wrap(spec, status, err);
}

void dpt_checkpoint_abandon(const struct dpt_checkpoint_spec *spec)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    struct dpt_folder dir;
    struct dpt_err err;
    if (dpt_name_temporary(spec->state.step, spec->generation, spec->attempt, name, &err) !=
            DPT_OK ||
        dpt_folder_open(spec->dir, &dir, &err) != DPT_OK)
        return; /* then nothing was written either */
    if (dpt_io_remove_tree(&dir, name, &err) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "leftovers of a dropped checkpoint remain: %s", err.text);
    dpt_folder_close(&dir);
}
