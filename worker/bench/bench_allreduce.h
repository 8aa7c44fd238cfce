/* Shared by the parts of dpt-bench allreduce: the processes of our ranks and of a peer library. */
#ifndef DPT_WORKER_BENCH_BENCH_ALLREDUCE_H
#define DPT_WORKER_BENCH_BENCH_ALLREDUCE_H

#include "worker/bench/bench.h"
#include "worker/comm/comm.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { AR_RANKS_MAX = 16, AR_SIZES_MAX = DPT_BENCH_LIST_MAX, AR_ROUNDS_MAX = 4096 };

/* One block of all-reduces of one size. */
struct allreduce_block {
    int size_index, warmup, rounds;
    /* True: the main thread hands over the buckets and waits, as in a step; the times are its own.
     * False: the communication thread is timed. */
    bool by_main;
    /* True: before each round every rank writes its whole vector anew, as a backward pass does.
     * False: the vector stays in the caches after the last round. Not with by_main. */
    bool fresh;
};

/* In memory that parent and ranks share. */
struct allreduce_shared {
    int n_ranks, n_sizes;
    size_t sizes[AR_SIZES_MAX];
    char shm_addr[AR_RANKS_MAX][DPT_COMM_ADDR_BYTES];
    int listening[AR_RANKS_MAX];
    double us[AR_ROUNDS_MAX];          /* of the last block, on rank 0 */
    uint64_t bytes_sent[AR_RANKS_MAX]; /* in one all-reduce of the last block */
};

/* A rank's process. Reads blocks from `in` and answers each with a byte on `out`, until `in` ends.
 * Returns the exit code. */
int allreduce_rank(struct allreduce_shared *shared, int rank, int in, int out);

/* The processes of one side, with a pipe to each process and a pipe from it. */
struct allreduce_team {
    int n;
    pid_t pids[AR_RANKS_MAX];
    int to[AR_RANKS_MAX], from[AR_RANKS_MAX];
};

/* Starts n processes that die with this one. Each calls `body` and exits with its result. */
typedef int (*allreduce_body)(void *ctx, int rank, int in, int out);
bool allreduce_team_start(struct allreduce_team *team, int n, allreduce_body body, void *ctx);
/* Closes the input of the processes and waits for their end; false: one of them failed. */
bool allreduce_team_end(struct allreduce_team *team);

/* Gloo, as dpt-peer-gloo of this program's folder. */
extern const char *const allreduce_gloo_algorithms[];
enum { AR_GLOO_ALGORITHMS = 6 };
bool allreduce_gloo_start(struct allreduce_team *team, int n, const char *folder);
/* True: dpt-peer-gloo is there. */
bool allreduce_gloo_exists(void);
/* Runs a block on every rank; false: it has failed, and the reason is printed. */
bool allreduce_gloo_block(struct allreduce_team *team, const char *algorithm, size_t bytes,
                          const struct allreduce_block *block, double *ret_us);

#endif
