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

static void name_address(struct dpt_bound_address *at, const char *host, int port)
{
    const bool v6 = strchr(host, ':') != NULL;
    (void)snprintf(at->text, sizeof at->text, "%s%s%s:%d", v6 ? "[" : "", host, v6 ? "]" : "",
                   port);
}

/* Listens at at->text. False: zmq_errno() says why not. */
static bool listen_at(void *router, struct dpt_bound_address *at)
{
    char endpoint[sizeof "tcp://" + DPT_SERVER_ENDPOINT_BYTES];
    size_t bytes = sizeof at->name;
    (void)snprintf(endpoint, sizeof endpoint, "tcp://%s", at->text);
    at->listens = zmq_bind(router, endpoint) == 0 &&
                  zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, at->name, &bytes) == 0;
    return at->listens;
}

/* Many machines resolve "localhost" to ::1 first, so the server listens there too. On a machine
 * without IPv6, 127.0.0.1 is enough. */
static void bind_second_loopback(void *router, struct dpt_bound *bound)
{
    struct dpt_bound_address *at = &bound->addresses[1];
    name_address(at, "::1", bound->port);
    if (listen_at(router, at))
        return;
    if (zmq_errno() == EADDRINUSE)
        dpt_log(DPT_LOG_WARN,
                "not listening on %s, which another program has: workers for which localhost is "
                "::1 reach that program; end it and start dpt-rdzv again, or choose another --port",
                at->text);
    else
        dpt_log(DPT_LOG_DEBUG, "not listening on %s: %s", at->text, zmq_strerror(zmq_errno()));
    at->text[0] = '\0';
}

enum dpt_status dpt_server_bind(void *router, const struct dpt_server_options *options, int port,
                                struct dpt_bound *ret, struct dpt_err *err)
{
    const char *address = "";
    struct dpt_bound bound = {.port = port};
    struct dpt_bound_address *first = &bound.addresses[0];
    DPT_TRY(check_address(options, &address, err));
    if (port < 0 || port > 65535)
        return dpt_fail(err, DPT_ECONFIG, "port %d is not 0 … 65535", port);
    name_address(first, address, port);
    if (!listen_at(router, first)) {
        if (zmq_errno() == EADDRINUSE)
            return dpt_fail(err, DPT_EEXIST,
                            "%s:%d is in use, perhaps by another dpt-rdzv: choose another --port",
                            address, port);
        if (zmq_errno() == EADDRNOTAVAIL)
            return dpt_fail(err, DPT_ECONFIG,
                            "--bind %s is no address of this machine: give one that it has ('ip "
                            "address' lists them), or leave --bind out",
                            address);
        return dpt_fail(err, DPT_ECONFIG, "cannot listen on %s:%d: %s", address, port,
                        zmq_strerror(zmq_errno()));
    }
    const char *colon = strrchr(first->name, ':');
    DPT_ASSERT(colon != NULL);
    bound.port = (int)strtol(colon + 1, NULL, 10); /* libzmq wrote this number */
    name_address(first, address, bound.port);
    if (options->address != NULL && strcmp(options->address, "localhost") == 0)
        bind_second_loopback(router, &bound);
    *ret = bound;
    return DPT_OK;
}

/* ---- the port is closed and opened again ---- */

void dpt_server_unbind(void *router, struct dpt_bound *bound, int64_t now_ms)
{
    DPT_ASSERT(now_ms > 0);
    bound->unbound_ms = now_ms;
    bound->n_closing = 0;
    for (size_t i = 0; i < DPT_BOUND_MAX; i++) {
        struct dpt_bound_address *at = &bound->addresses[i];
        if (at->listens && zmq_unbind(router, at->name) == 0)
            bound->n_closing++;
        at->listens = false;
    }
}

bool dpt_server_note_closed(struct dpt_bound *bound)
{
    return bound->n_closing > 0 && --bound->n_closing == 0;
}

/* Binds each address at which the server does not listen. The error names the first that fails. */
static enum dpt_status bind_missing(void *router, struct dpt_bound *bound, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    for (size_t i = 0; i < DPT_BOUND_MAX; i++) {
        struct dpt_bound_address *at = &bound->addresses[i];
        if (at->text[0] == '\0' || at->listens || listen_at(router, at) || status != DPT_OK)
            continue;
        status = dpt_fail(err, DPT_EEXIST,
                          "the server has closed its port to change its key, and cannot listen on "
                          "%s again: %s. Nodes that use this address do not reach the server: make "
                          "it available, then start dpt-rdzv again with the same command",
                          at->text, zmq_strerror(zmq_errno()));
    }
    return status;
}

static bool listens(const struct dpt_bound *bound)
{
    for (size_t i = 0; i < DPT_BOUND_MAX; i++)
        if (bound->addresses[i].listens)
            return true;
    return false;
}

enum dpt_status dpt_server_bind_again(void *router, struct dpt_bound *bound, int64_t now_ms,
                                      struct dpt_err *err)
{
    struct dpt_err why;
    const bool is_late = now_ms - bound->unbound_ms >= DPT_REBIND_MAX_MS;
    if (bound->unbound_ms == 0 || (bound->n_closing > 0 && !is_late))
        return DPT_OK;
    if (bind_missing(router, bound, &why) != DPT_OK) {
        if (!is_late)
            return DPT_OK;
        if (!listens(bound))
            return dpt_pass(err, &why);
        dpt_log(DPT_LOG_ERROR, "%s", why.text);
    }
    bound->unbound_ms = 0;
    return DPT_OK;
}
