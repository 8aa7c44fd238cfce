/* A cluster of real programs on this machine, for the recovery bench: one dpt-rdzv and some
 * dpt-worker of one rank each, all files in one temporary folder.
 *
 * Everything started here is a child of this process, which is subreaper of their orphans: when
 * waitpid knows of no child any more, nothing is left. A child dies with this process. */
#ifndef DPT_TESTS_BENCH_BENCH_RECOVER_CLUSTER_H
#define DPT_TESTS_BENCH_BENCH_RECOVER_CLUSTER_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

enum {
    REC_NODES_MAX = 12, /* at a time */
    REC_PATH_BYTES = 512,
    REC_EXIT_MS = 10 * 1000 /* a program told to end has ended by then */
};

struct rec_node {
    char id[24];
    pid_t pid;  /* of the agent; 0: this place is free */
    bool stops; /* it has been told or made to end: its end is no surprise */
    bool ended;
    int status; /* as of waitpid, once ended */
};

struct rec_cluster {
    char bin[REC_PATH_BYTES]; /* the folder of this program, where the others are too */
    char dir[64];
    int port;
    pid_t server; /* 0: none runs */
    int started;  /* nodes so far; numbers the next one */
    struct rec_node nodes[REC_NODES_MAX];
};

/* The keys of the config that differ from run to run. */
struct rec_run {
    int nodes_max, n_embd;
    double timeout_s;
};

/* Makes the temporary folder with text and config, and this process the subreaper. */
DPT_MUST_USE enum dpt_status rec_cluster_create(const struct rec_run *run, struct rec_cluster *ret,
                                                struct dpt_err *err);

/* Starts dpt-rdzv; rec_server_listens becomes true, and sets the port, once it listens. */
DPT_MUST_USE enum dpt_status rec_server_start(struct rec_cluster *c, struct dpt_err *err);
bool rec_server_listens(struct rec_cluster *c);

/* Starts a worker under a new node id, in a free place. */
DPT_MUST_USE enum dpt_status rec_node_start(struct rec_cluster *c, struct rec_node **ret,
                                            struct dpt_err *err);

/* The pid of the node's rank process; 0 while it has none. */
pid_t rec_node_rank(const struct rec_node *node);

/* Reaps what has ended. DPT_EPEER when that was a program that should be running. */
DPT_MUST_USE enum dpt_status rec_cluster_reap(struct rec_cluster *c, struct dpt_err *err);

/* True once the node's agent has ended. Frees its place then, and gives the status. */
bool rec_node_gone(struct rec_node *node, int *ret_status);

/* SIGTERM to every worker, then to the server; each must exit with 0 within REC_EXIT_MS, and no
 * process may be left. What is left is killed; DPT_EPEER or DPT_ETIMEOUT say what it was. */
DPT_MUST_USE enum dpt_status rec_cluster_end(struct rec_cluster *c, struct dpt_err *err);

/* Kills whatever is left, removes the folder unless `keep`. For a zeroed cluster too. */
void rec_cluster_destroy(struct rec_cluster *c, bool keep);

/* The ends of the logs, to standard error. */
void rec_cluster_tell(const struct rec_cluster *c);

/* Lets a poll's while pass. */
void rec_pause(void);

#endif
