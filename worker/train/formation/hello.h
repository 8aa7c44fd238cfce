/* The message that ranks exchange while a generation forms, as a struct and as bytes. Pure. */
#ifndef DPT_WORKER_TRAIN_FORMATION_HELLO_H
#define DPT_WORKER_TRAIN_FORMATION_HELLO_H

#include "base/hash.h"
#include "worker/optim/scaler.h"
#include "worker/strategy/state/move_state.h"
#include "worker/train/state/epoch.h"
#include "worker/train/state/eval_sums.h"

#include <stdint.h>

/* The message of a rank: the plan that the rank carries out, its account of the run, and the parts
 * of the state that it holds and lacks. */
struct dpt_hello {
    uint64_t plan_hash;
    int64_t step; /* step before the formation fills the state; -1: no state */
    int64_t start_step, steps_lost;
    uint64_t generations;
    /* Time since training began, and number of saved checkpoints. */
    int64_t trained_ms, checkpoints;
    int64_t val_step; /* step of the newest evaluation; -1: none */
    double val_loss;
    int64_t val_right;
    struct dpt_eval_part eval; /* the finished part of an evaluation */
    int checkpoint_slot;
    /* The shadow that is rebuilt while the run trains; of 0 parts: none. */
    struct dpt_shard late;
    /* The rank's own shard after the formation; none for a handover rank. */
    struct dpt_shard own;
    struct dpt_shard held[DPT_MOVE_STATE_PARTS], wanted[DPT_MOVE_STATE_PARTS];
    /* Only in the second exchange: the hash of the weights and moments in each part that the rank
     * holds now, the loss scale of the next step, the account of the epoch, and the hash of
     * model.init_from (zero: not compared). */
    struct dpt_hash128 hash[DPT_MOVE_STATE_PARTS];
    struct dpt_scaler scaler;
    struct dpt_epoch epoch;
    struct dpt_hash128 origin;
};
enum { DPT_HANDSHAKE_BYTES = (31 + 6 * DPT_MOVE_STATE_PARTS) * 8 };

/* Packs the hello. Every value fits, and the bytes are the same on every machine. */
void dpt_hello_pack(const struct dpt_hello *hello, uint8_t buf[DPT_HANDSHAKE_BYTES]);

/* Unpacks a hello. Any bytes give one: the reader must check its values. */
struct dpt_hello dpt_hello_unpack(const uint8_t buf[DPT_HANDSHAKE_BYTES]);

#endif
