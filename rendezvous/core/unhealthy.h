/* Processes that were refused because of their health check, for unhealthy.c. */
#ifndef DPT_RENDEZVOUS_CORE_UNHEALTHY_H
#define DPT_RENDEZVOUS_CORE_UNHEALTHY_H

#include "base/log.h"
#include "rendezvous/core/core.h"

#include <stddef.h>
#include <stdint.h>

/* In a minute. A machine may send another node id in each message, and its records stay in the
 * journal. */
enum { UNHEALTHY_MAX = 256, UNHEALTHY_OF_KEY = 16, UNHEALTHY_MS = 60000 };

/* The last ones. A process that repeats its message before it ends causes one record. */
struct unhealthy_list {
    struct unhealthy {
        uint64_t id_hash, incarnation;
        int64_t at_ms; /* 0: the entry is unused */
        uint8_t key[DPT_RDZV_KEY_BYTES];
    } ring[UNHEALTHY_MAX];
    size_t n; /* number ever added to the ring */
    struct dpt_log_bound left_out;
};

#endif
