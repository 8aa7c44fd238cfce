/* What the parts of dpt-bench allreduce share: the ranks' processes, and those of a peer library.
 */
#ifndef DPT_WORKER_BENCH_BENCH_ALLREDUCE_H
#define DPT_WORKER_BENCH_BENCH_ALLREDUCE_H

#include "worker/comm/comm.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { AR_RANKS_MAX = 16, AR_SIZES_MAX = 16, AR_ROUNDS_MAX = 4096 };

/* One block of all-reduces of one size. */
struct ar_block {
    int size_index, warmup, rounds;
    /* Handed over by the main thread and waited for, as a step does; else timed on the
     * communication thread. */
    bool by_main;
    /* Before each round every rank writes its whole vector anew, as backward does; else it stays in
     * the caches as the last round left it. Not with by_main. */
    bool fresh;
};

/* In memory that parent and ranks share. */
struct ar_shared {
    int n_ranks, n_sizes;
    size_t sizes[AR_SIZES_MAX];
    char shm_addr[AR_RANKS_MAX][DPT_COMM_ADDR_BYTES];
    int listening[AR_RANKS_MAX];
    double us[AR_ROUNDS_MAX];          /* of the last block, on rank 0 */
    uint64_t bytes_sent[AR_RANKS_MAX]; /* in one all-reduce of the last block */
};

/* A rank's process: reads blocks from `in`, answers each with a byte on `out`, ends at the end of
 * `in`. Returns the exit code. */
int ar_rank(struct ar_shared *shared, int rank, int in, int out);

/* The processes of one side, each with a pipe to it and one from it. */
struct ar_team {
    int n;
    pid_t pids[AR_RANKS_MAX];
    int to[AR_RANKS_MAX], from[AR_RANKS_MAX];
};

/* Starts n processes that end with this one. In each, `body` runs and gives the exit code. */
typedef int (*ar_body)(void *ctx, int rank, int in, int out);
bool ar_team_start(struct ar_team *team, int n, ar_body body, void *ctx);
/* Ends their input and waits for them; false if one failed. */
bool ar_team_end(struct ar_team *team);

/* Gloo, as dpt-peer-gloo of this program's folder. */
extern const char *const ar_gloo_algorithms[];
enum { AR_GLOO_ALGORITHMS = 6 };
bool ar_gloo_start(struct ar_team *team, int n, const char *folder);
/* True when the program is there. */
bool ar_gloo_exists(void);
/* Runs a block with every rank; false with the reason printed. */
bool ar_gloo_block(struct ar_team *team, const char *algorithm, size_t bytes,
                   const struct ar_block *block, double *ret_us);

#endif
