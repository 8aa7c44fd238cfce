/* Checks the address on which the server listens, and binds the ROUTER to it. */
#ifndef DPT_RENDEZVOUS_SERVER_BIND_H
#define DPT_RENDEZVOUS_SERVER_BIND_H

#include "base/err.h"
#include "rendezvous/server/server.h"

#include <stdbool.h>

/* Binds `router` to the address and port of the options. ret_endpoint and ret_port get the bound
 * endpoint and port. Errors are those of dpt_server_create. */
DPT_MUST_USE enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options,
                                             char ret_endpoint[DPT_SERVER_ENDPOINT_BYTES],
                                             int *ret_port, struct dpt_err *err);

/* True: `address` is a numeric loopback address or "localhost". */
bool dpt_server_is_loopback(const char *address);

#endif
