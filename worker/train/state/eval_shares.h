/* An evaluation's small exchange: what each rank says after a round of batches, and what everyone
 * makes of it. The sums are added in the order of the batches, so that the loss has the same bits
 * in every world; every sample is in one batch, and so counts once. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_EVAL_SHARES_H
#define DPT_WORKER_TRAIN_STATE_EVAL_SHARES_H

#include "base/err.h"
#include "worker/plan/evaluation.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_EVAL_SHARE_BYTES = 6 * 8 };

/* The message of a rank after its batch of a round. */
struct dpt_eval_share {
    int64_t step, round;
    uint32_t reform;  /* 1: it was told that the world shall change */
    uint32_t leaving; /* 1: its node drains */
    int64_t first;    /* sequence of its batch */
    double sum;       /* of the losses of the batch, nats; 0 when it is empty */
    int64_t right;    /* with labels: samples of the batch whose label is predicted */
};

/* How far an evaluation has come: from there another world goes on, with the same bits. */
struct dpt_eval_part {
    int64_t step;    /* completed steps of the weights; -1: there is none */
    int64_t batches; /* done, from the first on */
    double sum;      /* of their losses, nats */
    int64_t right;   /* with labels: of their samples those whose label is predicted */
};

/* An evaluation under way. */
struct dpt_evaluation {
    int64_t step, samples;
    int micro_batch, world;
    int64_t done;          /* batches, before this world */
    int64_t rounds, round; /* of this world; of them done */
    double sum;
    int64_t right;
    bool reform;    /* a rank was told that the world shall change: stop here */
    bool all_leave; /* in the last round every rank's node was draining */
};

void dpt_evaluation_begin(struct dpt_evaluation *e, const struct dpt_eval_part *from,
                          int64_t samples, int micro_batch, int world);

/* Between rounds. */
struct dpt_eval_part dpt_evaluation_part(const struct dpt_evaluation *e);

/* The batch of rank `rank` in the present round. */
struct dpt_sample_range dpt_evaluation_batch(const struct dpt_evaluation *e, int rank);

void dpt_eval_share_pack(const struct dpt_eval_share *share, uint8_t buf[DPT_EVAL_SHARE_BYTES]);

/* Takes the shares of all ranks, in rank order, and ends the round. DPT_EPROTO: a rank is at
 * another step or round, or has computed something else; nothing is added then. */
DPT_MUST_USE enum dpt_status dpt_evaluation_fold(struct dpt_evaluation *e, const uint8_t *all,
                                                 struct dpt_err *err);

#endif
