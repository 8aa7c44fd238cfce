/* Finds complete checkpoints: for the search of the newest one, pruning, reading and dpt-ckpt. */
#ifndef DPT_CHECKPOINT_COMPLETE_CHECKPOINT_H
#define DPT_CHECKPOINT_COMPLETE_CHECKPOINT_H

#include "base/err.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DPT_CHECKPOINT_STEPS_MAX = 100000 };

/* A checkpoint or a rescue: its manifest is intact, and its files have the manifest's sizes. */
struct dpt_complete {
    struct dpt_folder folder; /* open */
    struct dpt_manifest manifest;
    bool rescue;
};

enum dpt_complete_name { DPT_COMPLETE_ANY, DPT_COMPLETE_STEP, DPT_COMPLETE_RESCUE };

/* Opens step `step` of `dir`: its checkpoint, its rescue, or with ANY the rescue if it is complete,
 * else the checkpoint. A commit removes the rescue of its step. So a rescue beside a checkpoint was
 * written because the checkpoint was damaged, or it holds the same state. `ret` is filled on
 * success only. */
DPT_MUST_USE enum dpt_status dpt_complete_open(const struct dpt_folder *dir, int64_t step,
                                               enum dpt_complete_name name,
                                               struct dpt_complete *ret, struct dpt_err *err);
void dpt_complete_close(struct dpt_complete *complete);

/* The steps of `dir` that have a checkpoint or a rescue, complete or damaged, in ascending order;
 * owned. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_list_steps(const struct dpt_folder *dir,
                                                       int64_t **ret_steps, size_t *ret_n,
                                                       struct dpt_err *err);

/* Removes checkpoints up to the step of `spec`, which was just committed, except those that `spec`
 * keeps (struct dpt_checkpoint_spec). Later steps stay: they belong to another run or to a later
 * history. Also removes the rescues of steps up to this one, the attempts at them, and the
 * temporary folders that are of an earlier step and of a generation up to that of `spec`. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_prune(const struct dpt_folder *dir,
                                                  const struct dpt_checkpoint_spec *spec,
                                                  struct dpt_err *err);

#endif
