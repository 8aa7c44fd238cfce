/* Connections of admitted machines, by the key of the machine, or by its address if there are no
 * keys. A connection is a member's while a node with a place in the newest plan of its run speaks
 * over it; the others are guests: nodes that wait for a plan, processes that may not join, dpt-ctl.
 *
 * Whoever has an admitted key could open connections until the server has no descriptor left. So
 *
 *   - a key has at most DPT_GUESTS_OF_KEY guests, or as many as a run may have nodes, if that is
 *     more;
 *   - members and guests together are at most seven eighths of the server's descriptors less
 *     DPT_GUESTS_SPARE. With more, the key that has the most guests loses one.
 *
 * The guest that has been silent for the longest time is closed. Members are never closed, nor is
 * the only guest of a key. So one key, with guests by the thousand, takes no place from another,
 * and all nodes of a run may have one key. Pure; one thread. */
#ifndef DPT_RENDEZVOUS_SERVER_GUESTS_H
#define DPT_RENDEZVOUS_SERVER_GUESTS_H

#include "rendezvous/keys/key.h"
#include "rendezvous/server/peers.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DPT_GUESTS_OF_KEY = 16384,
    DPT_GUESTS_SPARE = 64,      /* descriptors of the server itself */
    DPT_GUESTS_REVIEW_MS = 250, /* between two looks at all members, if places are short */
    DPT_GUESTS_BUCKETS = 4096   /* a power of two */
};

/* The connection of a descriptor; a guest is in the list of its owner. */
struct dpt_guest {
    bool heard, is_member;
    int32_t owner;
    int32_t before, after; /* guests of the owner that were heard before and after it; -1: none */
};

/* A key with connections. */
struct dpt_guest_owner {
    struct dpt_key key;
    int32_t n_conns, n_guests;
    int32_t first, last; /* guests: heard the longest time ago, and last; -1: none */
    int32_t next;        /* of the bucket, or of the free ones; -1: none */
};

/* Begins with dpt_guests_init. Pages that are never touched take no memory. */
struct dpt_guests {
    struct dpt_guest fds[DPT_PEERS_FDS_MAX];          /* the index is the descriptor */
    struct dpt_guest_owner owners[DPT_PEERS_FDS_MAX]; /* the first n_owners were in use once */
    int32_t buckets[DPT_GUESTS_BUCKETS];              /* -1: empty */
    int32_t n_owners, free;                           /* free: the first free one; -1: none */
    int32_t n_conns, n_max, of_key_max;
    int32_t fd_end; /* above the highest that was heard */
    int64_t reviewed_ms;
};

/* How many members and guests a server with so many descriptors has; at least 1. */
int32_t dpt_guests_max(uint64_t n_descriptors);
/* Empties a zeroed one. nodes_max: of a run. */
void dpt_guests_init(struct dpt_guests *guests, uint64_t n_descriptors, uint32_t nodes_max);

/* A message of a machine that is admitted came over `fd`. */
void dpt_guests_heard(struct dpt_guests *guests, int fd, const struct dpt_key *key, bool is_member);
/* The connection has ended, or the caller ends it. */
void dpt_guests_gone(struct dpt_guests *guests, int fd);
/* All connections have ended with their port. */
void dpt_guests_forget(struct dpt_guests *guests);

/* After dpt_guests_heard(fd): the guest that is to be closed; -1: none. Asks `is_member` about each
 * member at most every DPT_GUESTS_REVIEW_MS, as a node loses its place without a message. now_ms:
 * monotonic. */
int dpt_guests_excess(struct dpt_guests *guests, int fd, int64_t now_ms,
                      bool (*is_member)(void *ctx, int fd), void *ctx);
/* The key of a connection that was heard, and how many guests it has. */
const struct dpt_guest_owner *dpt_guests_owner(const struct dpt_guests *guests, int fd);

#endif
