/* The result of a node's health check (health.h). */
#include "rendezvous/proto/health.h"

#include <stddef.h>

void dpt_health_to_message(const struct dpt_health *health, Dpt__NodeHealth *ret)
{
    dpt__node_health__init(ret);
    ret->check_us = health->check_us;
    ret->memory_bytes = health->memory_bytes;
    ret->cores = health->cores;
    ret->mflops = health->mflops;
    ret->round_trip_us = health->round_trip_us;
}

void dpt_health_from_message(const Dpt__NodeHealth *message, struct dpt_health *ret)
{
    *ret = (struct dpt_health){.checked = false};
    if (message != NULL)
        *ret = (struct dpt_health){.checked = true,
                                   .check_us = message->check_us,
                                   .memory_bytes = message->memory_bytes,
                                   .cores = message->cores,
                                   .mflops = message->mflops,
                                   .round_trip_us = message->round_trip_us};
}

enum dpt_status dpt_health_check_ranges(const Dpt__NodeHealth *message, struct dpt_err *err)
{
    if (message != NULL && message->check_us < 0)
        return dpt_fail(err, DPT_EPROTO, "field 'check_us': %lld is out of range",
                        (long long)message->check_us);
    if (message != NULL && message->memory_bytes < 0)
        return dpt_fail(err, DPT_EPROTO, "field 'memory_bytes': %lld is out of range",
                        (long long)message->memory_bytes);
    return DPT_OK;
}
