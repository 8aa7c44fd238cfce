/* The command net: a node that listens, and the measurement of all pairs. */
#ifndef DPT_WORKER_DOCTOR_NET_H
#define DPT_WORKER_DOCTOR_NET_H

#include "worker/doctor/args.h"
#include "worker/doctor/matrix.h"

/* Serves measurements until its time is over; one connection after the other. Prints where it
 * listens. A connection that fails is reported on the standard error, and the node goes on. */
DPT_MUST_USE enum dpt_status dpt_net_listen(const struct dpt_doctor_args *args,
                                            struct dpt_err *err);

/* Measures every pair of args->peer in both directions, one after the other. A node that does not
 * answer and a pair that fails are in `ret` and are no error. A node that does not answer is asked
 * once. */
void dpt_net_measure(const struct dpt_doctor_args *args, struct dpt_matrix *ret);

#endif
