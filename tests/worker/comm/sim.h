/* An in-process backend behind the API of comm.h, with injected faults, for tests of the
 * communicator and of what is above it: ranks are threads of one process, each with a listener of
 * the simulated network; dpt_comm_create and all that follows is then as usual.
 *
 * Differences from the real backends: what is received with staging is always copied (so that a
 * simulated death may take memory away), LEND without staging reads the sender's memory in place.
 * Every function here may be called from any thread. */
#ifndef DPT_TESTS_WORKER_COMM_SIM_H
#define DPT_TESTS_WORKER_COMM_SIM_H

#include "worker/comm/comm.h"

enum { DPT_SIM_NODES_MAX = 64 };

struct dpt_sim_net;

DPT_MUST_USE enum dpt_status dpt_sim_net_create(struct dpt_sim_net **ret, struct dpt_err *err);
/* After every listener of it is destroyed. */
void dpt_sim_net_destroy(struct dpt_sim_net **net);

/* The listener of process `node` (below DPT_SIM_NODES_MAX). Its addresses are published and its
 * memory registered as usual. A killed node comes back to life, as a new process, when its former
 * listener is destroyed and a new one is created. */
DPT_MUST_USE enum dpt_status dpt_sim_listener_create(struct dpt_sim_net *net, int node,
                                                     struct dpt_comm_listener **ret,
                                                     struct dpt_err *err);

/* While on, nothing that `from` sends arrives at `to`; both stay connected. */
void dpt_sim_stall(struct dpt_sim_net *net, int from, int to, bool on);

enum dpt_sim_fault { DPT_SIM_FAULT_KILL, DPT_SIM_FAULT_ABORT };

/* At the node's call number `call` (counted from 0 over create, exchange and poll, see
 * dpt_sim_calls) the fault happens: death (its calls fail with DPT_EABORTED from now on, its peers
 * lose it: DPT_EPEER), or its communicator's abort flag is set (during create: it returns
 * DPT_EABORTED). One fault a node. */
void dpt_sim_fault_at(struct dpt_sim_net *net, int node, uint64_t call, enum dpt_sim_fault fault);

/* Calls that the node has made so far. */
uint64_t dpt_sim_calls(struct dpt_sim_net *net, int node);

#endif
