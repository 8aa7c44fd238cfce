/* The message that ranks exchange while a generation forms, packed and unpacked. Pure. */
#ifndef DPT_WORKER_TRAIN_FORMATION_HELLO_H
#define DPT_WORKER_TRAIN_FORMATION_HELLO_H

#include "base/hash.h"
#include "worker/optim/scaler.h"
#include "worker/strategy/state/reshard.h"
#include "worker/train/state/epoch.h"
#include "worker/train/state/eval_shares.h"

#include <stdint.h>

/* The message of a rank: the plan that it carries out, its account of the run, and the parts of the
 * state that it holds and lacks. */
struct dpt_hello {
    uint64_t plan_hash;
    int64_t step; /* before the formation fills the state; -1: no state */
    int64_t start_step, steps_lost;
    uint64_t generations;
    int64_t trained_ms, checkpoints; /* since the training began; number of saved checkpoints */
    int64_t val_step;                /* the newest evaluation; -1: none */
    double val_loss;
    int64_t val_right;
    struct dpt_eval_part eval; /* finished part of an evaluation */
    int checkpoint_slot;
    struct dpt_shard late; /* the shadow that is rebuilt during training; of 0: none */
    struct dpt_shard own;  /* the rank's shard after the formation; a guest's: none */
    struct dpt_shard held[DPT_RESHARD_PARTS], wanted[DPT_RESHARD_PARTS];
    /* In the second exchange: hash of the weights and moments in each part that it holds now; loss
     * scale of the next step; account of the epoch; hash of model.init_from (zero: not compared).
     */
    struct dpt_hash128 hash[DPT_RESHARD_PARTS];
    struct dpt_scaler scaler;
    struct dpt_epoch epoch;
    struct dpt_hash128 origin;
};
enum { DPT_HELLO_BYTES = (31 + 6 * DPT_RESHARD_PARTS) * 8 };

/* Every value fits; the bytes are the same on every machine. */
void dpt_hello_pack(const struct dpt_hello *hello, uint8_t buf[DPT_HELLO_BYTES]);

/* Any bytes are a hello: the reader checks its values. */
struct dpt_hello dpt_hello_unpack(const uint8_t buf[DPT_HELLO_BYTES]);

#endif
