/* Clocks. Pure modules do not read a clock: their events carry the time. */
#ifndef DPT_BASE_CLOCK_H
#define DPT_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic time since an arbitrary start, the same for every process of one boot
 * (CLOCK_MONOTONIC). */
int64_t dpt_now_ms(void);
int64_t dpt_now_ns(void);

/* Seconds since 1970-01-01 UTC, for logs and files only; never compared with a deadline. */
double dpt_wall_seconds(void);
int64_t dpt_wall_ns(void);

/* Identity of the clock that dpt_now_ns reads: processes with equal values read one clock. It is a
 * hash of the system's boot and of the time namespace. 0: unknown. */
uint64_t dpt_clock_identity(void);

#endif
