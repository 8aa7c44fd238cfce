/* Connections over which no message has come yet, and how many of them the server holds for whom.
 *
 * libzmq bounds the time of a handshake and the size of a frame, and nothing else before the
 * handshake is over. So a stranger could hold any number of connections, each with a frame of the
 * largest size. The server closes a connection
 *
 *   - at once, if DPT_NEWCOMERS_MAX others are new, or half of the server's descriptors, or if its
 *     address has DPT_NEWCOMERS_OF_ADDRESS new ones (a sixteenth of the descriptors, if that is
 *     less) and no other. An address with a machine that was heard may have a sixteenth, because
 *     many machines may share it. Loopback has no bound of its own;
 *   - if all descriptors but DPT_GUESTS_SPARE are in use, and more than an eighth of them by new
 *     ones: the oldest of these, at each further one;
 *   - within two looks, if no connection of its address has sent a message and this one has sent
 *     more than DPT_NEWCOMER_BYTES_MAX bytes;
 *   - after DPT_NEWCOMER_MS, if no message of a machine that is admitted has come over it. So
 * nobody keeps the connection of a token.
 *
 * A worker that is turned away tries again by itself. One thread. */
#ifndef DPT_RENDEZVOUS_SERVER_NEWCOMERS_H
#define DPT_RENDEZVOUS_SERVER_NEWCOMERS_H

#include "base/err.h"
#include "rendezvous/server/guests.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_NEWCOMERS_MAX = 16384,
    DPT_NEWCOMERS_OF_ADDRESS = 64,
    DPT_NEWCOMER_BYTES_MAX = 64 * 1024,
    DPT_NEWCOMER_MS = 30000, /* a handshake may take 10 s of it */
    DPT_NEWCOMERS_LOOK_MS = 250
};

struct dpt_connection {
    struct in6_addr address; /* IPv4 as ::ffff:a.b.c.d; of another IPv6 address its network (/64) */
    int64_t since_ms;
    bool open, heard;
    bool suspect; /* it had sent too much at the last look */
};

/* Initially zeroed; begins with dpt_newcomers_init. Pages that are never touched take no memory. */
struct dpt_newcomers {
    struct dpt_connection fds[DPT_PEERS_FDS_MAX]; /* the index is the descriptor */
    int fd_end;                                   /* above the highest that was open */
    size_t n_new;                                 /* open and not heard */
    size_t n_max, of_address_max, of_known_max;   /* new ones; of_known: the address was heard */
    size_t n_share, n_room; /* places of new ones in any case, and of all connections */
    int64_t looked_ms;
};

void dpt_newcomers_init(struct dpt_newcomers *newcomers, uint64_t n_descriptors);
/* The monitor reported that `fd` was accepted from this address (NULL: not known). False: the
 * caller closes it. now_ms: monotonic. */
DPT_MUST_USE bool dpt_newcomers_take(struct dpt_newcomers *newcomers, int fd,
                                     const struct in6_addr *address, int64_t now_ms);
/* After dpt_newcomers_take: the new one that is to be closed, because there are n_heard others; -1:
 * none. */
int dpt_newcomers_excess(const struct dpt_newcomers *newcomers, size_t n_heard);
/* A message of a machine that is admitted came over `fd`. */
void dpt_newcomers_heard(struct dpt_newcomers *newcomers, int fd);
/* The monitor reported that `fd` is closed. */
void dpt_newcomers_gone(struct dpt_newcomers *newcomers, int fd);
/* All connections that were taken have ended with their port, which the monitor does not report. */
void dpt_newcomers_forget(struct dpt_newcomers *newcomers);

/* The address of the peer of a TCP socket. False: it is not known. */
bool dpt_newcomers_address(int fd, struct in6_addr *ret);
/* Ends the connection; the monitor reports its end later. */
void dpt_newcomers_close(int fd);
/* Every DPT_NEWCOMERS_LOOK_MS: closes newcomers that have sent too much or are too old. To be
 * called when all messages and monitor events that have arrived are read. now_ms: monotonic. */
void dpt_newcomers_look(struct dpt_newcomers *newcomers, int64_t now_ms);

#endif
