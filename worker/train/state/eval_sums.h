/* The exchange of an evaluation. After each round every rank sends the sums of its batch, and every
 * rank adds the sums of all ranks in the order of the batches. So the loss has the same bits in
 * every world. Each sample is in one batch and counts once. Pure. */
#ifndef DPT_WORKER_TRAIN_STATE_EVAL_SUMS_H
#define DPT_WORKER_TRAIN_STATE_EVAL_SUMS_H

#include "base/err.h"
#include "worker/plan/eval_batches.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* The message of a rank after its batch of a round, sent as it lies in memory. */
struct dpt_eval_share {
    int64_t step, round;
    uint32_t reform;  /* 1: the rank was told that the world must change */
    uint32_t leaving; /* 1: the rank's node drains */
    int64_t first;    /* first sample of the batch */
    double sum;       /* sum of the batch's losses, nats; 0 for an empty batch */
    int64_t right;    /* with labels: correctly predicted samples */
};
static_assert(sizeof(struct dpt_eval_share) == 48, "every byte of the message is a field's");

/* The finished batches of an evaluation. Another world continues after them with the same bits. */
struct dpt_eval_part {
    int64_t step;    /* completed steps of the weights; -1: no evaluation */
    int64_t batches; /* number of finished batches, from the first on */
    double sum;      /* sum of their losses, nats */
    int64_t right;   /* with labels: their correctly predicted samples */
};

/* An evaluation in progress. */
struct dpt_eval_sums {
    int64_t step, samples;
    int micro_batch, world;
    int64_t done; /* batches that earlier worlds have finished */
    /* Rounds of this world, and those that are finished. */
    int64_t rounds, round;
    double sum;
    int64_t right;
    bool reform;    /* a rank was told that the world must change: stop here */
    bool all_leave; /* in the last round every rank's node was draining */
};

void dpt_eval_sums_begin(struct dpt_eval_sums *e, const struct dpt_eval_part *from, int64_t samples,
                         int micro_batch, int world);

/* The finished part of the evaluation. Called between rounds. */
struct dpt_eval_part dpt_eval_sums_part(const struct dpt_eval_sums *e);

/* The batch of rank `rank` in the present round. */
struct dpt_sample_range dpt_eval_sums_batch(const struct dpt_eval_sums *e, int rank);

/* Adds the shares of all ranks ([world], by rank) and ends the round. DPT_EPROTO: a rank is at
 * another step or round, or its share does not fit its batch; nothing is added then. */
DPT_MUST_USE enum dpt_status dpt_eval_sums_combine(struct dpt_eval_sums *e,
                                                   const struct dpt_eval_share *all,
                                                   struct dpt_err *err);

#endif
