/* Checks the address on which the server listens, and binds the ROUTER to it; closes the port and
 * opens it again when the server's key changes. */
#ifndef DPT_RENDEZVOUS_SERVER_BIND_H
#define DPT_RENDEZVOUS_SERVER_BIND_H

#include "base/err.h"
#include "rendezvous/server/server.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_BOUND_MAX = 2,  /* addresses of a server: "localhost" is 127.0.0.1 and ::1 */
    DPT_REBIND_MS = 10, /* between two tries to open the port again */
    DPT_REBIND_MAX_MS = 10000
};

struct dpt_bound_address {
    char text[DPT_SERVER_ENDPOINT_BYTES]; /* HOST:PORT; "": none */
    char name[DPT_SERVER_ENDPOINT_BYTES]; /* libzmq's name of it */
    bool listens;
};

/* Where a server is bound. */
struct dpt_bound {
    int port;
    struct dpt_bound_address addresses[DPT_BOUND_MAX]; /* the first one is that of the options */
    int64_t unbound_ms; /* since then the port is closed for a new key; 0: it is open */
    size_t n_closing;   /* addresses at which libzmq still accepts connections, or may */
};

/* Binds to the address of the options and to `port` (0: the kernel chooses). The failures of
 * dpt_server_create. */
DPT_MUST_USE enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options,
                                             int port, struct dpt_bound *ret, struct dpt_err *err);

/* Closes the port, and with it every connection. libzmq does so a moment later: for each address it
 * reports ZMQ_EVENT_CLOSED, and for the connections nothing. now_ms: monotonic, above 0. */
void dpt_server_unbind(void *router, struct dpt_bound *bound, int64_t now_ms);

/* The monitor reported ZMQ_EVENT_CLOSED. True: the last address of dpt_server_unbind is closed, so
 * every connection that was reported before has ended. */
bool dpt_server_note_closed(struct dpt_bound *bound);

/* After dpt_server_unbind: opens the port again at each address at which the server listened, once
 * all of them are closed. To be called every DPT_REBIND_MS until bound->unbound_ms is 0. An address
 * that cannot be bound for DPT_REBIND_MAX_MS is reported and left out. DPT_EEXIST: the server then
 * listens nowhere. */
DPT_MUST_USE enum dpt_status dpt_server_bind_again(void *router, struct dpt_bound *bound,
                                                   int64_t now_ms, struct dpt_err *err);

#endif
