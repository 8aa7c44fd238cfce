/* How much each connection may send: a bucket of messages and one of bytes that refill with time
 * (the token bucket of RFC 2697). A message beyond them is dropped, which is harmless for a worker:
 * each message is its whole state, and the next one replaces it. Pure. */
#ifndef DPT_RENDEZVOUS_SERVER_METER_H
#define DPT_RENDEZVOUS_SERVER_METER_H

#include "rendezvous/server/peers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_METER_MESSAGES_PER_MS = 1,
    DPT_METER_MESSAGES_MAX = 4000, /* at once */
    DPT_METER_BYTES_PER_MS = 64 * 1024,
    DPT_METER_BYTES_MAX = 64 * 1024 * 1024 /* at once */
};

struct dpt_meter_fd {
    uint64_t conn; /* connection of the buckets; 0: none */
    int64_t filled_ms;
    int32_t messages, bytes; /* that it may send now */
};

/* Initially zeroed. 1.5 MiB; pages that are never touched take no memory. */
struct dpt_meter {
    struct dpt_meter_fd fds[DPT_PEERS_FDS_MAX]; /* the index is the descriptor */
};

/* Takes a message of `conn` over `fd` from its buckets. False: they are empty, and the message is
 * to be dropped. Connections over descriptors from DPT_PEERS_FDS_MAX on are not metered. now_ms:
 * monotonic. */
DPT_MUST_USE bool dpt_meter_take(struct dpt_meter *meter, int fd, uint64_t conn, size_t bytes,
                                 int64_t now_ms);

#endif
