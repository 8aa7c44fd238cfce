/* The step's small all-reduce: what a rank contributes, and the outcome that everyone makes of all
 * contributions.
 *
 * A contribution says: I hold everything needed to apply this step. When all have come together the
 * step is committed, and the outcome is the same bytes on every rank: it is what re-formation hands
 * to a rank that missed it. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_OUTCOME_H
#define DPT_WORKER_TRAIN_STATE_OUTCOME_H

#include "base/accum.h"
#include "base/config.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_OUTCOME_BYTES_MAX = 64 + 8 * DPT_CONFIG_SLOTS_MAX };

enum dpt_commit_flag {
    DPT_COMMIT_REFORM =
        1, /* a rank was told that the world shall change: quiesce after this step */
    DPT_COMMIT_SAVER_BUSY =
        2, /* a rank still writes the last checkpoint: none is begun at this step */
    DPT_COMMIT_ALL_LEAVE =
        4, /* outcome only: every rank's node is leaving, save before quiescing */
    DPT_COMMIT_NOT_FINITE = 8 /* a checkpoint was dropped for a value that is not finite: the run
                                 ends after this step */
};

struct dpt_contribution {
    int64_t step; /* 0-based, the step being committed */
    uint32_t flags;
    uint32_t leaving;                /* 1: this rank's node drains */
    int first_slot, stride, n_slots; /* slots first_slot, first_slot + stride, … */
    const double *losses;  /* mean loss of slot first_slot + i, nats a token: of the rank's
                              slots */
    struct dpt_accum norm; /* its share of the squared norm */
    double scale;          /* of the loss, and so of the gradient and its norm */
};

/* Caller's storage; `losses` [slots]. */
struct dpt_outcome {
    int64_t step;
    uint32_t flags;
    int slots;
    double norm;  /* of the reduced gradient, unscaled, before clipping */
    double scale; /* of the loss in this step: 1, or what dpt_scaler had */
    double *losses;
};

/* Bytes of every contribution in a world where no rank has more than slots_max slots. */
size_t dpt_contribution_bytes(int slots_max);

/* `buf` holds dpt_contribution_bytes(slots_max); n_slots <= slots_max. */
void dpt_contribution_pack(const struct dpt_contribution *contribution, int slots_max, void *buf);

/* Folds the contributions of `world` ranks, each dpt_contribution_bytes(slots_max) long in `all`,
 * to a step of 1 … DPT_CONFIG_SLOTS_MAX slots. Every slot of 0 … slots-1 must come exactly once,
 * every step be `step`, every scale the same and every flag a rank's to set, else DPT_EPROTO: ranks
 * have gone apart, which is never to be trained over (ret->losses may then have been written). */
DPT_MUST_USE enum dpt_status dpt_outcome_fold(const void *all, int world, int slots_max,
                                              int64_t step, int slots, struct dpt_outcome *ret,
                                              struct dpt_err *err);

/* The outcome as bytes, and back. */
DPT_MUST_USE enum dpt_status dpt_outcome_pack(const struct dpt_outcome *outcome, void *buf,
                                              size_t buf_bytes, size_t *ret_bytes,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_outcome_unpack(const void *data, size_t bytes, int slots,
                                                struct dpt_outcome *ret, struct dpt_err *err);

/* Mean of the slots' losses, added in slot order. */
double dpt_outcome_loss(const struct dpt_outcome *outcome);

#endif
