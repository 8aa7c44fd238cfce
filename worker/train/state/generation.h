/* A generation: the plan as arrays and numbers, and the exchange of small messages between its
 * ranks. */
#ifndef DPT_WORKER_TRAIN_STATE_GENERATION_H
#define DPT_WORKER_TRAIN_STATE_GENERATION_H

#include "rendezvous/proto/message.h"
#include "worker/plan/step_list.h"
#include "worker/strategy/strategy.h"

struct generation {
    uint64_t number; /* 0: none */
    int rank, world_size, position, host, n_hosts;
    /* Ranks from n_trainers on are handover ranks: they hand over their state and train nothing. */
    int n_trainers;
    bool begun; /* dpt_strategy_begin_generation was called; never for a handover rank */
    bool ready; /* formed, and training has not begun */
    /* Too few nodes stay: the ranks save the held state and compute no step. */
    bool final_save;
    bool writes_log;
    struct generation_positions {
        int *rank, *host, *node, *rack; /* [world_size] */
    } of_position;
    int *host_of_rank, *node_of_rank; /* [world_size] */
    struct dpt_world world;           /* world of the ranks that train */
    struct dpt_comm_peer *peers;      /* [world_size - 1] */
    bool *takes_state;                /* [world_size], by rank */
    /* Slot -1: this rank writes no checkpoint. */
    int checkpoint_slot, checkpoint_writers;
    struct dpt_shard *shards;        /* [world_size] own shards of all ranks, by rank */
    struct dpt_shard *writer_shards; /* [checkpoint_writers] by slot */
    char attempt[2 * DPT_COMM_NONCE_BYTES + 1];
    uint64_t plan_hash;          /* hash of the plan's digest, compared in the first exchange */
    struct dpt_assignment slots; /* the slots of this rank */
    int slots_max;               /* largest number of slots of any rank */
    void *gathered;              /* [world_size x gathered_bytes], of generation_all_gather */
    size_t gathered_bytes;
    struct generation_redundancy {
        bool whole;      /* every part of the state is on at least two nodes */
        bool rebuilding; /* shadows are copied while steps are computed */
        bool then_whole; /* value of `whole` when the rebuilding has ended */
    } redundancy;
    struct generation_cause { /* for events.jsonl */
        char text[DPT_PROTO_TEXT_BYTES], kind[DPT_PROTO_NAME_BYTES];
        uint64_t detect_ms;
        int64_t steps_lost;
    } cause;
};

/* generation_alloc allocates the lists; it needs g->world_size and g->checkpoint_writers.
 * generation_alloc_gathered allocates g->gathered; it needs g->slots_max. */
DPT_MUST_USE enum dpt_status generation_alloc(struct generation *g, struct dpt_err *err);
DPT_MUST_USE enum dpt_status generation_alloc_gathered(struct generation *g, struct dpt_err *err);
/* Frees all this memory. g->number becomes 0. */
void generation_free(struct generation *g);

/* The all-gather of small messages of all ranks, handover ranks included. Until the next call
 * g->gathered has the `bytes` bytes of each rank, by rank; `bytes` is at most g->gathered_bytes.
 * Main thread. Waits for the communication thread and returns its errors. */
DPT_MUST_USE enum dpt_status generation_all_gather(struct generation *g,
                                                   struct dpt_comm_thread *thread, const void *mine,
                                                   size_t bytes, struct dpt_err *err);

/* The lowest rank that has the state before the formation fills it. */
int generation_state_source(const struct generation *g);

/* The redundancy as events.jsonl has it: whole, rebuilding or none. */
const char *generation_redundancy(const struct generation *g);

#endif
