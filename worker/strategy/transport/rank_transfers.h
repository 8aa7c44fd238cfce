/* One rank's part in the canonical all-reduce of a generation (worker/plan/reduce_transfers.h): its
 * transfers in each stage, and the pieces that it adds. They are the same for every range that is
 * reduced; only the elements differ. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_RANK_TRANSFERS_H
#define DPT_WORKER_STRATEGY_TRANSPORT_RANK_TRANSFERS_H

#include "worker/comm/comm.h"
#include "worker/plan/reduce_transfers.h"

enum dpt_stage { DPT_STAGE_LOCAL, DPT_STAGE_CROSS, DPT_STAGE_GATHER, DPT_STAGE_COUNT };

/* One transfer of a stage as this rank sees it. */
struct dpt_rank_transfer {
    enum dpt_comm_dir dir;
    int peer;
    int piece;
    int buffer; /* lane buffer that is sent or received into; -1: lent by the peer */
    bool write; /* the rank that borrows writes the sum to the lent memory */
    bool far;   /* the peer is of another host */
};

/* A piece that this rank adds in a stage. Its parts are in lane order; each part is in a buffer of
 * this rank or is lent by a transfer of the stage. */
struct dpt_piece_sum {
    int piece;
    int n_parts;
    struct dpt_part_source {
        struct dpt_range node;
        int buffer; /* this rank's lane buffer; -1: lent by `transfer` */
        int transfer;
    } * parts;
    int n_out;
    struct dpt_range out[DPT_COVER_MAX];
};

struct dpt_stage_transfers {
    int n_transfers;
    struct dpt_rank_transfer *transfers;
    int n_sums;
    struct dpt_piece_sum *sums;
};

/* With several hosts LOCAL and CROSS send and lend subtree sums to the rank that adds them, and
 * GATHER sends the whole sum to all ranks. With one host the rank that adds a piece borrows the
 * parts and writes the sum into the memory that it borrowed. Then LOCAL has the lends and GATHER
 * has the sends, both are posted together, and a send is done when the sum is in its memory. */
struct dpt_rank_transfers {
    struct dpt_stage_transfers stage[DPT_STAGE_COUNT];
    bool cross; /* the world has several hosts; equal on all ranks, so that all post in one order */
};

/* Plans the transfers. The caller calls dpt_rank_transfers_fini also after a failure. A world of
 * one rank has no transfers. Without `gather` each sum stays with the owner of its piece: GATHER is
 * empty, and within one host no rank writes to another's memory. */
DPT_MUST_USE enum dpt_status dpt_rank_transfers_init(struct dpt_rank_transfers *transfers,
                                                     const struct dpt_world *world, int rank,
                                                     bool gather, struct dpt_err *err);
void dpt_rank_transfers_fini(struct dpt_rank_transfers *transfers);

#endif
