/* Socket addresses as text: "@name" (abstract Unix socket), "192.0.2.1:4711", "[2001:db8::1]:4711".
 * All addresses are numeric. No function looks up a name, so none blocks. */
#ifndef DPT_WORKER_COMM_SOCKET_ADDRESS_H
#define DPT_WORKER_COMM_SOCKET_ADDRESS_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/socket.h>

struct dpt_address {
    struct sockaddr_storage addr;
    socklen_t len;
};

/* Parses a host and a port, or a local name. DPT_EINVAL: the text is not an address. */
DPT_MUST_USE enum dpt_status dpt_address_parse(const char *text, struct dpt_address *ret,
                                               struct dpt_err *err);

/* Makes an address from a host ("::1", "10.0.0.2") and a port, both numeric. */
DPT_MUST_USE enum dpt_status dpt_address_of_host(const char *host, const char *port,
                                                 struct dpt_address *ret, struct dpt_err *err);

/* Writes the text of an IP address. */
DPT_MUST_USE enum dpt_status dpt_address_format(const struct dpt_address *address, char *ret_text,
                                                size_t text_bytes, struct dpt_err *err);

/* If no process listens on a port of the ephemeral range, connect() can connect the socket to
 * itself. True: it has. */
bool dpt_socket_is_own_echo(int fd);

/* True if the process at the other end of a local socket has this process's user. */
bool dpt_socket_same_user(int fd);

#endif
