/* How many threads each rank computes with: the cores of a host, assigned to the ranks of a
 * generation that are on it. Pure. */
#ifndef DPT_WORKER_PLAN_THREADS_H
#define DPT_WORKER_PLAN_THREADS_H

#include <stdint.h>

/* What a rank may compute on and was asked to. */
struct dpt_rank_cores {
    int host;    /* as in dpt_world.host_of_position */
    uint64_t id; /* equal for ranks of a host that share the same cores (base/cores.h) */
    int cores;   /* how many those are */
    int asked;   /* threads that its config asks for; 0: its share of the cores */
};

/* Threads of rank `rank` out of `ranks` [n, by rank]: what it was asked for; else its share, nearly
 * equal and the larger ones to the lower ranks, of the cores that it has in common with all ranks
 * of its host that have the same ones, asked or not. From 1 to `most`. */
int dpt_rank_threads(const struct dpt_rank_cores *ranks, int n, int rank, int most);

/* Ranks that the cores of rank `rank` are assigned to, itself counted. */
int dpt_rank_sharers(const struct dpt_rank_cores *ranks, int n, int rank);

/* Threads of all ranks that have the cores of `own`, which need not be one of them. */
int dpt_near_threads(const struct dpt_rank_cores *ranks, int n, const struct dpt_rank_cores *own,
                     int most);

#endif
