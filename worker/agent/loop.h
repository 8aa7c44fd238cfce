/* The loop around the agent's core (core.h): the server's connection, signals, rank processes,
 * time.
 *
 * One thread, the one that starts the ranks, does everything and waits in poll(2) alone. */
#ifndef DPT_WORKER_AGENT_LOOP_H
#define DPT_WORKER_AGENT_LOOP_H

#include "base/err.h"
#include "rendezvous/client/client.h"
#include "worker/agent/core.h"
#include "worker/agent/node.h"
#include "worker/agent/options.h"
#include "worker/agent/terminal.h"

enum {
    DPT_LOOP_EVENTS_MAX = 256, /* taken from one source before the others have their turn */
    DPT_LOOP_WAIT_MS = 100,    /* longest wait */
    DPT_LOOP_ECHO_MS = 100,    /* a signal this soon after one is the same: timeout(1) sends two */
    DPT_LOOP_RETRY_MS = 10,    /* a state that found no room in the connection is sent after this */
    DPT_LOOP_KILL_WAIT_MS = 5000 /* at the end: longest wait for killed ranks */
};

/* Everything is borrowed. */
struct dpt_loop_options {
    const struct dpt_worker_options *worker;
    struct dpt_agent_options agent; /* now_ms is set by the loop */
    const struct dpt_node *node;    /* NULL: `configure` makes it of the server's config */
    struct dpt_client *client;
    /* Makes the node of the run's config; NULL: the server has none. May take long. */
    enum dpt_status (*configure)(void *ctx, const Dpt__RunSpec *spec, const struct dpt_node **ret,
                                 struct dpt_err *err);
    void *ctx;
    const char *program; /* of the ranks; NULL: this one */
    bool embedded;       /* the server is in this process */
    struct dpt_terminal *terminal;
    bool live;                     /* the terminal has a live line */
    const char *endpoint, *source; /* of the server; the option, variable or key that named it */
};

struct dpt_loop_end {
    int exit_code;
    char text[DPT_PROTO_TEXT_BYTES];      /* the reason, for a person; "" with code 0 */
    char why[DPT_CLIENT_WHY_BYTES];       /* why no server was reached; "": unknown, or one was */
    char other_run[DPT_PROTO_NAME_BYTES]; /* the only run at the server, if neither a config nor a
                                             run was named; nothing was begun */
    char *run_config; /* owned: the run's config (YAML) if it refused ours, else NULL */
    struct dpt_closing_facts closing;
    /* The end of the run, if rank 0 was on this node. */
    bool has_summary;
    Dpt__RunSummary summary; /* its hash is weights_hash */
    char weights_hash[DPT_PROTO_DIGEST_BYTES];
    bool no_run; /* a server answered, but no worker brought the run's config in time */
};

/* Runs the node until ACTION_EXIT. When it returns, every process that it or its ranks started has
 * ended. Blocks the signals that end a program (base/signals.h) for the caller's thread and leaves
 * them blocked. An error means that the node could not run at all. */
DPT_MUST_USE enum dpt_status dpt_loop_run(const struct dpt_loop_options *options,
                                          struct dpt_loop_end *ret, struct dpt_err *err);

#endif
