/* Is a checkpoint whole? Shared by the search for the newest one, pruning, reading and dpt-ckpt. */
#ifndef DPT_CHECKPOINT_WHOLE_H
#define DPT_CHECKPOINT_WHOLE_H

#include "base/err.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_CHECKPOINT_STEPS_MAX = 100000 };

/* A checkpoint or a rescue whose manifest is intact and whose files have its sizes. */
struct dpt_whole {
    struct dpt_folder folder; /* open */
    struct dpt_manifest manifest;
    bool rescue;
};

enum dpt_whole_name { DPT_WHOLE_ANY, DPT_WHOLE_STEP, DPT_WHOLE_RESCUE };

/* Opens step `step` of `dir` under this name. ANY: the rescue if it is whole, else the checkpoint.
 * A commit removes the rescue of its step: one that is there beside the checkpoint was written
 * because that was damaged, or holds the same. `ret` is filled on success only. */
DPT_MUST_USE enum dpt_status dpt_whole_open(const struct dpt_folder *dir, int64_t step,
                                            enum dpt_whole_name name, struct dpt_whole *ret,
                                            struct dpt_err *err);
void dpt_whole_close(struct dpt_whole *whole);

/* The same without opening it. */
DPT_MUST_USE enum dpt_status dpt_whole_check(const struct dpt_folder *dir, int64_t step,
                                             enum dpt_whole_name name, struct dpt_err *err);

/* The steps of `dir` that have a folder of their own or a rescue's, whole or not, in ascending
 * order; owned. */
DPT_MUST_USE enum dpt_status dpt_whole_steps(const struct dpt_folder *dir, int64_t **ret_steps,
                                             size_t *ret_n, struct dpt_err *err);

/* Which whole checkpoints stay: the `newest` newest, those of `steps`, and of those that have a
 * validation loss the `best` with the lowest. */
struct dpt_whole_keep {
    int newest; /* >= 1 */
    const int64_t *steps;
    int64_t n_steps;
    int best;
    const int64_t *damaged; /* known to be, though their files have their sizes */
    int n_damaged;
};

/* Removes, of the checkpoints up to step `newest`, all that are not kept; of the damaged ones those
 * that are not whole, while those of `damaged` stay and count as none. Later steps are another
 * run's or a later history and are left alone. Also removes the rescues of steps up to `newest`,
 * with the attempts at them, and temporary folders of checkpoints of steps before `newest` and
 * generations up to `generation`. */
DPT_MUST_USE enum dpt_status dpt_whole_prune(const struct dpt_folder *dir, int64_t newest,
                                             const struct dpt_whole_keep *keep, uint64_t generation,
                                             struct dpt_err *err);

#endif
