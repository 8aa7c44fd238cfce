/* The all-gather that commits a step: the contribution of a rank, and the outcome that each rank
 * computes from all contributions.
 *
 * A rank contributes when it holds everything that it needs to apply the step. The step is
 * committed when all contributions have arrived. The outcome has the same bytes on every rank; a
 * formation hands it to a rank that missed it. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_OUTCOME_H
#define DPT_WORKER_TRAIN_STATE_OUTCOME_H

#include "base/accum.h"
#include "base/config.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_OUTCOME_BYTES_MAX = 64 + 8 * DPT_CONFIG_SLOTS_MAX };

enum dpt_commit_flag {
    /* A rank was told that the world must change: the ranks quiesce after this step. */
    DPT_COMMIT_REFORM = 1,
    /* A rank still writes the last checkpoint: no checkpoint begins at this step. */
    DPT_COMMIT_SAVER_BUSY = 2,
    /* Only in outcomes: the nodes of all ranks leave, so the ranks save before they quiesce. */
    DPT_COMMIT_ALL_LEAVE = 4,
    /* A checkpoint was dropped because a value is not finite: the run ends after this step. */
    DPT_COMMIT_NOT_FINITE = 8,
    /* An operator wants a checkpoint: all ranks save after this step. */
    DPT_COMMIT_SAVE = 16
};

struct dpt_contribution {
    int64_t step; /* 0-based, the step being committed */
    uint32_t flags;
    uint32_t leaving;                /* 1: this rank's node drains */
    int first_slot, stride, n_slots; /* slots first_slot, first_slot + stride, … */
    /* losses[i * stride] is the loss of slot first_slot + i * stride: the mean in nats a token. */
    const double *losses;
    struct dpt_accum norm; /* this rank's share of the squared norm */
    double scale;          /* scale of the loss, the gradient and the norm */
};

/* The caller provides the memory of `losses` [slots]. */
struct dpt_outcome {
    int64_t step;
    uint32_t flags;
    int slots;
    double norm;  /* norm of the reduced gradient, unscaled, before clipping */
    double scale; /* scale of the loss in this step */
    double *losses;
};

/* Size in bytes of every contribution, in a world where no rank has more than slots_max slots. */
size_t dpt_contribution_bytes(int slots_max);

/* `buf` holds dpt_contribution_bytes(slots_max); n_slots <= slots_max. */
void dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max, void *buf);

/* The ranks that commit, and their step. */
struct dpt_commit_world {
    int64_t step;
    int size; /* number of ranks */
    /* Slots of all ranks, 1 … DPT_CONFIG_SLOTS_MAX, and largest number of slots of one rank. */
    int slots, slots_max;
};

/* Adds the contributions of all ranks, each dpt_contribution_bytes(slots_max) long in `all`.
 * DPT_EPROTO: a slot comes twice or not at all, a step is not world->step, a scale differs, or a
 * rank sets a flag that no rank may set. Then the step must not be applied; ret->losses may have
 * been written. */
DPT_MUST_USE enum dpt_status dpt_outcome_combine(const struct dpt_commit_world *world,
                                                 const void *all, struct dpt_outcome *ret,
                                                 struct dpt_err *err);

/* Packs the outcome as bytes, and unpacks it. */
DPT_MUST_USE enum dpt_status dpt_outcome_pack(const struct dpt_outcome *outcome, void *buf,
                                              size_t buf_bytes, size_t *ret_bytes,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_outcome_unpack(const void *data, size_t bytes, int slots,
                                                struct dpt_outcome *ret, struct dpt_err *err);

/* Mean of the slots' losses, added in slot order. */
double dpt_outcome_loss(const struct dpt_outcome *outcome);

#endif
