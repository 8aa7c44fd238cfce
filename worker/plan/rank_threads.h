/* The number of compute threads of each rank: the cores of a host are divided among the ranks of a
 * generation on that host. Pure. */
#ifndef DPT_WORKER_PLAN_RANK_THREADS_H
#define DPT_WORKER_PLAN_RANK_THREADS_H

#include <stdint.h>

/* The cores that a rank may use, and the threads that its config asks for. */
struct dpt_rank_cores {
    int host;    /* as in dpt_world.host_of_position */
    uint64_t id; /* equal for ranks of a host that share the same cores (base/cores.h) */
    int cores;   /* their number */
    int asked;   /* threads that its config asks for; 0: its share of the cores */
};

/* Threads of rank `rank` of `ranks` [n, by rank], from 1 to `most`. It is the number that the
 * rank's config asks for. If the config asks for none, it is the rank's equal share of its cores
 * among all ranks that have these cores, also ranks whose config asks for a number. Shares differ
 * by at most one, and lower ranks have the larger shares. */
int dpt_rank_threads(const struct dpt_rank_cores *ranks, int n, int rank, int most);

/* The number of ranks in [0, end) that have the cores of rank `rank`. */
int dpt_rank_threads_sharers(const struct dpt_rank_cores *ranks, int end, int rank);

/* Threads of all ranks that have the cores of `own`. `own` need not be one of `ranks`. */
int dpt_rank_threads_near(const struct dpt_rank_cores *ranks, int n,
                          const struct dpt_rank_cores *own, int most);

#endif
