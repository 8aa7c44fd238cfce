/* See meter.h. */
#include "tests/rendezvous/scale/meter.h"

#include "base/err.h"

#include <malloc.h>
#include <time.h>

static int64_t cpu_ns(void)
{
    struct timespec now;
    DPT_ASSERT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void meter_begin(struct meter *meter)
{
    *meter = (struct meter){.began_ns = dpt_now_ns(), .began_cpu_ns = cpu_ns()};
}

struct crowd_cost meter_take(struct meter *meter)
{
    struct crowd_cost cost = meter->cost;
    const double busy =
        (double)(cpu_ns() - meter->began_cpu_ns) / (double)(dpt_now_ns() - meter->began_ns);
    cost.core_ns = (int64_t)((double)cost.core_ns * busy);
    cost.decode_ns = (int64_t)((double)cost.decode_ns * busy);
    cost.encode_ns = (int64_t)((double)cost.encode_ns * busy);
    meter_begin(meter);
    return cost;
}

size_t meter_heap_bytes(void)
{
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}
