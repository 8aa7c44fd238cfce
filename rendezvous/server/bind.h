/* Checks the address on which the server listens, and binds the ROUTER to it. */
#ifndef DPT_RENDEZVOUS_SERVER_BIND_H
#define DPT_RENDEZVOUS_SERVER_BIND_H

#include "base/err.h"
#include "rendezvous/server/server.h"

/* Where a server is bound. */
struct dpt_bound {
    char endpoint[DPT_SERVER_ENDPOINT_BYTES]; /* HOST:PORT */
    int port;
    char names[2][DPT_SERVER_ENDPOINT_BYTES]; /* as libzmq calls its endpoints; "": none */
};

/* Binds to the address of the options and to `port` (0: the kernel chooses). The failures of
 * dpt_server_create. */
DPT_MUST_USE enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options,
                                             int port, struct dpt_bound *ret, struct dpt_err *err);
/* Closes the port, and with it every connection. libzmq does so a moment later: until then another
 * dpt_server_bind fails with DPT_EEXIST. */
void dpt_server_unbind(void *router, const struct dpt_bound *bound);

#endif
