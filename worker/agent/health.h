/* The health check of this machine: memory, and the rate and bits of products on each core.
 *
 * Every core that this process may use multiplies the same matrices (health_product.h) with the
 * kernels of training, in a thread that is bound to it, for DPT_HEALTH_CORE_NS of its time. A core
 * is sound if each product has the right values where they can be known, and all products have the
 * same bits. GPUs are not tested: the agent opens none. */
#ifndef DPT_WORKER_AGENT_HEALTH_H
#define DPT_WORKER_AGENT_HEALTH_H

#include "base/err.h"
#include "rendezvous/proto/health.h"

enum {
    DPT_HEALTH_THREADS_MAX = 64,  /* cores that are tested at a time */
    DPT_HEALTH_CORE_NS = 3000000, /* of a core's time, or DPT_HEALTH_ROUNDS_MIN products */
    DPT_HEALTH_CORE_MS_MAX = 300, /* after this time a core that others use makes no more */
    DPT_HEALTH_ROUNDS_MIN = 2
};

/* Checks this machine. ret_fault: "", or one line that names the core that computes wrongly, and
 * what to do. Round_trip_us is not known here. Errors: DPT_ENOMEM, DPT_EIO: the check could not be
 * made. Blocks for some ms; the threads that it starts have ended when it returns. */
DPT_MUST_USE enum dpt_status dpt_health_check(struct dpt_health *ret,
                                              char ret_fault[DPT_HEALTH_FAULT_BYTES],
                                              struct dpt_err *err);

#endif
