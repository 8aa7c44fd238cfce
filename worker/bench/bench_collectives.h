/* Shared by the parts of dpt-bench collectives: the processes of the ranks and what they report. */
#ifndef DPT_WORKER_BENCH_BENCH_COLLECTIVES_H
#define DPT_WORKER_BENCH_BENCH_COLLECTIVES_H

#include "worker/bench/bench_allreduce.h"
#include "worker/plan/pattern.h"

enum { COLLECTIVES_SIZES_MAX = 48, COLLECTIVES_ROUNDS_MAX = 1000 };

/* One measurement: a size, out of place or in place. */
struct collectives_block {
    int size_index;
    bool in_place;
    int warmup, rounds;
};

/* In memory that parent and ranks share. */
struct collectives_shared {
    enum dpt_collective collective;
    enum dpt_algorithm algorithm;
    bool cuda; /* NCCL's own collectives between GPUs; `algorithm` is not used */
    int n_ranks, n_hosts;
    int mesh_max;             /* as cluster.mesh_max */
    enum dpt_encrypt encrypt; /* of connections between hosts */
    int n_sizes;
    int64_t numel[COLLECTIVES_SIZES_MAX]; /* of the vectors, ascending */
    int64_t part_numel;
    char shm_addr[AR_RANKS_MAX][DPT_COMM_ADDR_BYTES], tcp_addr[AR_RANKS_MAX][DPT_COMM_ADDR_BYTES];
    int listening[AR_RANKS_MAX];
    /* Of the last block. */
    double us[AR_RANKS_MAX][COLLECTIVES_ROUNDS_MAX];
    int64_t wrong[AR_RANKS_MAX]; /* elements */
};

/* Ranks of a bench are placed on hosts in order, evenly. */
int collectives_host(int rank, int n_ranks, int n_hosts);

/* True: ddp's reducer carries it out (worker/strategy/reduce/host_reducer.h). It has no form out of
 * place. */
bool collectives_by_reducer(const struct collectives_shared *shared);

/* Bytes of the largest vectors that all ranks together allocate. */
int64_t collectives_bytes(const struct collectives_shared *shared);

/* A rank's process. Reads blocks from `in` and answers each with a byte on `out`, until `in` ends.
 * Returns the exit code. */
int collectives_rank(struct collectives_shared *shared, int rank, int in, int out);

#endif
