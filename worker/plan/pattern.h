/* Patterns of collective operations: which rank sends which chunk to which rank in each step.
 *
 * A reduce-scatter, an all-gather and an all-reduce work on a vector of one chunk for each rank:
 * chunk r ends at rank r, begins there, or passes it. A broadcast and a send-receive have one
 * chunk.
 *
 *   direct  Each rank sends to each rank that needs the chunk. Sums are those of
 * reduce_transfers.h: in the order of the lanes' tree, inside hosts first. ring    Each rank sends
 * to the next one only. An all-reduce is a reduce-scatter of n-1 steps and an all-gather of n-1
 * steps (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
 * workstations", JPDC 69(2), 2009). The order in which a chunk is added begins at another rank for
 * each chunk, so a ring cannot give canonical sums.
 *
 * Pure. */
#ifndef DPT_WORKER_PLAN_PATTERN_H
#define DPT_WORKER_PLAN_PATTERN_H

#include "base/err.h"
#include "checkpoint/layout/layout.h"
#include "worker/plan/world.h"

#include <stdbool.h>
#include <stdint.h>

enum dpt_collective {
    DPT_COLLECTIVE_ALL_REDUCE,
    DPT_COLLECTIVE_ALL_GATHER,
    DPT_COLLECTIVE_REDUCE_SCATTER,
    DPT_COLLECTIVE_BROADCAST,
    DPT_COLLECTIVE_SEND_RECV, /* each rank sends to the next position */
    DPT_COLLECTIVE_COUNT
};
enum dpt_algorithm { DPT_ALGORITHM_DIRECT, DPT_ALGORITHM_RING, DPT_ALGORITHM_COUNT };

/* One chunk from rank to rank. All moves of a step happen at once: what they send is the content
 * before the step. */
struct dpt_move {
    int from, to, chunk;
    bool add; /* the receiver adds what arrives; false: it replaces what it has */
    /* The sum over these lanes is sent. Empty: everything that the sender has. */
    struct dpt_range lanes;
};

struct dpt_pattern_spec {
    enum dpt_collective collective;
    enum dpt_algorithm algorithm;
    const struct dpt_world *world; /* borrowed for the pattern's life */
    int root;                      /* rank, of a broadcast */
    /* True: the list has the moves from and to `rank` alone. */
    bool of_rank;
    int rank;
};

/* The moves of step s are moves[first_move[s]] up to moves[first_move[s + 1]], in an order that is
 * the same on all ranks. A world of one rank has no steps. */
struct dpt_pattern {
    struct dpt_pattern_spec spec;
    int n_ranks, n_chunks, n_steps;
    struct dpt_move *moves;
    int *first_move; /* [n_steps + 1] */
};

/* A ring's steps: 2(n-1) for an all-reduce, 1 for a send-receive, n-1 for the others. The caller
 * calls dpt_pattern_fini also after a failure. */
DPT_MUST_USE enum dpt_status dpt_pattern_init(struct dpt_pattern *pattern,
                                              const struct dpt_pattern_spec *spec,
                                              struct dpt_err *err);
void dpt_pattern_fini(struct dpt_pattern *pattern);

/* Chunk `chunk` of `n_chunks` of a vector of `numel` elements: sizes differ by at most one, larger
 * chunks first. It is cut into `n_parts`, which go through the steps independently; the cuts are
 * on multiples of 16 elements. */
struct dpt_interval dpt_pattern_part(int64_t numel, int n_chunks, int chunk, int n_parts, int part);

/* True: at the end the rank must have the chunk's result. */
bool dpt_pattern_needs(const struct dpt_pattern *pattern, int rank, int chunk);

/* The chunks that a rank sends in all steps together. */
int dpt_pattern_sends(const struct dpt_pattern *pattern, int rank);

/* The state of a collective of at most DPT_PATTERN_LANES_MAX lanes: held[rank * n_chunks + chunk]
 * is a set of lanes (bit l: lane l), whose sum the rank has in its memory for this chunk; 0:
 * nothing. Lanes stand for the ranks that own them where nothing is added. The pattern has the
 * moves of all ranks. */
enum { DPT_PATTERN_LANES_MAX = 64 };

/* The state before step 0. */
void dpt_pattern_start(const struct dpt_pattern *pattern, uint64_t *held);
/* Carries out a step. False: a sender does not have what it sends, or a lane would be added twice;
 * `held` is then undefined. `before` is working memory of the size of `held`. */
bool dpt_pattern_apply(const struct dpt_pattern *pattern, int step, uint64_t *held,
                       uint64_t *before);
/* What the rank must have of the chunk at the end; 0: anything. */
uint64_t dpt_pattern_goal(const struct dpt_pattern *pattern, int rank, int chunk);

/* "all_reduce"; "direct". */
const char *dpt_collective_name(enum dpt_collective collective);
const char *dpt_algorithm_name(enum dpt_algorithm algorithm);

#endif
