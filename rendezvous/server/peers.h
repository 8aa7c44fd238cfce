/* Which connection a message came over, and whether that connection still stands.
 *
 * libzmq (4.3.4, Debian's) does not tell a ROUTER which peer disconnected, but its monitor names
 * the descriptor of a socket accepted or disconnected, and a message carries the descriptor it came
 * over. Both run over separate queues, and the kernel gives a closed descriptor's number to the
 * next connection; so a message may be read before or after the event that ended its connection, or
 * over a number that already belongs to another one. The rule: read a message, then every monitor
 * event there is, then judge the message here.
 *
 * A connection's name is (1 << 32 | n), where n is the number in the routing id that the ROUTER
 * gave it (0, then four bytes, big-endian, growing by one a connection): never 0, and not used
 * again within 2^32 connections. Peers that set a routing id of their own are not ours. Pure: no
 * sockets. */
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

struct dpt_peers {
    struct dpt_peer_fd *fds; /* by descriptor */
};

DPT_MUST_USE enum dpt_status dpt_peers_init(struct dpt_peers *peers, struct dpt_err *err);
void dpt_peers_fini(struct dpt_peers *peers);

/* The monitor said that `fd` was accepted. */
void dpt_peers_connected(struct dpt_peers *peers, int fd);

/* The monitor said that `fd` is gone. Returns the connection that was heard over it, 0 if none. */
uint64_t dpt_peers_disconnected(struct dpt_peers *peers, int fd);

/* A message of `conn` came over `fd`. False: that connection is gone (its message still counts, and
 * is its last but for others that wait). */
DPT_MUST_USE bool dpt_peers_heard(struct dpt_peers *peers, int fd, uint64_t conn);

/* 0 when the bytes are not a routing id given by the ROUTER. */
uint64_t dpt_peers_conn(const uint8_t *routing_id, size_t bytes);
void dpt_peers_routing_id(uint64_t conn, uint8_t ret_routing_id[DPT_PEERS_ROUTING_ID_BYTES]);

#endif
