/* Carries out a pattern (worker/plan/pattern.h) of one rank over its communicator, on vectors of
 * floats in registered memory.
 *
 * A ring cuts each chunk into parts. Part k begins its first step when part k - 1 begins its
 * second, so that some parts are on their way while another is added:
 *
 *   turn       0   1   2   3   4   5
 *   part 0     s0  s1  s2
 *   part 1         s0  s1  s2
 *   part 2             s0  s1  s2
 *
 * In a turn a rank goes through the parts under way, the newest first: it ends the last step of a
 * part and begins the next one. So all ranks post in one order. At most DPT_PATTERN_RUN_PARTS parts
 * are under way; with more steps than that, parts go in groups. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_PATTERN_RUN_H
#define DPT_WORKER_STRATEGY_TRANSPORT_PATTERN_RUN_H

#include "kernels/ops.h"
#include "worker/comm/comm.h"
#include "worker/plan/pattern.h"

enum {
    DPT_PATTERN_RUN_PARTS = 32,
    DPT_PATTERN_RUN_PART_BYTES = 256 << 10 /* of a part, in training */
};

struct dpt_pattern_run;

struct dpt_pattern_run_spec {
    const struct dpt_pattern *pattern; /* of this rank or of all ranks; borrowed */
    int rank;
    int64_t numel_max;  /* of a vector */
    int64_t part_numel; /* of a part of a ring's chunk, about */
    /* The rank's values are in `from`, the result comes to `to`; equal: in place. A send-receive is
     * never in place. A reduce-scatter leaves the sum of chunk `rank` at the chunk's place in `to`,
     * and partial sums at the other places. Borrowed. */
    struct dpt_comm_mem *from, *to;
    /* dpt_pattern_run_staging() bytes for sums that arrive from other hosts; borrowed. */
    struct dpt_comm_mem *staging;
    const struct dpt_ops *ops;
    struct dpt_stream *stream; /* of the thread that calls dpt_pattern_run_once */
};

size_t dpt_pattern_run_staging(const struct dpt_pattern *pattern, int rank, int64_t numel_max,
                               int64_t part_numel);

DPT_MUST_USE enum dpt_status dpt_pattern_run_create(const struct dpt_pattern_run_spec *spec,
                                                    struct dpt_pattern_run **ret,
                                                    struct dpt_err *err);
void dpt_pattern_run_destroy(struct dpt_pattern_run **run);

/* One collective on the elements `range` of the memory, together with all ranks. Returns when the
 * result is in `to` and peers have taken everything that this rank sent. Allocates nothing. Called
 * by the communicator's owner. Errors are those of dpt_comm_poll. */
DPT_MUST_USE enum dpt_status dpt_pattern_run_once(struct dpt_pattern_run *run,
                                                  struct dpt_comm *comm, struct dpt_interval range,
                                                  struct dpt_err *err);

/* Bytes that this rank sends in one collective on `numel` elements. */
int64_t dpt_pattern_run_sent(const struct dpt_pattern_run *run, int64_t numel);

#endif
