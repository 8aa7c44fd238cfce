/* A library for LD_PRELOAD by which a program has a clock that is off by $DPT_TEST_CLOCK_S seconds.
 * Deadlines are times of CLOCK_MONOTONIC, which stays as it is. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t shift_s(void)
{
    const char *text = getenv("DPT_TEST_CLOCK_S");
    return text != NULL ? (time_t)strtoll(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    if (syscall(SYS_clock_gettime, clock, ret) != 0)
        return -1;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        ret->tv_sec += shift_s();
    return 0;
}

int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    *ret = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *ret)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    if (ret != NULL)
        *ret = now.tv_sec;
    return now.tv_sec;
}
