/* A cluster of real programs on this machine, for the recovery bench: one dpt-rdzv and some
 * dpt-worker, with all files in one temporary folder.
 *
 * Every program started here is a child of this process, which is also the subreaper of their
 * orphans (bench_programs_begin): when waitpid reports no child, no process is left. A child dies
 * with this process. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_CLUSTER_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_CLUSTER_H

#include "worker/bench/bench.h"
#include "worker/bench/bench_recover_strategy.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    REC_NODES_MAX = 12, /* at a time */
    REC_NODE_RANKS_MAX = 4,
    REC_SLOTS = 16, /* micro-batches of a step */
    REC_PATH_BYTES = 512,
    REC_HASH_BYTES = 40,
    REC_EXIT_MS = 10 * 1000 /* a program told to end has ended by then */
};

struct recover_node {
    char id[24];
    pid_t pid;  /* of the agent; 0: this place is free */
    bool stops; /* the bench ends the node or has caused its end */
    bool ended;
    int status; /* from waitpid, once ended */
};

/* The settings that differ between runs. */
struct recover_run {
    const struct recover_strategy *strategy; /* borrowed, as long as the cluster lives */
    int nodes_max, n_embd;
    double timeout_s, rebuild_mib;
    bool one_host; /* nodes share memory; else each is a separate host, connected by sockets */
    bool cuda;     /* all ranks compute on this machine's GPU, and keep their state there */
};

struct recover_cluster {
    char dir[DPT_BENCH_DIR_BYTES];
    struct recover_run run;
    int port;
    pid_t server; /* 0: none runs */
    int started;  /* nodes started so far; numbers the next one */
    struct recover_node nodes[REC_NODES_MAX];
};

/* Makes the temporary folder with the text and the config. */
DPT_MUST_USE enum dpt_status recover_cluster_create(const struct recover_run *run,
                                                    struct recover_cluster *ret,
                                                    struct dpt_err *err);

/* Starts a worker under a new node id, in a free place. */
DPT_MUST_USE enum dpt_status recover_node_start(struct recover_cluster *c,
                                                struct recover_node **ret, struct dpt_err *err);

/* The pid of the node's rank process `local`; 0 while there is none. */
pid_t recover_node_rank(const struct recover_node *node, int local);

/* The rank number of local rank `local` in its newest generation, from its log; -1: none yet. */
int recover_node_place(const struct recover_cluster *c, const struct recover_node *node, int local);

/* Reaps ended processes. DPT_EPEER: one of them is a program that should be running. */
DPT_MUST_USE enum dpt_status recover_cluster_reap(struct recover_cluster *c, struct dpt_err *err);

/* True once the node's agent has ended: returns its status and frees its entry. */
bool recover_node_gone(struct recover_node *node, int *ret_status);

/* Sends SIGTERM to every worker, then to the server. Each must exit with 0 within REC_EXIT_MS, and
 * no process may be left; else DPT_EPEER or DPT_ETIMEOUT. recover_cluster_destroy kills what is
 * left. */
DPT_MUST_USE enum dpt_status recover_cluster_end(struct recover_cluster *c, struct dpt_err *err);

/* For a run that has ended with a checkpoint: the step of its newest checkpoint, and the weights
 * hash that dpt-ckpt computes of it. */
DPT_MUST_USE enum dpt_status recover_cluster_saved(const struct recover_cluster *c,
                                                   int64_t *ret_step, char ret_hash[REC_HASH_BYTES],
                                                   struct dpt_err *err);

/* The number of lines with `text` in the logs of all ranks, including ranks that have ended. */
int64_t recover_cluster_count(const struct recover_cluster *c, const char *text);

/* Prepares the run without faults, after recover_cluster_end: the same config for `steps` steps, in
 * a world of one rank. Starts a server. The worker that is started next writes below `calm` and
 * ends by itself. */
DPT_MUST_USE enum dpt_status recover_calm_start(struct recover_cluster *c, int64_t steps,
                                                struct dpt_err *err);
/* After the end of that run: the weights hash in its summary. */
DPT_MUST_USE enum dpt_status recover_calm_hash(const struct recover_cluster *c,
                                               char ret[REC_HASH_BYTES], struct dpt_err *err);

/* Kills the processes that are left; removes the folder unless `keep`. Accepts a zeroed cluster. */
void recover_cluster_destroy(struct recover_cluster *c, bool keep);

/* Prints the ends of the logs to standard error. */
void recover_cluster_tell(const struct recover_cluster *c);

/* Sleeps for the interval of a bounded poll. */
void recover_pause(void);

#endif
