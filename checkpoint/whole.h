/* Is a checkpoint whole? Shared by the search for the newest one, pruning, reading and dpt-ckpt. */
#ifndef DPT_CHECKPOINT_WHOLE_H
#define DPT_CHECKPOINT_WHOLE_H

#include "base/err.h"
#include "checkpoint/io.h"
#include "checkpoint/manifest.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_CHECKPOINT_STEPS_MAX = 100000 };

/* Opens step `step` of `dir` and reads its manifest; the files it lists must be there with their
 * sizes. `ret_folder` is open and `ret_manifest` (zeroed) filled on success only. */
DPT_MUST_USE enum dpt_status dpt_whole_open(const struct dpt_folder *dir, int64_t step,
                                            struct dpt_folder *ret_folder,
                                            struct dpt_manifest *ret_manifest, struct dpt_err *err);

/* The steps of `dir` that have a folder of their own, whole or not, in ascending order; owned. */
DPT_MUST_USE enum dpt_status dpt_whole_steps(const struct dpt_folder *dir, int64_t **ret_steps,
                                             size_t *ret_n, struct dpt_err *err);

/* Keeps the `keep` newest whole checkpoints among those up to step `newest` and removes the older
 * ones, damaged ones too; later steps are another run's or a later history and are left alone. Also
 * removes temporary folders of steps before `newest` and generations up to `generation`. */
DPT_MUST_USE enum dpt_status dpt_whole_prune(const struct dpt_folder *dir, int64_t newest, int keep,
                                             uint64_t generation, struct dpt_err *err);

#endif
