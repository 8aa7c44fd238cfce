/* The connection over which a message came, and whether it still exists.
 *
 * libzmq (4.3.4, Debian) does not tell a ROUTER which peer disconnected. Its monitor names the
 * descriptor of a socket that was accepted or disconnected, and a message has the descriptor that
 * it came over. These are separate queues, and the kernel reuses descriptors: a message may be read
 * before or after the event that ended its connection, or when its descriptor belongs to another
 * connection. So the caller reads a message, then all monitor events, and then asks here.
 *
 * A connection's name is (1 << 32 | n), with n of the routing id that the ROUTER gave it (0, then
 * four bytes, big-endian, growing by one with each connection): never 0, and not reused within 2^32
 * connections. A dpt-worker sets no routing id. Pure: no sockets. */
#ifndef DPT_RENDEZVOUS_SERVER_PEERS_H
#define DPT_RENDEZVOUS_SERVER_PEERS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_PEERS_FDS_MAX = 65536, /* descriptors watched; more are served but not watched */
    DPT_PEERS_ROUTING_ID_BYTES = 5
};

struct dpt_peer_fd {
    uint64_t conn; /* 0: nothing heard over it yet */
    bool connected;
};

/* Zeroed at first. 1 MiB, of which untouched pages take no memory. */
struct dpt_peers {
    struct dpt_peer_fd fds[DPT_PEERS_FDS_MAX]; /* by descriptor */
};

/* The monitor reported that `fd` was accepted. */
void dpt_peers_connected(struct dpt_peers *peers, int fd);

/* The monitor reported that `fd` is closed. Returns the connection that used it; 0: none was heard.
 */
uint64_t dpt_peers_disconnected(struct dpt_peers *peers, int fd);

/* A message of `conn` came over `fd`. False: that connection has ended; the message still counts.
 */
DPT_MUST_USE bool dpt_peers_heard(struct dpt_peers *peers, int fd, uint64_t conn);

/* 0 when the bytes are not a routing id given by the ROUTER. */
uint64_t dpt_peers_conn(const uint8_t *routing_id, size_t bytes);
void dpt_peers_routing_id(uint64_t conn, uint8_t ret_routing_id[DPT_PEERS_ROUTING_ID_BYTES]);

#endif
