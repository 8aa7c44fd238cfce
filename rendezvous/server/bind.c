/* Binds the server's socket. */
#include "rendezvous/server/bind.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

bool dpt_server_is_loopback(const char *address)
{
    if (strcmp(address, "localhost") == 0)
        return true;
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* *ret: a numeric IP address or "*", as in tcp://HOST:PORT. */
static enum dpt_status check_address(const struct dpt_server_options *options, const char **ret,
                                     struct dpt_err *err)
{
    const char *address = options->address;
    if (address == NULL)
        address = options->insecure ? "*" : "127.0.0.1";
    if (strcmp(address, "localhost") == 0)
        address = "127.0.0.1";
    struct in6_addr ignored;
    bool number =
        inet_pton(AF_INET, address, &ignored) == 1 || inet_pton(AF_INET6, address, &ignored) == 1;
    if (!number && strcmp(address, "*") != 0)
        return dpt_fail(err, DPT_ECONFIG, "--bind '%s' is not a numeric IP address, localhost or *",
                        address);
    if (!options->insecure && !dpt_server_is_loopback(address))
        return dpt_fail(err, DPT_ECONFIG,
                        "--bind %s lets other hosts reach a server without keys: add --insecure if "
                        "every host on that network may join and stop runs",
                        address);
    *ret = address;
    return DPT_OK;
}

static int bind_endpoint(void *router, const char *address, int port)
{
    char endpoint[DPT_SERVER_ENDPOINT_BYTES];
    bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(endpoint, sizeof endpoint, "tcp://%s%s%s:%d", v6 ? "[" : "", address,
                   v6 ? "]" : "", port);
    return zmq_bind(router, endpoint);
}

enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options,
                                char ret_endpoint[DPT_SERVER_ENDPOINT_BYTES], int *ret_port,
                                struct dpt_err *err)
{
    const char *address = "";
    DPT_TRY(check_address(options, &address, err));
    if (options->port < 0 || options->port > 65535)
        return dpt_fail(err, DPT_ECONFIG, "port %d is not 0 … 65535", options->port);
    if (bind_endpoint(router, address, options->port) != 0) {
        if (zmq_errno() == EADDRINUSE)
            return dpt_fail(err, DPT_EEXIST,
                            "%s:%d is in use, perhaps by another dpt-rdzv: choose another --port",
                            address, options->port);
        return dpt_fail(err, DPT_ECONFIG, "cannot listen on %s:%d: %s", address, options->port,
                        zmq_strerror(zmq_errno()));
    }
    char bound[DPT_SERVER_ENDPOINT_BYTES];
    size_t bytes = sizeof bound;
    if (zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, bound, &bytes) != 0)
        return dpt_fail(err, DPT_EIO, "address of the server's socket: %s",
                        zmq_strerror(zmq_errno()));
    const char *colon = strrchr(bound, ':');
    DPT_ASSERT(colon != NULL);
    int port = (int)strtol(colon + 1, NULL, 10); /* libzmq wrote this number */
    /* Many machines resolve "localhost" to ::1 first, so the server listens there too. On a machine
     * without IPv6, 127.0.0.1 is enough. */
    if (options->address == NULL && !options->insecure && bind_endpoint(router, "::1", port) != 0)
        dpt_log(DPT_LOG_DEBUG, "not listening on [::1]:%d: %s", port, zmq_strerror(zmq_errno()));
    bool v6 = strchr(address, ':') != NULL;
    (void)snprintf(ret_endpoint, DPT_SERVER_ENDPOINT_BYTES, "%s%s%s:%d", v6 ? "[" : "", address,
                   v6 ? "]" : "", port);
    *ret_port = port;
    return DPT_OK;
}
