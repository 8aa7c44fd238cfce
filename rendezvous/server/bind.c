/* Binds the server's socket. */
#include "rendezvous/server/bind.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* *ret: a numeric IP address or "*", as in tcp://HOST:PORT. */
static enum dpt_status check_address(const struct dpt_server_options *options, const char **ret,
                                     struct dpt_err *err)
{
    const char *address = options->address;
    if (address == NULL)
        address = options->embedded ? "127.0.0.1" : "*";
    if (strcmp(address, "localhost") == 0)
        address = "127.0.0.1";
    struct in6_addr ignored;
    bool number =
        inet_pton(AF_INET, address, &ignored) == 1 || inet_pton(AF_INET6, address, &ignored) == 1;
    if (!number && strcmp(address, "*") != 0)
        return dpt_fail(err, DPT_ECONFIG, "--bind '%s' is not a numeric IP address, localhost or *",
                        address);
    *ret = address;
    return DPT_OK;
}

static int bind_endpoint(void *router, const char *address, int port,
                         char ret_name[DPT_SERVER_ENDPOINT_BYTES])
{
    char endpoint[DPT_SERVER_ENDPOINT_BYTES];
    size_t bytes = DPT_SERVER_ENDPOINT_BYTES;
    bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(endpoint, sizeof endpoint, "tcp://%s%s%s:%d", v6 ? "[" : "", address,
                   v6 ? "]" : "", port);
    return zmq_bind(router, endpoint) != 0
               ? -1
               : zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, ret_name, &bytes);
}

enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options, int port,
                                struct dpt_bound *ret, struct dpt_err *err)
{
    const char *address = "";
    struct dpt_bound bound = {.port = port};
    DPT_TRY(check_address(options, &address, err));
    if (port < 0 || port > 65535)
        return dpt_fail(err, DPT_ECONFIG, "port %d is not 0 … 65535", port);
    if (bind_endpoint(router, address, port, bound.names[0]) != 0) {
        if (zmq_errno() == EADDRINUSE)
            return dpt_fail(err, DPT_EEXIST,
                            "%s:%d is in use, perhaps by another dpt-rdzv: choose another --port",
                            address, port);
        return dpt_fail(err, DPT_ECONFIG, "cannot listen on %s:%d: %s", address, port,
                        zmq_strerror(zmq_errno()));
    }
    const char *colon = strrchr(bound.names[0], ':');
    DPT_ASSERT(colon != NULL);
    bound.port = (int)strtol(colon + 1, NULL, 10); /* libzmq wrote this number */
    /* Many machines resolve "localhost" to ::1 first, so the server listens there too. On a machine
     * without IPv6, 127.0.0.1 is enough. */
    if (options->address != NULL && strcmp(options->address, "localhost") == 0 &&
        bind_endpoint(router, "::1", bound.port, bound.names[1]) != 0)
        dpt_log(DPT_LOG_DEBUG, "not listening on [::1]:%d: %s", bound.port,
                zmq_strerror(zmq_errno()));
    bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(bound.endpoint, sizeof bound.endpoint, "%s%s%s:%d", v6 ? "[" : "", address,
                   v6 ? "]" : "", bound.port);
    *ret = bound;
    return DPT_OK;
}

void dpt_server_unbind(void *router, const struct dpt_bound *bound)
{
    for (size_t i = 0; i < sizeof bound->names / sizeof bound->names[0]; i++)
        if (bound->names[i][0] != '\0')
            (void)zmq_unbind(router, bound->names[i]); /* it is bound, or was never */
}
