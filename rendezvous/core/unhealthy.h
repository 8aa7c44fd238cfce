/* Processes that were refused because of their health check, for unhealthy.c. */
#ifndef DPT_RENDEZVOUS_CORE_UNHEALTHY_H
#define DPT_RENDEZVOUS_CORE_UNHEALTHY_H

#include <stddef.h>
#include <stdint.h>

enum { UNHEALTHY_MAX = 16 };

/* The last ones. A process that repeats its message before it ends causes one record. */
struct unhealthy_list {
    struct {
        uint64_t id_hash, incarnation;
    } ring[UNHEALTHY_MAX];
    size_t n; /* number ever added to the ring */
};

#endif
