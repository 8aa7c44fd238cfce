/* Cores and demand (cores.h). */
#include "base/cores.h"

#include "base/cgroup.h"
#include "base/hash.h"

#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int demand;
static atomic_int cores; /* 0: not counted yet */

int dpt_cores_identified(uint64_t *ret_id)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    long n = sched_getaffinity(0, sizeof set, &set) == 0
                 ? CPU_COUNT(&set)
                 : sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    n = n > 0 ? n : 1;
    *ret_id = dpt_hash128(&set, sizeof set).lo;
    double cpus;
    uint64_t group;
    /* Rounded down, because threads work in lockstep: if one thread waits for the next period of
     * the quota, all wait. */
    if (dpt_cgroup_quota(DPT_CGROUP_MEMBERSHIP, DPT_CGROUP_MOUNT, &cpus, &group) &&
        cpus < (double)n) {
        n = cpus >= 1 ? (long)cpus : 1;
        *ret_id ^= group;
    }
    atomic_store_explicit(&cores, (int)n, memory_order_relaxed);
    return (int)n;
}

int dpt_cores(void)
{
    uint64_t id;
    return dpt_cores_identified(&id);
}

static int counted_cores(void)
{
    const int n = atomic_load_explicit(&cores, memory_order_relaxed);
    return n > 0 ? n : dpt_cores();
}

void dpt_cores_set_demand(int threads)
{
    (void)dpt_cores(); /* counts them again */
    atomic_store_explicit(&demand, threads, memory_order_relaxed);
}

bool dpt_cores_spare(int threads)
{
    const int known = atomic_load_explicit(&demand, memory_order_relaxed);
    return threads <= counted_cores() && known <= counted_cores();
}

bool dpt_cores_known_spare(void)
{
    const int known = atomic_load_explicit(&demand, memory_order_relaxed);
    return known > 0 && known <= counted_cores();
}
