/* One trial of the recovery bench: one or two faults at aimed moments, how the run goes on, and
 * back to the initial number of nodes. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_TRIAL_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_TRIAL_H

#include "worker/bench/bench_recover_cluster.h"
#include "worker/bench/bench_recover_report.h"
#include "worker/bench/bench_recover_watch.h"

#include <signal.h>

struct rec_survivor {
    const struct rec_node *node;
    pid_t agent, ranks[REC_NODE_RANKS_MAX];
};

struct rec_hit {
    enum rec_fault fault;
    struct rec_node *node; /* NULL before a join */
    int local;             /* of the rank that is killed */
    int place, shard;      /* its rank in the world, its place among the node's */
    double time;
};

/* The run with faults. */
struct rec_bench {
    struct rec_cluster cluster;
    struct rec_watch watch;
    uint64_t seed, draws;
    bool kills_only;
    bool at_commit;      /* single faults, when a step is committed */
    size_t commit_bytes; /* of a rank's word to another then */
    int nodes;           /* at rest */
    int world;           /* ranks that are wanted now */
    int hangs;

    /* The trial that runs. */
    struct rec_trial *trial;
    struct rec_hit hits[2];
    int n_hits;
    uint64_t from;    /* newest generation when the last fault came */
    uint64_t resumed; /* the generation that went on */
    int64_t step_seen;
    struct rec_node *awaited;
    struct rec_survivor survivors[REC_NODES_MAX];
    int n_survivors;
};

extern volatile sig_atomic_t rec_stop_signal;

/* Polls logs and processes until `there`. DPT_ETIMEOUT is a hang; its text names `what`. */
DPT_MUST_USE enum dpt_status rec_wait(struct rec_bench *b, const char *what,
                                      bool (*there)(struct rec_bench *), struct dpt_err *err);

/* The world that is wanted trains, and nothing else is under way. */
bool rec_steady(struct rec_bench *b);

/* All of b->world train. Fills b->trial. */
DPT_MUST_USE enum dpt_status rec_trial_run(struct rec_bench *b, struct dpt_err *err);

#endif
