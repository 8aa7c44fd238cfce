/* A modelled rank process of dpt-bench rdzv. It follows AgentToRank as a rank process does, without
 * computing: it quiesces, becomes READY and runs at once. While it runs it completes a step every
 * RDZV_STEP_MS. Pure. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_RANK_H
#define DPT_WORKER_BENCH_BENCH_RDZV_RANK_H

#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stdint.h>

enum { RDZV_STEP_MS = 100 };

struct rdzv_rank {
    uint32_t spawn; /* 0: there is no process yet */
    Dpt__RankPhase phase;
    uint64_t generation, ran_generation, failed_generation;
    int64_t step;  /* completed when it quiesced or became READY; -1: no state */
    int64_t go_ms; /* when it began to run */
    int64_t reported_ms;
    int32_t suspect, plan_rank; /* -1: none */
    uint32_t world;             /* of its plan */
    bool due;                   /* a report is due */
    bool killed;                /* its agent is still to hear of its end */
};

/* Begins process `spawn`. `ready`: it has started; else it stays STARTING. */
void rdzv_rank_start(struct rdzv_rank *rank, uint32_t spawn, bool ready);
/* A process that is STARTING has started. */
void rdzv_rank_make_ready(struct rdzv_rank *rank);
/* While the rank runs: the data plane has failed, because of rank `suspect`. */
void rdzv_rank_break(struct rdzv_rank *rank, int32_t suspect);

/* Carries out a command of its agent. Every command but those of a run's end. */
void rdzv_rank_command(struct rdzv_rank *rank, uint32_t local_rank, const Dpt__AgentToRank *message,
                       int64_t now_ms);

/* A report, with memory for what it points to. Points into itself: do not copy. */
struct rdzv_rank_report {
    Dpt__RankToAgent message;
    Dpt__RankState state;
    char shm_addr[DPT_PROTO_ADDR_BYTES], tcp_addr[DPT_PROTO_ADDR_BYTES];
};
/* Fills `ret` with the report of this rank of node `node`. */
void rdzv_rank_print(const struct rdzv_rank *rank, int node, uint32_t local_rank, int64_t now_ms,
                     struct rdzv_rank_report *ret);

#endif
