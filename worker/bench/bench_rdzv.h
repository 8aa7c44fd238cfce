/* dpt-bench rdzv: the memory and the commands that its processes share.
 *
 * The bench starts one dpt-rdzv and a few client processes. A client process has many nodes: the
 * real node agent (worker/agent/core.h) over a real connection (rendezvous/client), with modelled
 * rank processes. The bench gives commands through pipes and reads what happens to each node from
 * shared memory. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_H
#define DPT_WORKER_BENCH_BENCH_RDZV_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    RDZV_CLIENTS_MAX = 16,
    RDZV_SAMPLES_MAX = 1 << 16, /* newest answer times of a client process that are kept */
    RDZV_ENDPOINT_BYTES = 32,
    RDZV_SPARE_FDS = 64 /* descriptors of a process beside those of its nodes */
};

struct rdzv_setup {
    int nodes, ranks, clients;    /* ranks: of each node; clients: processes */
    int rack;                     /* nodes that are lost at once */
    int64_t timeout_ms, drain_ms; /* of the run */
    bool open;                    /* server and nodes have no keys */
    char endpoint[RDZV_ENDPOINT_BYTES];
};

enum { RDZV_RACK_PART = 20 };
/* Nodes that are lost at once, unless their number is given. */
static inline int rdzv_rack_of(int nodes)
{
    return nodes < 2 * RDZV_RACK_PART ? 1 : nodes / RDZV_RACK_PART;
}

/* A node as its client process last saw it. `generation` is written last. */
struct rdzv_record {
    int64_t joined_ns;   /* dpt_now_ns when the server first counted it in; 0: not yet */
    int64_t running_ns;  /* when its last rank got GO of `generation` */
    uint64_t generation; /* newest in which all of its ranks run; 0: none */
    uint32_t world;      /* of that generation */
    int32_t first_rank;  /* rank of local rank 0 in it */
};

/* Messages that nodes sent and received; bytes without the headers of ZeroMQ and TCP. */
struct rdzv_counts {
    uint64_t sent, sent_bytes, received, received_bytes;
    uint64_t beats; /* of those that nodes sent: because it was time, and not for news */
};

/* What a client process reports. */
struct rdzv_client {
    struct rdzv_counts counts;
    uint64_t n_samples;                  /* number ever taken */
    float answer_us[RDZV_SAMPLES_MAX];   /* ring: from a message to the answer that echoes it */
    int failed;                          /* 1: `error` says why it has ended */
    char error[DPT_ERR_TEXT_BYTES + 64]; /* names the node */
};

struct rdzv_shared {
    struct rdzv_setup setup;
    struct rdzv_client clients[RDZV_CLIENTS_MAX];
    struct rdzv_record nodes[]; /* (setup.nodes) */
};

enum rdzv_command_kind {
    RDZV_CONNECT, /* create every node; its ranks keep STARTING */
    RDZV_READY,   /* the ranks of every node have started */
    RDZV_LOSE,    /* nodes first … first + count - 1 die; ranks of the others notice it */
    RDZV_JOIN,    /* these nodes start again, each as a new incarnation, with ranks that start */
    RDZV_END
};

struct rdzv_command {
    enum rdzv_command_kind kind;
    int first, count; /* LOSE, JOIN */
};

/* The nodes of client process `client`: first … first + n - 1. */
struct rdzv_range {
    int first, n;
};
static inline struct rdzv_range rdzv_range_of(const struct rdzv_setup *setup, int client)
{
    const int first = (int)((int64_t)setup->nodes * client / setup->clients);
    const int end = (int)((int64_t)setup->nodes * (client + 1) / setup->clients);
    return (struct rdzv_range){first, end - first};
}

#endif
