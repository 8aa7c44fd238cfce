/* Shared by the parts of dpt-bench canonical: the parent's requests and the ranks' answers. */
#ifndef DPT_WORKER_BENCH_BENCH_CANONICAL_H
#define DPT_WORKER_BENCH_BENCH_CANONICAL_H

#include "base/config.h"
#include "worker/bench/bench_allreduce.h"

enum { BC_RANKS_MAX = 8, BC_STEPS_MAX = 256 };

/* In memory that parent and ranks share. */
struct canonical_shared {
    struct dpt_config config;
    int n_ranks;
    char shm_addr[BC_RANKS_MAX][DPT_COMM_ADDR_BYTES];
    int listening[BC_RANKS_MAX];
    struct canonical_answer {
        double wall_ms, cpu_ms; /* wall time of the step; CPU time of this process */
        uint64_t bytes_sent;
        int64_t gradient_bytes;
        int gradient_buffers;
        double loss;
    } answer[BC_RANKS_MAX]; /* of the last step */
};

/* A rank's process. Reads an enum dpt_reduction from `in`, does one step with this reduction, and
 * writes a byte to `out`; repeats this until `in` ends. Returns the exit code. */
int canonical_rank(struct canonical_shared *shared, int rank, int in, int out);

#endif
