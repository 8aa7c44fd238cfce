/* The connection over which a message came, and whether it still exists.
 *
 * libzmq (4.3.4, Debian) does not tell a ROUTER which peer disconnected. Its monitor names the
 * descriptor of a socket that was accepted or disconnected, and a message has the descriptor over
 * which it came. Events and messages come through separate queues, and the kernel reuses
 * descriptors. So a message may be read before or after the event that ended its connection, or
 * when its descriptor already belongs to another connection. Therefore the caller reads a message,
 * then all monitor events, and then calls dpt_peers_heard.
 *
 * The number of a connection (`conn`) is (1 << 32 | n). n comes from the routing id that the ROUTER
 * gave the connection: a byte 0, then n in four bytes, big-endian, which grows by one with each
 * connection. So the number is never 0, and is not reused within 2^32 connections. A dpt-worker
 * sets no routing id. Pure: no sockets. */
#ifndef DPT_RENDEZVOUS_SERVER_PEERS_H
#define DPT_RENDEZVOUS_SERVER_PEERS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_PEERS_FDS_MAX = 65536, /* descriptors; the server closes connections with higher ones */
    DPT_PEERS_ROUTING_ID_BYTES = 5
};

struct dpt_peer_fd {
    uint64_t conn; /* 0: no message came over it yet */
    bool connected;
    uint32_t told_key; /* number of the newest server key that its machine was told of; 0: none */
};

/* Initially zeroed. 1 MiB; pages that are never touched take no memory. */
struct dpt_peers {
    struct dpt_peer_fd fds[DPT_PEERS_FDS_MAX]; /* the index is the descriptor */
};

/* The monitor reported that `fd` was accepted. */
void dpt_peers_connected(struct dpt_peers *peers, int fd);

/* The monitor reported that `fd` is closed. Returns the connection that used `fd`; 0: no message
 * came over it. */
uint64_t dpt_peers_disconnected(struct dpt_peers *peers, int fd);

/* To be called when a message of `conn` came over `fd`. False: that connection has ended; the
 * message still counts. */
DPT_MUST_USE bool dpt_peers_heard(struct dpt_peers *peers, int fd, uint64_t conn);

/* The number of the connection with this routing id; 0: the ROUTER did not give this routing id. */
uint64_t dpt_peers_conn(const uint8_t *routing_id, size_t bytes);
void dpt_peers_routing_id(uint64_t conn, uint8_t ret_routing_id[DPT_PEERS_ROUTING_ID_BYTES]);

#endif
