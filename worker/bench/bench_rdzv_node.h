/* A node of dpt-bench rdzv: the real agent core and the real connection, with modelled ranks
 * (bench_rdzv_rank.h). */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_NODE_H
#define DPT_WORKER_BENCH_BENCH_RDZV_NODE_H

#include "rendezvous/client/client.h"
#include "worker/bench/bench_rdzv.h"
#include "worker/bench/bench_rdzv_lost.h"

/* What the nodes of a client process share; borrowed by them. */
struct rdzv_host {
    struct rdzv_shared *shared;
    struct rdzv_client *client; /* that of this process */
    struct dpt_client_group *group;
    struct dpt_keyring keys; /* those of one machine: a key may have many nodes */
    void *buffer;            /* of DPT_MESSAGE_BYTES_MAX bytes, for a message to the server */
};

struct rdzv_node;

/* Starts node `index` and its connection. `ready`: its ranks start at once, else they wait for
 * rdzv_node_make_ready. */
DPT_MUST_USE enum dpt_status rdzv_node_create(const struct rdzv_host *host, int index,
                                              uint64_t incarnation, bool ready,
                                              struct rdzv_node **ret, struct dpt_err *err);
/* As the death of a machine: the connection closes without a word. Accepts NULL. */
void rdzv_node_destroy(struct rdzv_node **node);

const struct dpt_client *rdzv_node_connection(const struct rdzv_node *node);
/* dpt_now_ms at which rdzv_node_tick is due. */
int64_t rdzv_node_due_ms(const struct rdzv_node *node);

/* Takes everything that the connection has. Call when a descriptor of it is readable. DPT_EPEER:
 * the server refuses or expels the node, the run has failed, or the agent has ended. */
DPT_MUST_USE enum dpt_status rdzv_node_read(struct rdzv_node *node, struct dpt_err *err);
/* Tells the agent the time, and takes what the connection has. */
DPT_MUST_USE enum dpt_status rdzv_node_tick(struct rdzv_node *node, struct dpt_err *err);

DPT_MUST_USE enum dpt_status rdzv_node_make_ready(struct rdzv_node *node, struct dpt_err *err);
/* Each rank that runs reports that the data plane has failed, because of its lost neighbour or of
 * lost->first. */
DPT_MUST_USE enum dpt_status rdzv_node_break(struct rdzv_node *node, const struct rdzv_lost *lost,
                                             struct dpt_err *err);

#endif
