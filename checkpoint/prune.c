/* Removing checkpoints that are not kept, and what is left of attempts (whole.h). */
#include "base/fs.h"
#include "checkpoint/blocks.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/state.h"
#include "checkpoint/whole.h"

#include <stdlib.h>
#include <string.h>

/* Renames first: half of a removed checkpoint must not look like a checkpoint. */
static enum dpt_status remove_named(const struct dpt_folder *dir, const char *name, int64_t step,
                                    uint64_t generation, struct dpt_err *err)
{
    char removed[DPT_CHECKPOINT_NAME_BYTES];
    DPT_TRY(dpt_name_temporary(step, generation, "pruned", removed, err));
    DPT_TRY(dpt_io_remove_tree(dir, removed, err)); /* of a prune that was cut short */
    DPT_TRY(dpt_io_rename(dir, name, removed, err));
    return dpt_io_remove_tree(dir, removed, err);
}

static enum dpt_status remove_step(const struct dpt_folder *dir, int64_t step, uint64_t generation,
                                   struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    dpt_name_step(step, name);
    return remove_named(dir, name, step, generation, err);
}

/* A rescue, or an attempt to write one. */
static bool is_rescue(const char *name, int64_t *ret_step)
{
    return dpt_name_parse_rescue(name, ret_step) || dpt_name_parse_rescue_attempt(name, ret_step);
}

/* The checkpoint that was just committed has their steps or a later one. Attempts of all
 * generations go, too: a writer that still works on one finds the step saved. */
static enum dpt_status remove_rescues(const struct dpt_folder *dir, int64_t newest,
                                      uint64_t generation, struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(dir->path, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        int64_t step;
        if (is_rescue(names[i], &step) && step <= newest)
            status = remove_named(dir, names[i], step, generation, err);
        if (status == DPT_ENOENT) /* its writer gave it another name, or removed it */
            status = DPT_OK;
    }
    dpt_fs_list_free(&names, n);
    return status;
}

/* Temporary folders of checkpoints to remove. Those of rescues stay until remove_rescues: a rescue
 * is written without a server, so no server knows whether a writer still works on it. */
struct temporary_filter {
    int64_t below_step;
    uint64_t generation;
    /* All but this attempt of this generation. NULL: all of generations up to it. */
    const char *attempt;
};

static bool is_of_attempt(const char *name, int64_t step, const struct temporary_filter *filter)
{
    char theirs[DPT_CHECKPOINT_NAME_BYTES];
    return dpt_name_temporary(step, filter->generation, filter->attempt, theirs, NULL) == DPT_OK &&
           strcmp(name, theirs) == 0;
}

static enum dpt_status remove_temporaries(const struct dpt_folder *dir,
                                          const struct temporary_filter *filter,
                                          struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(dir->path, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        int64_t step;
        uint64_t generation;
        if (!dpt_name_parse_temporary(names[i], &step, &generation) || step >= filter->below_step ||
            dpt_name_parse_rescue_attempt(names[i], &step))
            continue;
        if (filter->attempt ? !is_of_attempt(names[i], step, filter)
                            : generation <= filter->generation)
            status = dpt_io_remove_tree(dir, names[i], err);
    }
    dpt_fs_list_free(&names, n);
    return status;
}

/* A checkpoint that may be removed. */
struct candidate {
    int64_t step;
    bool whole, keep, has_val_loss;
    double val_loss;
};

/* A state that cannot be read has no loss to be kept for. */
static void read_val_loss(const struct dpt_folder *folder, const struct dpt_manifest *manifest,
                          struct candidate *c)
{
    const struct dpt_manifest_file *file = dpt_manifest_find(manifest, DPT_NAME_STATE);
    struct dpt_state_copy copy = {0};
    char *text = NULL;
    if (file && dpt_blocks_read_file(folder, file, DPT_STATE_BYTES_MAX, &text, NULL) == DPT_OK &&
        dpt_state_parse(text, (size_t)file->bytes, DPT_NAME_STATE, &copy, NULL) == DPT_OK) {
        c->has_val_loss = copy.state.has_val_loss;
        c->val_loss = copy.state.val_loss;
    }
    dpt_state_fini(&copy);
    free(text);
}

static void look_at(const struct dpt_folder *dir, bool wants_loss, struct candidate *c)
{
    struct dpt_whole whole;
    c->whole = dpt_whole_open(dir, c->step, DPT_WHOLE_STEP, &whole, NULL) == DPT_OK;
    if (!c->whole)
        return;
    if (wants_loss)
        read_val_loss(&whole.folder, &whole.manifest, c);
    dpt_whole_close(&whole);
}

static bool is_in(const int64_t *steps, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* Of those with the lowest loss the newest. */
static struct candidate *best_left(struct candidate *c, size_t n, const bool *taken)
{
    struct candidate *best = NULL;
    for (size_t i = n; i-- > 0;)
        if (c[i].whole && c[i].has_val_loss && !taken[i] &&
            (!best || c[i].val_loss < best->val_loss))
            best = &c[i];
    return best;
}

static void keep_best(struct candidate *c, size_t n, int n_best, bool *taken)
{
    for (int i = 0; i < n_best; i++) {
        struct candidate *best = best_left(c, n, taken);
        if (!best)
            return;
        taken[best - c] = best->keep = true;
    }
}

/* `c`: [n] in ascending order. Damaged checkpoints stay: a person may repair them. */
static void choose(const struct dpt_folder *dir, const struct dpt_whole_keep *keep,
                   struct candidate *c, size_t n, bool *taken)
{
    int newest = 0;
    for (size_t i = n; i-- > 0;) {
        c[i].keep = is_in(keep->damaged, keep->n_damaged, c[i].step);
        if (c[i].keep)
            continue;
        if (newest < keep->newest || keep->best > 0)
            look_at(dir, keep->best > 0, &c[i]);
        c[i].keep = is_in(keep->steps, keep->n_steps, c[i].step) || newest < keep->newest;
        newest += c[i].whole;
    }
    keep_best(c, n, keep->best, taken);
}

enum dpt_status dpt_whole_prune(const struct dpt_folder *dir, int64_t newest,
                                const struct dpt_whole_keep *keep, uint64_t generation,
                                struct dpt_err *err)
{
    int64_t *steps = NULL;
    size_t n = 0;
    DPT_TRY(remove_rescues(dir, newest, generation, err));
    DPT_TRY(dpt_whole_steps(dir, &steps, &n, err));
    while (n > 0 && steps[n - 1] > newest)
        n--;
    enum dpt_status status = DPT_OK;
    struct candidate *candidates = calloc(n + 1, sizeof *candidates);
    bool *taken = calloc(n + 1, sizeof *taken);
    if (!candidates || !taken)
        status = dpt_fail_nomem(err, "list of checkpoints");
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        candidates[i].step = steps[i];
    if (status == DPT_OK)
        choose(dir, keep, candidates, n, taken);
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        if (!candidates[i].keep)
            status = remove_step(dir, steps[i], generation, err);
    free(candidates);
    free(taken);
    free(steps);
    if (status != DPT_OK)
        return status;
    const struct temporary_filter filter = {.below_step = newest, .generation = generation};
    return remove_temporaries(dir, &filter, err);
}

enum dpt_status dpt_checkpoint_clean(const char *dir, uint64_t generation, const char *attempt,
                                     struct dpt_err *err)
{
    struct dpt_folder folder;
    const struct temporary_filter filter = {
        .below_step = INT64_MAX, .generation = generation, .attempt = attempt};
    DPT_TRY(dpt_folder_open_if_present(dir, &folder, err));
    const enum dpt_status status =
        folder.fd >= 0 ? remove_temporaries(&folder, &filter, err) : DPT_OK;
    dpt_folder_close(&folder);
    return status;
}
