/* Monotonic and wall clocks. */
#include "base/clock.h"

#include <time.h>

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
