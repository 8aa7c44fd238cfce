/* Connections by descriptor: the descriptor is the index of an array. */
#include "rendezvous/server/peers.h"

static bool is_watched(int fd)
{
    return fd >= 0 && fd < DPT_PEERS_FDS_MAX;
}

void dpt_peers_connected(struct dpt_peers *peers, int fd)
{
    if (is_watched(fd))
        peers->fds[fd] = (struct dpt_peer_fd){.connected = true};
}

uint64_t dpt_peers_disconnected(struct dpt_peers *peers, int fd)
{
    if (!is_watched(fd))
        return 0;
    uint64_t conn = peers->fds[fd].conn;
    peers->fds[fd] = (struct dpt_peer_fd){0};
    return conn;
}

bool dpt_peers_heard(struct dpt_peers *peers, int fd, uint64_t conn)
{
    if (!is_watched(fd))
        return true; /* the node's lease detects the end of this connection */
    struct dpt_peer_fd *entry = &peers->fds[fd];
    if (!entry->connected)
        return false;
    /* If one descriptor had two connections, the later connection has the later routing id, which
       may wrap. This message may still be from the earlier connection. */
    if (entry->conn == 0 || (int32_t)((uint32_t)conn - (uint32_t)entry->conn) > 0)
        entry->conn = conn;
    return entry->conn == conn;
}

uint64_t dpt_peers_conn(const uint8_t *routing_id, size_t bytes)
{
    if (bytes != DPT_PEERS_ROUTING_ID_BYTES || routing_id[0] != 0)
        return 0;
    uint64_t conn = 1;
    for (int i = 1; i < DPT_PEERS_ROUTING_ID_BYTES; i++)
        conn = conn << 8 | routing_id[i];
    return conn;
}

void dpt_peers_routing_id(uint64_t conn, uint8_t ret_routing_id[DPT_PEERS_ROUTING_ID_BYTES])
{
    ret_routing_id[0] = 0;
    for (int i = 1; i < DPT_PEERS_ROUTING_ID_BYTES; i++)
        ret_routing_id[i] = (uint8_t)(conn >> (8 * (DPT_PEERS_ROUTING_ID_BYTES - 1 - i)));
}
