/* The loop around the agent's core (core.h): it handles the server's connection, signals, rank
 * processes and time.
 *
 * One thread does all this: the thread that starts the ranks. It waits only in poll(2). */
#ifndef DPT_WORKER_AGENT_LOOP_H
#define DPT_WORKER_AGENT_LOOP_H

#include "base/err.h"
#include "rendezvous/client/client.h"
#include "worker/agent/core.h"
#include "worker/agent/node.h"
#include "worker/agent/options.h"
#include "worker/agent/terminal.h"

enum {
    /* Events taken from one source before the other sources have their turn. */
    DPT_LOOP_EVENTS_MAX = 256,
    DPT_LOOP_WAIT_MS = 100, /* longest wait */
    /* A signal that comes this soon after another one counts as the same: timeout(1) sends two. */
    DPT_LOOP_ECHO_MS = 100,
    /* Time after which a state that the connection did not take is sent again. */
    DPT_LOOP_RETRY_MS = 10,
    /* Longest wait for killed ranks at the end. */
    DPT_LOOP_KILL_WAIT_MS = 5000
};

/* Everything is borrowed. */
struct dpt_loop_options {
    const struct dpt_worker_options *worker;
    struct dpt_agent_options agent; /* now_ms is set by the loop */
    const struct dpt_node *node;    /* NULL: `configure` makes it from the server's config */
    struct dpt_client *client;
    /* Makes the node from the run's config; NULL: the server has none. May take long. */
    enum dpt_status (*configure)(void *ctx, const Dpt__RunSpec *spec, const struct dpt_node **ret,
                                 struct dpt_err *err);
    void *ctx;
    const char *program; /* executed for the ranks; NULL: this program */
    bool embedded;       /* the server is in this process */
    struct dpt_terminal *terminal;
    bool live; /* the terminal has a live line */
    /* The server's endpoint, and the option, variable or key that named it. */
    const char *endpoint, *source;
};

struct dpt_loop_end {
    int exit_code;
    char text[DPT_PROTO_TEXT_BYTES]; /* the reason, for a person; "" with code 0 */
    /* Why no server answered; "": the reason is unknown, or a server answers. */
    char why[DPT_CLIENT_WHY_BYTES];
    /* The only run at the server, if neither a config nor a run was named. Nothing was begun
     * then. */
    char other_run[DPT_PROTO_NAME_BYTES];
    /* The run's config (YAML) if the run refused this node's config, else NULL; owned. */
    char *run_config;
    struct dpt_closing_facts closing;
    /* The results of the run, if rank 0 was on this node. */
    bool has_summary;
    Dpt__RunSummary summary; /* its weights_hash points to the member below */
    char weights_hash[DPT_PROTO_DIGEST_BYTES];
    bool no_run; /* a server answered, but no worker brought the run's config in time */
};

/* Runs the node until ACTION_EXIT. When this function returns, every process that the node or its
 * ranks started has ended. Blocks the signals that end a program (base/signals.h) for the caller's
 * thread, and leaves them blocked. An error means that the node could not run at all. */
DPT_MUST_USE enum dpt_status dpt_loop_run(const struct dpt_loop_options *options,
                                          struct dpt_loop_end *ret, struct dpt_err *err);

#endif
