/* The nodes of a run, as its server lists them, for `dpt-doctor net --rdzv-endpoint`. */
#ifndef DPT_WORKER_DOCTOR_RUN_NODES_H
#define DPT_WORKER_DOCTOR_RUN_NODES_H

#include "rendezvous/proto/message.h"
#include "worker/doctor/args.h"
#include "worker/doctor/matrix.h"

struct dpt_run_node {
    char node[DPT_PROTO_NAME_BYTES], host[DPT_PROTO_NAME_BYTES];
    char address[DPT_PROTO_ADDR_BYTES]; /* numeric; "": `why` says why it has none */
    char why[DPT_MATRIX_WHY_BYTES];
};

struct dpt_run_nodes {
    char run[DPT_PROTO_NAME_BYTES];
    int n;
    struct dpt_run_node node[DPT_MATRIX_NODES_MAX];
};

/* Takes the nodes of a server's reply, without ids that are denied. A node whose address is not
 * known yet, or is no numeric address, is taken without one: a node may report any text, and an
 * address becomes a word of a command. DPT_EREFUSED: more nodes than DPT_MATRIX_NODES_MAX. Pure. */
DPT_MUST_USE enum dpt_status dpt_run_nodes_take(const Dpt__ControlReply *reply,
                                                struct dpt_run_nodes *ret, struct dpt_err *err);

/* run_nodes_ask.c. Asks the server args->endpoint for the nodes of args->run, "": of its only run.
 * DPT_ENOENT: no such run; errors of dpt_control_open and dpt_control_ask. */
DPT_MUST_USE enum dpt_status dpt_run_nodes_ask(const struct dpt_doctor_args *args,
                                               struct dpt_run_nodes *ret, struct dpt_err *err);

#endif
