/* The part of the state that a rank holds, described as checkpoints do: as pieces of tensors. */
#ifndef DPT_WORKER_TRAIN_SAVE_STATE_PIECES_H
#define DPT_WORKER_TRAIN_SAVE_STATE_PIECES_H

#include "checkpoint/checkpoint.h"
#include "checkpoint/layout/writer_share.h"
#include "worker/model/model.h"
#include "worker/strategy/strategy.h"

/* The model's parameters as checkpoints and the weights hash know them: names and shapes without
 * values. */
struct dpt_state_tensors {
    struct dpt_checkpoint_tensor *tensor;
    int64_t *offset; /* offset of each tensor in the flat vector */
    int n;
    const struct dpt_grid *grid; /* grid of the flat vector */
};

/* Borrows `grid` and the model's names. `ret` needs dpt_state_tensors_fini after a failure too. */
DPT_MUST_USE enum dpt_status dpt_state_tensors_init(const struct dpt_model *model,
                                                    const struct dpt_grid *grid,
                                                    struct dpt_state_tensors *ret,
                                                    struct dpt_err *err);
void dpt_state_tensors_fini(struct dpt_state_tensors *tensors);

/* Zero-initialise. Owns the list, but not the values. */
struct dpt_state_pieces {
    struct dpt_checkpoint_piece *piece;
    int n;
};

void dpt_state_pieces_fini(struct dpt_state_pieces *pieces);

/* Lists all elements of the part, at their addresses in the part's memory; addresses in vectors
 * that the part does not hold are NULL. Replaces the pieces in `ret`. */
DPT_MUST_USE enum dpt_status dpt_state_pieces_of_part(const struct dpt_state_tensors *tensors,
                                                      const struct dpt_state_part *part,
                                                      struct dpt_state_pieces *ret,
                                                      struct dpt_err *err);

/* The writers of a checkpoint. Writer i of n holds shard shards[i]. */
struct dpt_piece_writers {
    const struct dpt_shard *shards;
    int n, writer; /* this rank's number */
};

/* Lists the pieces of the part that this writer writes (dpt_writer_share,
 * dpt_checkpoint_divide). */
DPT_MUST_USE enum dpt_status dpt_state_pieces_to_write(const struct dpt_state_tensors *tensors,
                                                       const struct dpt_state_part *part,
                                                       const struct dpt_piece_writers *writers,
                                                       struct dpt_state_pieces *ret,
                                                       struct dpt_err *err);

#endif
