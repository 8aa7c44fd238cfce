/* Monotonic and wall clocks. */
#include "base/clock.h"

#include "base/fs.h"
#include "base/hash.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

int64_t dpt_now_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t dpt_now_ms(void)
{
    return dpt_now_ns() / 1000000;
}

double dpt_wall_seconds(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int64_t dpt_wall_ns(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

uint64_t dpt_clock_identity(void)
{
    char boot[64], space[48] = "", text[sizeof boot + sizeof space + 1];
    if (!dpt_fs_read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot) || !boot[0])
        return 0;
    /* A kernel before 5.6 has no time namespaces, and no such file. */
    if (readlink("/proc/self/ns/time", space, sizeof space - 1) < 0)
        space[0] = '\0';
    const int n = snprintf(text, sizeof text, "%s %s", boot, space);
    const uint64_t hash = dpt_hash128(text, (size_t)n).lo;
    return hash != 0 ? hash : 1;
}
