/* The command net: a node that listens, and the measurement of all pairs. */
#ifndef DPT_WORKER_DOCTOR_NET_H
#define DPT_WORKER_DOCTOR_NET_H

#include "worker/doctor/args.h"
#include "worker/doctor/matrix.h"
#include "worker/doctor/run_nodes.h"

/* The line of a node that listens begins with these words and its port (remote_listener.h). */
#define DPT_NET_LISTENS "dpt-doctor listens on port "

/* Serves measurements until its time is over or, with args->until_eof, the standard input ends; one
 * connection after the other. Prints where it listens. A connection that fails is reported on the
 * standard error, and the node goes on. */
DPT_MUST_USE enum dpt_status dpt_net_listen(const struct dpt_doctor_args *args,
                                            struct dpt_err *err);

/* The nodes that are measured, each with its dpt-doctor that listens. */
struct dpt_net_nodes {
    int n;
    struct dpt_net_node {
        char endpoint[DPT_MATRIX_NAME_BYTES]; /* HOST:PORT; "": none, and `why` says why */
        char name[DPT_MATRIX_NAME_BYTES];     /* "": the endpoint and the host's name */
        char why[DPT_MATRIX_WHY_BYTES];
    } node[DPT_MATRIX_NODES_MAX];
};

/* Measures every pair in both directions, one after the other. A node that does not answer and a
 * pair that fails are in `ret` and are no error. A node that does not answer is asked once. */
void dpt_net_measure(const struct dpt_doctor_args *args, const struct dpt_net_nodes *nodes,
                     struct dpt_matrix *ret);
/* The same for args->peer. */
void dpt_net_measure_peers(const struct dpt_doctor_args *args, struct dpt_matrix *ret);

/* net_run.c. Lists the nodes of a run with the port args->peer_port of their addresses. Nodes of
 * one address are measured as one, with the names of all. Pure. */
void dpt_net_list_run(const struct dpt_doctor_args *args, const struct dpt_run_nodes *run,
                      struct dpt_net_nodes *ret);
/* Measures the nodes of a run. With args->shell it starts a dpt-doctor for each node, which ends
 * after the measurement; else one listens at args->peer_port of each address. DPT_ENOENT: there is
 * no pair. */
DPT_MUST_USE enum dpt_status dpt_net_measure_run(const struct dpt_doctor_args *args,
                                                 const struct dpt_run_nodes *run,
                                                 struct dpt_matrix *ret, struct dpt_err *err);

#endif
