/* One trial of the recovery bench: does one or two faults at drawn moments, waits until the run
 * continues, and restores the initial number of nodes. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_TRIAL_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_TRIAL_H

#include "worker/bench/bench_recover_cluster.h"
#include "worker/bench/bench_recover_report.h"
#include "worker/bench/bench_recover_watch.h"

#include <signal.h>

struct recover_survivor {
    const struct recover_node *node;
    pid_t agent, ranks[REC_NODE_RANKS_MAX];
};

struct recover_hit {
    enum recover_fault fault;
    struct recover_node *node; /* NULL before a join */
    int local;                 /* local rank of the process that is killed */
    /* The rank's number in the world, and its index among the shards of its node. */
    int place, shard;
    double time;
};

/* The run with faults. */
struct recover_bench {
    struct recover_cluster cluster;
    struct recover_watch watch;
    uint64_t seed, draws;
    bool kills_only;
    bool at_commit;      /* only single faults, about the end of a step */
    size_t commit_bytes; /* bytes of the message with a rank's contribution to a commit */
    int nodes;           /* between trials */
    int world;           /* ranks that should train now */
    int hangs;

    /* The current trial. */
    struct recover_trial *trial;
    struct recover_hit hits[2];
    int n_hits;
    uint64_t from;    /* newest generation at the last fault */
    uint64_t resumed; /* the generation that trains after the fault */
    int64_t step_seen;
    struct recover_node *awaited;
    struct recover_survivor survivors[REC_NODES_MAX];
    int n_survivors;
};

/* Reads logs and reaps processes until `there` is true. DPT_ETIMEOUT: a hang; the error's text
 * names `what`. */
DPT_MUST_USE enum dpt_status recover_wait(struct recover_bench *b, const char *what,
                                          bool (*there)(struct recover_bench *),
                                          struct dpt_err *err);

/* True: all b->world ranks have trained for some steps, no shadow is being rebuilt, and no newer
 * generation forms. */
bool recover_steady(struct recover_bench *b);

/* Runs one trial and fills b->trial. All b->world ranks train before the call (recover_steady) and
 * after it. */
DPT_MUST_USE enum dpt_status recover_trial_run(struct recover_bench *b, struct dpt_err *err);

#endif
