/* Finds the checkpoints in the folder: the newest from which the run may continue, and the damaged
 * ones. */
#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/names.h"
#include "worker/train/save/save.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static enum dpt_status verify_checkpoint(struct dpt_rank *r, int64_t step, struct dpt_err *err)
{
    struct dpt_checkpoint *checkpoint = NULL;
    DPT_TRY(dpt_checkpoint_open(r->config->checkpoint.dir, step, &checkpoint, err));
    enum dpt_status status = dpt_checkpoint_verify(checkpoint, err);
    dpt_checkpoint_close(&checkpoint);
    return status;
}

/* ---- intact and damaged checkpoints ---- */

/* A number for a folder and its newest change; 0: there is no folder. */
static uint64_t folder_mark(const struct dpt_rank *r, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (dpt_fs_join(r->config->checkpoint.dir, name, path, sizeof path, NULL) != DPT_OK ||
        stat(path, &st) != 0)
        return 0;
    const uint64_t words[] = {(uint64_t)st.st_ino, (uint64_t)st.st_mtim.tv_sec,
                              (uint64_t)st.st_mtim.tv_nsec};
    return dpt_hash128(words, sizeof words).lo;
}

/* A number for the folders of a step. It changes when the step is committed again, rescued, or
 * repaired by a person. */
static uint64_t mark_of(const struct dpt_rank *r, int64_t step)
{
    char name[DPT_CHECKPOINT_NAME_BYTES], rescue[DPT_CHECKPOINT_NAME_BYTES];
    dpt_name_step(step, false, name);
    dpt_name_step(step, true, rescue);
    return folder_mark(r, name) + 3 * folder_mark(r, rescue);
}

static struct damaged_step *find_damaged(struct dpt_rank *r, int64_t step)
{
    for (int i = 0; i < r->save->n_damaged; i++)
        if (r->save->damaged[i].step == step)
            return &r->save->damaged[i];
    return NULL;
}

/* Notes a damaged step. A full list drops its oldest entry. */
static void note_damaged(struct dpt_rank *r, int64_t step, uint64_t mark)
{
    struct damaged_step *known = find_damaged(r, step);
    if (!known && r->save->n_damaged == DAMAGED_STEPS_MAX)
        memmove(r->save->damaged, r->save->damaged + 1,
                (size_t)--r->save->n_damaged * sizeof *r->save->damaged);
    if (!known)
        known = &r->save->damaged[r->save->n_damaged++];
    *known = (struct damaged_step){step, mark};
}

static void forget_damaged(struct dpt_rank *r, int64_t step)
{
    struct damaged_step *known = find_damaged(r, step);
    if (known)
        *known = r->save->damaged[--r->save->n_damaged];
}

int rank_list_damaged(struct dpt_rank *r, int64_t but, int64_t ret[DAMAGED_STEPS_MAX])
{
    int n = 0;
    for (int i = 0; i < r->save->n_damaged; i++)
        if (r->save->damaged[i].step != but)
            ret[n++] = r->save->damaged[i].step;
    return n;
}

void rank_mark_save(struct dpt_rank *r)
{
    r->save->mark_before_save = mark_of(r, r->state.step);
}

/* Whether this process has read the checkpoint, committed it, or written its part of it. In the
 * last case the folder of an earlier history may still be there, until the first writer commits. */
static bool is_known_intact(struct dpt_rank *r, int64_t step)
{
    const struct dpt_saved saved = dpt_saver_saved(r->save->saver);
    return step == r->save->verified_step || step == r->save->loaded_step ||
           step == saved.committed_step ||
           (saved.n > 0 && saved.step == step && mark_of(r, step) != r->save->mark_before_save);
}

/* Whether the bytes of this step's checkpoint or rescue are intact: this process has read them, now
 * or before, or it has written or committed them. */
static bool is_intact(struct dpt_rank *r, int64_t step)
{
    struct dpt_err damage;
    if (is_known_intact(r, step))
        return true;
    const uint64_t mark = mark_of(r, step);
    const struct damaged_step *known = find_damaged(r, step);
    /* Logged when it was found. */
    if (known && known->mark == mark)
        return false;
    if (verify_checkpoint(r, step, &damage) == DPT_OK) {
        r->save->verified_step = step;
        forget_damaged(r, step);
        return true;
    }
    dpt_log(DPT_LOG_WARN, "checkpoint of step %lld is skipped: %s", (long long)step, damage.text);
    note_damaged(r, step, mark);
    return false;
}

/* ---- the newest ---- */

/* Finds the step of the newest intact checkpoint; -1: none. The world may have to continue from it,
 * whatever state this rank holds. So the bytes of an unknown checkpoint are read, once. */
static enum dpt_status newest_intact(struct dpt_rank *r, int64_t *ret_step, struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    int64_t step = -1;
    DPT_TRY(dpt_checkpoint_newest(dir, &step, err));
    while (step >= 0 && !is_intact(r, step))
        DPT_TRY(dpt_checkpoint_newest_below(dir, step, &step, err));
    *ret_step = step;
    return DPT_OK;
}

/* Finds the checkpoint for a run that only evaluates: the newest one, or that of train.eval_step if
 * it is in this folder. When a checkpoint is in memory, checkpoints that a training run writes
 * meanwhile are ignored. */
static enum dpt_status checkpoint_to_evaluate(struct dpt_rank *r, int64_t *ret_step,
                                              struct dpt_err *err)
{
    const int64_t wanted = r->config->train.eval_step;
    if (r->state.step >= 0) {
        *ret_step = r->state.step;
        return DPT_OK;
    }
    if (wanted == DPT_AUTO)
        return newest_intact(r, ret_step, err);
    /* Another node may have the checkpoint. If no node has it, rank_refuse_seed fails. */
    *ret_step = mark_of(r, wanted) != 0 && is_intact(r, wanted) ? wanted : -1;
    return DPT_OK;
}

enum dpt_status rank_newest_checkpoint(struct dpt_rank *r, int64_t *ret_step, struct dpt_err *err)
{
    *ret_step = -1;
    if (!r->config->checkpoint.dir[0])
        return DPT_OK;
    return r->config->train.eval_only ? checkpoint_to_evaluate(r, ret_step, err)
                                      : newest_intact(r, ret_step, err);
}

bool rank_step_is_there(struct dpt_rank *r, int64_t step)
{
    struct dpt_err err;
    int64_t newest = -1;
    return rank_newest_checkpoint(r, &newest, &err) == DPT_OK && newest >= step;
}

enum dpt_status rank_is_saved(struct dpt_rank *r, const char *weights_hash, bool *ret,
                              struct dpt_err *err)
{
    int64_t newest = -1;
    *ret = false;
    DPT_TRY(dpt_checkpoint_newest(r->config->checkpoint.dir, &newest, err));
    if (newest != r->state.step)
        return DPT_OK;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_err damage;
    if (dpt_checkpoint_open(r->config->checkpoint.dir, newest, &checkpoint, &damage) != DPT_OK) {
        dpt_log(DPT_LOG_WARN, "checkpoint of step %lld is written again: %s", (long long)newest,
                damage.text);
        return DPT_OK;
    }
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    *ret = !state->rescue.node && strcmp(state->weights_hash, weights_hash) == 0;
    dpt_checkpoint_close(&checkpoint);
    *ret = *ret && is_intact(r, newest);
    return DPT_OK;
}

/* ---- no checkpoint ---- */

static enum dpt_status fail_nothing_to_evaluate(const struct dpt_rank *r, struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    if (!dpt_fs_exists(dir))
        return dpt_fail(err, DPT_ECONFIG,
                        "checkpoint.dir: there is no folder '%s', and so no checkpoint to "
                        "evaluate; name the checkpoint.dir of a run that has written one",
                        dir);
    if (r->config->train.eval_step == DPT_AUTO)
        return dpt_fail(
            err, DPT_ECONFIG,
            "there is no complete checkpoint in '%s' to evaluate; name the checkpoint.dir "
            "of a run that has written one",
            dir);
    return dpt_fail(
        err, DPT_ECONFIG,
        "there is no complete checkpoint of step %lld in '%s'; `dpt-ckpt list %s` lists "
        "them",
        (long long)r->config->train.eval_step, dir, dir);
}

enum dpt_status rank_refuse_seed(const struct dpt_rank *r, struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    int64_t n = 0;
    if (r->config->train.eval_only)
        return fail_nothing_to_evaluate(r, err);
    if (!dir[0] || r->options->start->allow_fresh)
        return DPT_OK;
    DPT_TRY(dpt_checkpoint_count(dir, &n, err));
    if (n == 0)
        return DPT_OK;
    return dpt_fail(
        err, DPT_ECONFIG,
        "checkpoint.dir holds %lld checkpoint%s and none from which the run can continue; it "
        "does not begin from step 0 over them: put an undamaged one back, give another "
        "checkpoint.dir, or --allow-fresh; `dpt-ckpt list --verify %s` tells which are "
        "damaged",
        (long long)n, n == 1 ? "" : "s", dir);
}
