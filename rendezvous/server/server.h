/* The rendezvous server: one ZeroMQ ROUTER and a loop round the pure core (rendezvous/core/core.h).
 *
 * Never on the data path. It keeps nothing on disk: when it is started again, the agents' messages
 * tell it what runs. A server is made, run and destroyed by one thread; dpt_server_thread does that
 * on a thread of its own. */
#ifndef DPT_RENDEZVOUS_SERVER_SERVER_H
#define DPT_RENDEZVOUS_SERVER_SERVER_H

#include "base/err.h"

#include <stdbool.h>

enum {
    DPT_SERVER_PORT = 29500,
    DPT_SERVER_QUEUE_MAX =
        64, /* messages waiting to be sent to one peer; then it counts as broken */
    DPT_SERVER_RECEIVED_MAX =
        64, /* messages of one peer waiting to be read; then TCP holds it up */
    DPT_SERVER_ROUND_MAX = 16384, /* messages read before time is looked at */
    DPT_SERVER_FAILED_MAX =
        1024, /* peers found broken by sending, in one round; the lease finds others */
    DPT_SERVER_WAIT_MS = 1000, /* longest sleep of the loop */
    DPT_SERVER_ENDPOINT_BYTES = 280
};

struct dpt_server;

struct dpt_server_options {
    const char *address; /* numeric IP, "localhost" or "*" to bind; NULL: loopback, or every address
                            if `insecure` */
    int port;            /* 0: the kernel chooses */
    bool insecure;       /* may be bound to an address that others reach: there are no keys yet */
    int stop_fd;         /* dpt_server_run returns when it becomes readable; borrowed */
    bool fresh;    /* no earlier server had runs of the workers that come; so it is with a port
                      that the kernel has chosen, which none of them knows */
    bool embedded; /* in the worker of its only run, which tells the run's story itself: what the
                      core logs is logged at debug */
};

/* Binds. DPT_ECONFIG: an address that is none, or is not loopback without `insecure`; DPT_EEXIST:
 * the port is in use. */
DPT_MUST_USE enum dpt_status dpt_server_create(const struct dpt_server_options *options,
                                               struct dpt_server **ret, struct dpt_err *err);
void dpt_server_destroy(struct dpt_server **server);

/* HOST:PORT as bound, with the true port ("*:29500" for every address), and that port. */
const char *dpt_server_endpoint(const struct dpt_server *server);
int dpt_server_port(const struct dpt_server *server);

/* Serves until stop_fd is readable. */
DPT_MUST_USE enum dpt_status dpt_server_run(struct dpt_server *server, struct dpt_err *err);

/* A server on a thread of this process, bound to a free loopback port (dpt-worker --nnodes 1). */
struct dpt_server_thread;
DPT_MUST_USE enum dpt_status dpt_server_thread_start(struct dpt_server_thread **ret,
                                                     struct dpt_err *err);
const char *dpt_server_thread_endpoint(const struct dpt_server_thread *thread);

/* Ends it and waits for it; accepts NULL and nulls the pointer. */
void dpt_server_thread_stop(struct dpt_server_thread **thread);

#endif
