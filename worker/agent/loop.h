/* The loop round the agent's pure machine (core.h): sockets, signals, rank processes, time.
 *
 * One thread, the one that starts the ranks, does everything; nothing in it waits but poll(2). */
#ifndef DPT_WORKER_AGENT_LOOP_H
#define DPT_WORKER_AGENT_LOOP_H

#include "base/err.h"
#include "worker/agent/address.h"
#include "worker/agent/core.h"
#include "worker/agent/node.h"
#include "worker/agent/terminal.h"
#include "worker/agent/transport.h"

enum {
    DPT_LOOP_EVENTS_MAX =
        256,                /* messages taken from one source before the others have their turn */
    DPT_LOOP_WAIT_MS = 100, /* longest sleep */
    DPT_LOOP_ECHO_MS = 100, /* a signal this soon after one that was taken is the same wish:
                               timeout(1) sends two */
    DPT_LOOP_RETRY_MS =
        10, /* a state that could not be sent over a standing connection is sent again after this */
    DPT_LOOP_KILL_WAIT_MS = 5000 /* at the end: killed ranks are waited for no longer */
};

/* What the loop asks of its surroundings. */
struct dpt_loop_hooks {
    void *ctx;
    /* The config: the run's as the server has it, or NULL when it has none. Returns a node borrowed
     * by the loop. May take long. */
    enum dpt_status (*configure)(void *ctx, const Dpt__RunSpec *spec, const struct dpt_node **ret,
                                 struct dpt_err *err);
    /* Where a rank that is started now should listen. */
    enum dpt_status (*address)(void *ctx, const struct dpt_node *node, char ret[DPT_ADDRESS_BYTES],
                               struct dpt_err *err);
};

struct dpt_loop_options {
    struct dpt_agent_options agent; /* now_ms is set by the loop */
    const struct dpt_node *node;    /* NULL: the config is the server's to tell */
    bool needs_run; /* with node NULL: without the run's config wait for it until the join deadline,
                       instead of asking the hook for another */
    struct dpt_transport transport;
    struct dpt_loop_hooks hooks;
    const char *program; /* of the ranks; NULL: this one */
    const char *const *allow;
    int n_allow;
    bool allow_fresh;
    bool embedded; /* the server is this process's own */
    enum dpt_log_level log_level;
    struct dpt_terminal *terminal; /* progress */
    bool live;                     /* it has a live line */
    bool quiet;
    const char *endpoint, *source; /* for the progress lines */
};

struct dpt_loop_end {
    int exit_code;
    char text[DPT_PROTO_TEXT_BYTES];      /* why, for a person; "" with code 0 */
    char why[DPT_TRANSPORT_WHY_BYTES];    /* a server was never reached; "": not known, or it was */
    char other_run[DPT_PROTO_NAME_BYTES]; /* no config was given and no run named: the server has
                                             this one alone, which is meant; nothing was begun */
    char *run_config; /* owned: the run's config (YAML) when ours was refused, else NULL */
    int64_t step;     /* newest applied by a rank of this node; -1: none */
    uint64_t generation;
    /* How the run ended, where rank 0 was on this node. */
    bool has_summary;
    Dpt__RunSummary summary; /* its hash is in weights_hash */
    char weights_hash[DPT_PROTO_DIGEST_BYTES];
    bool released; /* left before the run's end, as it asked */
    bool no_run;   /* a server answered, but nobody brought the run's config in time */
};

/* Runs the node until the machine says EXIT. When it returns no process that it or its ranks
 * started is left. Blocks what ends a program (base/signals.h) for the caller's thread and leaves
 * it blocked. An error means that the node could not be run at all. */
DPT_MUST_USE enum dpt_status dpt_loop_run(const struct dpt_loop_options *options,
                                          struct dpt_loop_end *ret, struct dpt_err *err);

#endif
