/* The rendezvous server: one ZeroMQ ROUTER and a loop around the pure core
 * (rendezvous/core/core.h).
 *
 * The server carries no training data. With a journal its decisions are durable before a message
 * tells of them, and a later server goes on with them. Without one, a later server learns from the
 * agents' messages which runs exist. One thread at a time uses a server. */
#ifndef DPT_RENDEZVOUS_SERVER_SERVER_H
#define DPT_RENDEZVOUS_SERVER_SERVER_H

#include "rendezvous/core/journal.h"
#include "rendezvous/keys/keyring.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_SERVER_PORT = 29500,
    DPT_SERVER_NODES_MAX = 16384, /* nodes of a run, unless the options say more or less */
    DPT_SERVER_RANKS_MAX = 131072,
    DPT_SERVER_QUEUE_MAX = 64,    /* unsent messages to a peer; with more it counts as broken */
    DPT_SERVER_RECEIVED_MAX = 64, /* unread messages of a peer; with more TCP stops the peer */
    DPT_SERVER_ROUND_MAX = 16384, /* messages read between two TICKs */
    DPT_SERVER_FAILED_MAX = 1024, /* failed sends noted per round; leases detect other ends */
    DPT_SERVER_ENDPOINT_BYTES = 280
};

struct dpt_server;

/* Texts are borrowed as long as the server. */
struct dpt_server_options {
    /* The address to bind: a numeric IP address, "localhost" or "*". NULL: every address, or
     * loopback if `embedded`. */
    const char *address;
    int port;                      /* 0: the kernel chooses */
    bool open;                     /* no keys: every process that reaches the port is served */
    const char *key_dir;           /* of --key-dir; NULL: see rendezvous/keys/folder.h */
    int stop_fd;                   /* dpt_server_run returns when it becomes readable; borrowed */
    bool fresh;                    /* no worker has known an earlier server; implied by port 0 */
    uint32_t nodes_max, ranks_max; /* of one run; 0: DPT_SERVER_NODES_MAX, DPT_SERVER_RANKS_MAX */
    /* Runs in the worker of its only run, with keys that only this worker has. Logs the core's
     * lines at debug. */
    bool embedded;
};

/* Creates a server and binds it. DPT_ECONFIG: `address` is not an address, or the key folder cannot
 * be used. DPT_EUNSUPPORTED: libzmq has no CURVE. DPT_EEXIST: the port is in use. */
DPT_MUST_USE enum dpt_status dpt_server_create(const struct dpt_server_options *options,
                                               struct dpt_server **ret, struct dpt_err *err);
void dpt_server_destroy(struct dpt_server **server);

/* Gives the server what the journal has, and makes it keep its decisions there. To be called before
 * dpt_server_run, if at all. Borrows the journal until the server is destroyed. The failures of
 * dpt_journal.restore. */
DPT_MUST_USE enum dpt_status dpt_server_use_journal(struct dpt_server *server,
                                                    const struct dpt_journal *journal,
                                                    struct dpt_err *err);

/* HOST:PORT as bound ("*:29500" for every address), and the port. */
const char *dpt_server_endpoint(const struct dpt_server *server);
int dpt_server_port(const struct dpt_server *server);

/* The keys for a client on this machine; valid as long as the server. */
const struct dpt_keyring *dpt_server_keys(const struct dpt_server *server);

/* Serves until stop_fd is readable. */
DPT_MUST_USE enum dpt_status dpt_server_run(struct dpt_server *server, struct dpt_err *err);

/* Starts a server on a thread of this process, on a free loopback port (for dpt-worker --nnodes
 * 1). */
struct dpt_server_thread;
DPT_MUST_USE enum dpt_status dpt_server_thread_start(struct dpt_server_thread **ret,
                                                     struct dpt_err *err);
const char *dpt_server_thread_endpoint(const struct dpt_server_thread *thread);
/* The keys for this server's client; valid as long as the thread. */
const struct dpt_keyring *dpt_server_thread_keys(const struct dpt_server_thread *thread);

/* Stops the server and waits for the thread; accepts NULL and nulls the pointer. */
void dpt_server_thread_stop(struct dpt_server_thread **thread);

#endif
