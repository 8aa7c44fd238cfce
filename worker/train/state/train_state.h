/* The state of a training beside the weights: the step and its outcome, the loss scale, the
 * accounts of the epoch and of the run. It lives as long as the process. A formation replaces the
 * parts that it receives from another rank or from a checkpoint. */
#ifndef DPT_WORKER_TRAIN_STATE_TRAIN_STATE_H
#define DPT_WORKER_TRAIN_STATE_TRAIN_STATE_H

#include "worker/comm/comm.h"
#include "worker/optim/step_fate.h"
#include "worker/train/state/epoch.h"
#include "worker/train/state/eval_sums.h"
#include "worker/train/state/generation_history.h"
#include "worker/train/state/outcome.h"

/* An evaluation of all of data.val. */
struct validation {
    int64_t step;  /* completed steps of the evaluated weights; -1: none */
    double loss;   /* mean, nats */
    int64_t right; /* with labels: correctly predicted samples */
    double ms;     /* duration in ms; 0: unknown, other ranks or several worlds evaluated */
};

struct train_state {
    int64_t step;               /* completed steps; -1: no state */
    struct dpt_outcome outcome; /* outcome of step - 1, if has_outcome */
    bool has_outcome;
    bool diverged;                  /* the next step is not finite and ends the run */
    struct dpt_scaler scaler;       /* state of the loss scaler at `step` */
    struct dpt_epoch epoch;         /* account of the epoch at `step`, with train.epochs */
    struct validation validation;   /* the newest evaluation */
    struct dpt_eval_part eval_part; /* the finished part of an evaluation */
    struct dpt_history history;
    int64_t start_step;   /* the first step of the run */
    int64_t steps_lost;   /* steps lost in all formations */
    uint64_t generations; /* number of generations that have trained */
    int64_t began_ms;     /* when the run began to train (dpt_now_ms); 0: not yet */
    /* Time of the nodes that trained, up to nodes_since_ms, when `nodes` nodes began to train;
     * nodes_since_ms 0: not yet. */
    int64_t node_ms, nodes_since_ms;
    int nodes;
    int64_t checkpoints_told; /* checkpoints saved before this process took part */
    /* The generation, and its attempt, in which all ranks last agreed on the held state. Equal on
     * all ranks that hold parts of one state. */
    uint64_t held_generation;
    char held_attempt[2 * DPT_COMM_NONCE_BYTES + 1];
    /* Valid until the log of the next generation has begun. reread: the state was read from a
     * checkpoint or a rescue, or drawn from the seed. from_rescue: it was read from a rescue. */
    bool reread, from_rescue;
};

#endif
