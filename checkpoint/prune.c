/* Removes checkpoints that are not kept, and the leftovers of attempts (complete_checkpoint.h). */
#include "base/fs.h"
#include "checkpoint/blocks.h"
#include "checkpoint/complete_checkpoint.h"
#include "checkpoint/names.h"
#include "checkpoint/state_json.h"

#include <stdlib.h>
#include <string.h>

/* Renames the folder before it removes it: a partly removed checkpoint must not look like a
 * checkpoint, and a writer of a removed attempt learns from the name that the attempt is gone. */
static enum dpt_status remove_named(const struct dpt_folder *dir, const char *name, int64_t step,
                                    uint64_t generation, struct dpt_err *err)
{
    char removed[DPT_CHECKPOINT_NAME_BYTES];
    DPT_TRY(dpt_name_temporary(step, generation, "pruned", removed, err));
    DPT_TRY(dpt_io_remove_tree(dir, removed, err)); /* left by an interrupted removal */
    DPT_TRY(dpt_io_rename(dir, name, removed, err));
    return dpt_io_remove_tree(dir, removed, err);
}

/* The leftovers to remove. */
struct leftover_rule {
    int64_t saved_step; /* of the checkpoint that was just committed; -1: none */
    uint64_t generation;
    const char *attempt; /* the attempt of `generation` that is being written; NULL: none */
};

/* A rescue and the attempts at it, of any generation, are leftovers once a checkpoint of their step
 * or of a later step is saved: a writer that still works on one then finds its step saved. Before
 * that they stay, because a rescue is written without a server, and no generation knows whether a
 * writer still works on it. */
static bool is_leftover(const char *name, const struct leftover_rule *rule, int64_t *ret_step)
{
    uint64_t generation;
    if (dpt_name_parse_rescue(name, ret_step))
        return *ret_step <= rule->saved_step;
    const char *attempt = dpt_name_parse_temporary(name, ret_step, &generation);
    if (!attempt)
        return false;
    if (dpt_name_is_rescue_attempt(attempt))
        return *ret_step <= rule->saved_step;
    if (rule->attempt)
        return generation != rule->generation || strcmp(attempt, rule->attempt) != 0;
    return *ret_step < rule->saved_step && generation <= rule->generation;
}

static enum dpt_status remove_leftovers(const struct dpt_folder *dir,
                                        const struct leftover_rule *rule, struct dpt_err *err)
{
    char **names = NULL;
    size_t n = 0;
    DPT_TRY(dpt_fs_list(dir->path, &names, &n, err));
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        int64_t step;
        if (!is_leftover(names[i], rule, &step))
            continue;
        /* With an attempt, several nodes may clean one folder at once. They would all rename to the
         * same name. */
        status = rule->attempt ? dpt_io_remove_tree(dir, names[i], err)
                               : remove_named(dir, names[i], step, rule->generation, err);
        if (status == DPT_ENOENT) /* its writer renamed or removed it */
            status = DPT_OK;
    }
    dpt_fs_list_free(&names, n);
    return status;
}

/* A checkpoint that may be removed. */
struct candidate {
    int64_t step;
    bool complete, keep, is_best, has_val_loss;
    double val_loss;
};

/* A checkpoint whose state cannot be read counts as one without a loss. */
static void read_val_loss(const struct dpt_complete *complete, struct candidate *c)
{
    const struct dpt_manifest_file *file = dpt_manifest_find(&complete->manifest, DPT_NAME_STATE);
    struct dpt_state_json copy = {0};
    char *text = NULL;
    if (file &&
        dpt_blocks_read_file(&complete->folder, file, DPT_STATE_BYTES_MAX, &text, NULL) == DPT_OK &&
        dpt_state_json_parse(text, (size_t)file->bytes, &copy, NULL) == DPT_OK) {
        c->has_val_loss = copy.state.has_val_loss;
        c->val_loss = copy.state.val_loss;
    }
    dpt_state_json_fini(&copy);
    free(text);
}

static void read_candidate(const struct dpt_folder *dir, bool wants_loss, struct candidate *c)
{
    struct dpt_complete complete;
    c->complete = dpt_complete_open(dir, c->step, DPT_COMPLETE_STEP, &complete, NULL) == DPT_OK;
    if (c->complete && wants_loss)
        read_val_loss(&complete, c);
    if (c->complete)
        dpt_complete_close(&complete);
}

static bool is_in(const int64_t *steps, int64_t n, int64_t step)
{
    for (int64_t i = 0; i < n; i++)
        if (steps[i] == step)
            return true;
    return false;
}

/* Keeps the `n_best` checkpoints with the lowest loss; of equal losses the newer one. */
static void keep_best(struct candidate *c, size_t n, int n_best)
{
    for (; n_best > 0; n_best--) {
        struct candidate *best = NULL;
        for (size_t i = n; i-- > 0;)
            if (c[i].has_val_loss && !c[i].is_best && (!best || c[i].val_loss < best->val_loss))
                best = &c[i];
        if (!best)
            return;
        best->is_best = best->keep = true;
    }
}

/* `c`: [n] in ascending order. */
static void choose_kept(const struct dpt_folder *dir, const struct dpt_checkpoint_spec *spec,
                        struct candidate *c, size_t n)
{
    int newest = 0;
    for (size_t i = n; i-- > 0;) {
        c[i].keep = is_in(spec->damaged, spec->n_damaged, c[i].step);
        if (c[i].keep)
            continue;
        if (newest < spec->keep || spec->keep_best > 0)
            read_candidate(dir, spec->keep_best > 0, &c[i]);
        c[i].keep = is_in(spec->keep_steps, spec->n_keep_steps, c[i].step) || newest < spec->keep;
        newest += c[i].complete;
    }
    keep_best(c, n, spec->keep_best);
}

enum dpt_status dpt_checkpoint_prune(const struct dpt_folder *dir,
                                     const struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    int64_t *steps = NULL;
    size_t n = 0;
    const struct leftover_rule rule = {.saved_step = spec->state.step,
                                       .generation = spec->generation};
    struct dpt_err why;
    DPT_TRY(dpt_checkpoint_list_steps(dir, &steps, &n, err));
    while (n > 0 && steps[n - 1] > spec->state.step)
        n--;
    struct candidate *candidates = calloc(n + 1, sizeof *candidates);
    enum dpt_status status = candidates ? DPT_OK : dpt_fail_nomem(err, "list of checkpoints");
    for (size_t i = 0; status == DPT_OK && i < n; i++)
        candidates[i].step = steps[i];
    if (status == DPT_OK)
        choose_kept(dir, spec, candidates, n);
    for (size_t i = 0; status == DPT_OK && i < n; i++) {
        char name[DPT_CHECKPOINT_NAME_BYTES];
        dpt_name_step(steps[i], false, name);
        if (!candidates[i].keep)
            status = remove_named(dir, name, steps[i], spec->generation, err);
    }
    free(candidates);
    free(steps);
    /* Removes leftovers last: those of another user cannot be removed, and this failure must not
     * prevent the removal of checkpoints. */
    const enum dpt_status leftovers = remove_leftovers(dir, &rule, &why);
    return status == DPT_OK && leftovers != DPT_OK ? dpt_pass(err, &why) : status;
}

enum dpt_status dpt_checkpoint_clean(const char *dir, uint64_t generation, const char *attempt,
                                     struct dpt_err *err)
{
    struct dpt_folder folder;
    const struct leftover_rule rule = {
        .saved_step = -1, .generation = generation, .attempt = attempt};
    DPT_TRY(dpt_folder_open_if_present(dir, &folder, err));
    const enum dpt_status status = folder.fd >= 0 ? remove_leftovers(&folder, &rule, err) : DPT_OK;
    dpt_folder_close(&folder);
    return status;
}
