/* The result of a node's health check, as a struct without pointers and as a message. */
#ifndef DPT_RENDEZVOUS_PROTO_HEALTH_H
#define DPT_RENDEZVOUS_PROTO_HEALTH_H

#include "base/err.h"
#include "rendezvous/proto/dpt.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

enum { DPT_HEALTH_FAULT_BYTES = 512 }; /* a line for a person; NUL included */

/* NodeHealth of dpt.proto has the fields. The fault is kept apart: a node that has one is no
 * member. */
struct dpt_health {
    bool checked; /* false: the node has made no check, and all else is 0 */
    int64_t check_us, memory_bytes;
    uint32_t cores, mflops, round_trip_us;
};

/* Fills a message without a fault. */
void dpt_health_to_message(const struct dpt_health *health, Dpt__NodeHealth *ret);
/* message NULL: there was no check. */
void dpt_health_from_message(const Dpt__NodeHealth *message, struct dpt_health *ret);

/* DPT_EPROTO: a number is out of its range. message NULL: it is in order. */
DPT_MUST_USE enum dpt_status dpt_health_check_ranges(const Dpt__NodeHealth *message,
                                                     struct dpt_err *err);

#endif
