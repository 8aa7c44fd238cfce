/* Descriptors of the server: each connection takes one. */
#ifndef DPT_RENDEZVOUS_SERVER_DESCRIPTORS_H
#define DPT_RENDEZVOUS_SERVER_DESCRIPTORS_H

#include "base/log.h"
#include "rendezvous/server/guests.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_DESCRIPTORS_PAUSE_MS = 60000 /* between two lines of a kind */ };

/* Begins with dpt_descriptors_init. */
struct dpt_descriptors {
    uint64_t n; /* that this process may have */
    struct dpt_log_bound full, closed;
};

/* Allows as many as the system permits, and warns if these are too few for a run of nodes_max. */
void dpt_descriptors_raise(uint32_t nodes_max);

void dpt_descriptors_init(struct dpt_descriptors *descriptors);
/* `fd` was accepted. The kernel gives the lowest that is free, so the highest is a sign that there
 * is no other: a line says so. libzmq's own event comes at each of its tries, without a pause, and
 * is not asked for. */
void dpt_descriptors_accepted(struct dpt_descriptors *descriptors, int fd, int64_t now_ms);
/* A guest of this owner is closed. has_keys: the owner is a key, and not an address. */
void dpt_descriptors_closed(struct dpt_descriptors *descriptors,
                            const struct dpt_guest_owner *owner, bool has_keys, int64_t now_ms);

#endif
