/* A backend in one process behind the API of comm.h, with injected faults, for tests of the
 * communicator and of the code above it. Ranks are threads; each has a listener of the simulated
 * network and then calls dpt_comm_create as with any other backend.
 *
 * Differences from the real backends: data that is received with staging is always copied, because
 * a simulated death may free the sender's memory; LEND without staging reads the sender's memory in
 * place. Any thread may call the functions below. */
#ifndef DPT_TESTS_WORKER_COMM_SIM_NET_H
#define DPT_TESTS_WORKER_COMM_SIM_NET_H

#include "worker/comm/comm.h"

enum { DPT_SIM_NODES_MAX = 64 };

struct dpt_sim_net;

DPT_MUST_USE enum dpt_status dpt_sim_net_create(struct dpt_sim_net **ret, struct dpt_err *err);
/* Call it after all listeners of the network are destroyed. */
void dpt_sim_net_destroy(struct dpt_sim_net **net);

/* Creates the listener of process `node` (below DPT_SIM_NODES_MAX). Addresses are published and
 * memory is registered as with other backends. To start a killed node again as a new process,
 * destroy its listener and create a new one. */
DPT_MUST_USE enum dpt_status dpt_sim_listener_create(struct dpt_sim_net *net, int node,
                                                     struct dpt_comm_listener **ret,
                                                     struct dpt_err *err);

/* While `on`, nothing from node `from` arrives at node `to`; both stay connected. */
void dpt_sim_stall(struct dpt_sim_net *net, int from, int to, bool on);

enum dpt_sim_fault { DPT_SIM_FAULT_KILL, DPT_SIM_FAULT_ABORT };

/* The fault happens at the node's call number `call` (counted from 0 over create, exchange and
 * poll, see dpt_sim_calls). KILL: the node dies; its later calls fail with DPT_EABORTED, and those
 * of its peers with DPT_EPEER. ABORT: its communicator's abort flag is set; during create, create
 * returns DPT_EABORTED. One fault for each node. */
void dpt_sim_fault_at(struct dpt_sim_net *net, int node, uint64_t call, enum dpt_sim_fault fault);

/* The number of calls that the node has made. */
uint64_t dpt_sim_calls(struct dpt_sim_net *net, int node);

#endif
