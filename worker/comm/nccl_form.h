/* Messages between ranks that create the GPU's communicators, and the decisions that follow from
 * them. Pure. The messages travel over the control (nccl_comm.h).
 *
 * First each rank sends an offer: the communicator that it kept from the last generation, and its
 * groups. From all offers every rank derives whether the kept communicator of the world is shrunk
 * or a new one is created. A new communicator needs an id: the first rank makes the id and sends it
 * to all. At the end each rank sends its verdict (nccl_open.c). */
#ifndef DPT_WORKER_COMM_NCCL_FORM_H
#define DPT_WORKER_COMM_NCCL_FORM_H

#include "worker/comm/comm.h"
#include "worker/comm/nccl_calls.h"

enum {
    DPT_NCCL_SPLITS_MAX = 4, /* groups beside the world */
    DPT_NCCL_OFFER_BYTES = 40 + 8 * DPT_NCCL_SPLITS_MAX,
    DPT_NCCL_ID_MESSAGE_BYTES = 32 + DPT_NCCL_ID_BYTES
};

/* A rank's place in a split: ranks of one color are one group, ordered by `key`, then by rank in
 * the world's communicator. */
struct dpt_nccl_split_of {
    int color, key; /* >= 0 */
};

struct dpt_nccl_offer {
    uint64_t generation; /* the generation for which communicators are to be created */
    /* The number of the world's communicator that this rank keeps REVOKED, equal on all ranks of
     * that communicator. 0: the rank keeps none, or the library cannot shrink. */
    uint64_t kept;
    int kept_rank, kept_size;
    int n_splits;
    struct dpt_nccl_split_of splits[DPT_NCCL_SPLITS_MAX];
};

void dpt_nccl_offer_pack(const struct dpt_nccl_offer *offer, uint8_t ret[DPT_NCCL_OFFER_BYTES]);
/* DPT_EPROTO: the bytes are not an offer for this generation, or have impossible values. */
DPT_MUST_USE enum dpt_status dpt_nccl_offer_unpack(const uint8_t bytes[DPT_NCCL_OFFER_BYTES],
                                                   uint64_t generation, struct dpt_nccl_offer *ret,
                                                   struct dpt_err *err);

/* The number by which an offer names the communicator that is built with this generation and nonce;
 * never 0. */
uint64_t dpt_nccl_kept_number(uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES]);

/* An id, bound to the generation and nonce for which it was made by a code. */
void dpt_nccl_id_pack(uint64_t generation, const uint8_t nonce[DPT_COMM_NONCE_BYTES],
                      const uint8_t id[DPT_NCCL_ID_BYTES], uint8_t ret[DPT_NCCL_ID_MESSAGE_BYTES]);
/* DPT_EPROTO: the id was made for another generation, or the bytes are not an id. */
DPT_MUST_USE enum dpt_status dpt_nccl_id_unpack(const uint8_t bytes[DPT_NCCL_ID_MESSAGE_BYTES],
                                                uint64_t generation,
                                                const uint8_t nonce[DPT_COMM_NONCE_BYTES],
                                                uint8_t ret[DPT_NCCL_ID_BYTES],
                                                struct dpt_err *err);

/* How the world's communicator is built. */
struct dpt_nccl_world {
    bool shrink;
    int n_excluded;
    int excluded[DPT_COMM_WORLD_MAX]; /* shrink: missing ranks of the kept one, ascending */
    int order[DPT_COMM_WORLD_MAX];    /* rank of the run → rank in the communicator */
};

/* Chooses a shrink if all ranks kept the same communicator and a rank of that communicator is
 * missing. Otherwise chooses a new communicator, in the order of ranks. `offers`: [size], by rank.
 * The result is the same on every rank. */
void dpt_nccl_plan_world(const struct dpt_nccl_offer *offers, int size, bool may_shrink,
                         struct dpt_nccl_world *ret);

/* Fills the order of split `s`: rank of the run → rank in the communicator of the group of `rank`;
 * -1: outside that group. Returns the group's size. */
int dpt_nccl_plan_split(const struct dpt_nccl_offer *offers, int size,
                        const struct dpt_nccl_world *world, int s, int rank,
                        int ret_order[DPT_COMM_WORLD_MAX]);

#endif
