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
    int64_t step; /* before it is given any; -1: no state */
    int64_t start_step, steps_lost;
    uint64_t generations;
    int64_t trained_ms, checkpoints; /* since its training began; saved by it or told to it */
    int64_t val_step;                /* the newest evaluation; -1: none */
    double val_loss;
    int64_t val_right;
    struct dpt_eval_part eval; /* the one that it was in */
    int checkpoint_slot;
    struct dpt_shard late; /* of the shadow that comes while training goes on; of 0: none */
    struct dpt_shard own;  /* that it shall hold; a guest's: none */
    struct dpt_shard held[DPT_RESHARD_PARTS], wanted[DPT_RESHARD_PARTS];
    /* In the second exchange: of the weights in each part that it holds now; how the loss is scaled
     * from here on; the account of the epoch; of which weights it began (zero: it does not say).
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
