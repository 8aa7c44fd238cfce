/* The clocks of the hosts of a generation, against rank 0's clock, for traces.
 *
 * Ranks that read one clock have one offset, which the lowest of them measures. It asks rank 0 for
 * its time, several times, and takes the answer with the shortest round trip: rank 0 read its clock
 * at some moment of that round trip, so the middle of the round trip is wrong by at most half of
 * it (D. Mills, RFC 5905, section 8: the clock filter). */
#ifndef DPT_WORKER_COMM_CLOCK_OFFSET_H
#define DPT_WORKER_COMM_CLOCK_OFFSET_H

#include "worker/comm/comm.h"

struct dpt_clock_spec {
    uint64_t clock;   /* ranks with equal values read one clock; 0: not known, equal to no other */
    bool wanted;      /* this rank uses the result */
    int64_t epoch_ns; /* time since 1970 minus the time of this rank's clock */
    int64_t (*now_ns)(void *ctx);
    void *ctx;
};

struct dpt_clock_offset {
    int64_t offset_ns; /* rank 0's clock minus this rank's clock */
    int64_t error_ns;  /* bound of the error of offset_ns; 0: rank 0 reads the same clock */
    int64_t epoch_ns;  /* epoch_ns of rank 0 */
};

/* All ranks of the communicator call this function, each on its owner's thread. Blocks for one
 * small all-gather; if some rank wants the result and some rank has another clock than rank 0, also
 * for DPT_CLOCK_ROUNDS round trips to rank 0 and another small all-gather. If no rank wants the
 * result, *ret has offset 0 and this rank's epoch. Errors are the communicator's. */
enum { DPT_CLOCK_ROUNDS = 8 };
DPT_MUST_USE enum dpt_status dpt_comm_clock_offset(struct dpt_comm *comm,
                                                   const struct dpt_clock_spec *spec,
                                                   struct dpt_clock_offset *ret,
                                                   struct dpt_err *err);

#endif
