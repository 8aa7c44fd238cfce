/* Writer 0 turns the parts into a checkpoint: it waits for all reports, writes the common files,
 * and renames the folder after the caller's grant. First the files become durable, then the
 * manifest, then the name. */
#include "checkpoint/complete_checkpoint.h"
#include "checkpoint/parts.h"
#include "checkpoint/state_json.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Writes one common file and adds it to `part`. */
static enum dpt_status add_common(const struct dpt_attempt *attempt, const char *name,
                                  const char *text, struct dpt_manifest *part, struct dpt_err *err)
{
    const size_t bytes = strlen(text);
    struct dpt_manifest_file *file;
    DPT_TRY(dpt_manifest_add(part, name, 0, &file, err));
    DPT_TRY(dpt_manifest_add_bytes(file, text, bytes, err));
    return dpt_io_write_small(&attempt->temporary, name, text, bytes, err);
}

static enum dpt_status write_common(const struct dpt_attempt *attempt,
                                    struct dpt_hash128 weights_hash, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
    struct dpt_manifest part = {
        .step = spec->state.step, .writer = -1, .n_writers = spec->n_writers};
    struct dpt_checkpoint_state run = spec->state;
    char *index = NULL, *state = NULL, hex[DPT_HASH_HEX_BYTES];
    dpt_hash128_hex(weights_hash, hex);
    run.weights_hash = hex;
    const char *config_name = spec->adapters ? DPT_NAME_ADAPTER_CONFIG : DPT_NAME_CONFIG;
    enum dpt_status status = dpt_state_json_print(&run, &state, err);
    if (status == DPT_OK && !spec->adapters)
        status = dpt_index_print(spec->tensors, &attempt->files, &index, err);
    if (status == DPT_OK && index)
        status = add_common(attempt, DPT_NAME_INDEX, index, &part, err);
    if (status == DPT_OK)
        status = add_common(attempt, config_name, spec->hf_config_json, &part, err);
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
    struct dpt_manifest joined = {0};
    struct dpt_hash128 weights_hash = {0, 0};
    enum dpt_status status = dpt_attempt_init(spec, &attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_open(&attempt, false, err);
    if (status == DPT_OK)
        status = dpt_parts_wait(&attempt, deadline_ms, err);
    if (status == DPT_OK)
        status = dpt_parts_join(&attempt, false, &joined, err);
    if (status == DPT_OK)
        status = dpt_parts_weights_hash(&attempt, &joined, &weights_hash, err);
    if (status == DPT_OK)
        status = dpt_attempt_check_cancelled(&attempt, err);
    if (status == DPT_OK)
        status = write_common(&attempt, weights_hash, err);
    dpt_manifest_fini(&joined);
    return dpt_attempt_end(&attempt, status, err);
}

/* Joins the reports to the manifest, writes and syncs it, and removes the reports. */
static enum dpt_status write_manifest(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    struct dpt_manifest manifest = {0};
    char name[DPT_CHECKPOINT_NAME_BYTES];
    char *text = NULL;
    size_t bytes;
    enum dpt_status status = dpt_parts_join(attempt, true, &manifest, err);
    if (status == DPT_OK)
        status = dpt_manifest_print(&manifest, &text, &bytes, err);
    if (status == DPT_OK)
        status = dpt_io_write_small(&attempt->temporary, DPT_NAME_MANIFEST, text, bytes, err);
    for (int writer = -1; status == DPT_OK && writer < attempt->spec->n_writers; writer++) {
        dpt_name_part(writer, name);
        status = dpt_io_remove_tree(&attempt->temporary, name, err);
    }
    if (status == DPT_OK)
        status = dpt_folder_sync(&attempt->temporary, err);
    free(text);
    dpt_manifest_fini(&manifest);
    return status;
}

/* After a failed commit, best effort: the caller reports the error of the commit. */
static void undo_rename(const struct dpt_folder *dir, const char *from, const char *to)
{
    struct dpt_err err;
    if (dpt_io_rename(dir, from, to, &err) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "a failed commit could not be undone: %s", err.text);
}

static enum dpt_status publish_new(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    DPT_TRY(dpt_io_rename(dir, attempt->temporary_name, attempt->step_name, err));
    enum dpt_status status = dpt_folder_sync(dir, err);
    if (status != DPT_OK)
        undo_rename(dir, attempt->step_name, attempt->temporary_name);
    return status;
}

/* For file systems that cannot swap names. Between the two renames the step has no checkpoint. */
static enum dpt_status replace_by_renames(const struct dpt_attempt *attempt, const char *aside,
                                          struct dpt_err *err)
{
    const struct dpt_folder *dir = &attempt->dir;
    DPT_TRY(dpt_io_rename(dir, attempt->step_name, aside, err));
    enum dpt_status status = publish_new(attempt, err);
    if (status != DPT_OK)
        undo_rename(dir, aside, attempt->step_name);
    return status;
}

/* The step already has a checkpoint, which is damaged or of a history that a failure ended.
 * Exchanges the two names atomically. `ret_old` becomes the name of the old checkpoint. */
static enum dpt_status replace_step(const struct dpt_attempt *attempt,
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
        return dpt_pass(err, &why);
    (void)snprintf(ret_old, DPT_CHECKPOINT_NAME_BYTES, "%s", attempt->temporary_name);
    status = dpt_folder_sync(dir, err);
    if (status != DPT_OK &&
        dpt_io_exchange(dir, attempt->temporary_name, attempt->step_name, &why) != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "a failed commit could not be undone: %s", why.text);
    return status;
}

/* Renames the finished folder. After a failure the folder has its temporary name again. Calls
 * may_rename immediately before the rename, because a writer that was stopped while it synced the
 * manifest may have been replaced. */
static enum dpt_status publish_step(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
    const struct dpt_folder *dir = &attempt->dir;
    char old[DPT_CHECKPOINT_NAME_BYTES];
    struct stat st;
    struct dpt_err why;
    const bool is_new = fstatat(dir->fd, attempt->step_name, &st, AT_SYMLINK_NOFOLLOW) != 0;
    if (is_new && errno != ENOENT)
        return dpt_fail_errno(err, errno, "look at '%s/%s'", dir->path, attempt->step_name);
    if (spec->may_rename && !spec->may_rename(spec->ctx))
        return dpt_fail(err, DPT_EABORTED, "the right to commit it was withdrawn");
    if (is_new) {
        if (publish_new(attempt, &why) == DPT_OK)
            return DPT_OK;
        /* Another node that holds the same rescue may have been faster. */
        if (!spec->state.rescue.node || (why.saved_errno != ENOTEMPTY && why.saved_errno != EEXIST))
            return dpt_pass(err, &why);
    }
    DPT_TRY(replace_step(attempt, old, err));
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
        status = dpt_attempt_check_cancelled(&attempt, err);
    if (status == DPT_OK)
        status = write_manifest(&attempt, err);
    if (status == DPT_OK)
        status = dpt_attempt_check_cancelled(&attempt, err);
    if (status == DPT_OK)
        status = publish_step(&attempt, err);
    if (status == DPT_OK && !spec->state.rescue.node &&
        dpt_checkpoint_prune(&attempt.dir, spec, &why) != DPT_OK)
        dpt_log(DPT_LOG_WARN, "the checkpoint of step %lld is complete, but older ones remain: %s",
                (long long)spec->state.step, why.text);
    return dpt_attempt_end(&attempt, status, err);
}

void dpt_checkpoint_abandon(const struct dpt_checkpoint_spec *spec)
{
    char name[DPT_CHECKPOINT_NAME_BYTES], removed[DPT_CHECKPOINT_NAME_BYTES];
    struct dpt_folder dir;
    struct dpt_err err;
    if (dpt_name_temporary(spec->state.step, spec->generation, spec->attempt, name, &err) !=
            DPT_OK ||
        dpt_name_temporary(spec->state.step, spec->generation, "abandoned", removed, &err) !=
            DPT_OK ||
        dpt_folder_open(spec->dir, &dir, &err) != DPT_OK)
        return; /* an attempt that fails here has written nothing */
    /* Renames first: a writer of this attempt that misses its files learns from the name that the
     * attempt is gone. */
    enum dpt_status status = dpt_io_remove_tree(&dir, removed, &err);
    if (status == DPT_OK)
        status = dpt_io_rename(&dir, name, removed, &err);
    if (status == DPT_OK)
        status = dpt_io_remove_tree(&dir, removed, &err);
    if (status != DPT_OK && status != DPT_ENOENT)
        dpt_log(DPT_LOG_DEBUG, "leftovers of a dropped checkpoint remain: %s", err.text);
    dpt_folder_close(&dir);
}
