/* What a phase of the crowd costs the server. */
#ifndef DPT_TESTS_RENDEZVOUS_SCALE_METER_H
#define DPT_TESTS_RENDEZVOUS_SCALE_METER_H

#include "base/clock.h"
#include "tests/rendezvous/scale/crowd.h"

/* Parts of a phase are timed by dpt_now_ns: to read the CPU time is a system call, of about 1 us,
 * and there are millions of parts. */
struct meter {
    struct crowd_cost cost; /* its users add to the parts */
    int64_t began_ns, began_cpu_ns;
};

void meter_begin(struct meter *meter);
/* The cost since the last call. Other processes of the machine do not count: each part is given its
 * share of the CPU time of this one. */
struct crowd_cost meter_take(struct meter *meter);

/* Heap that this process uses; 0: its allocator does not tell. */
size_t meter_heap_bytes(void);

#endif
