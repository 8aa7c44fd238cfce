/* A time as a person reads it. */
#include "base/utc.h"

#include <stdio.h>
#include <time.h>

void dpt_utc_text(int64_t at_s, char ret[DPT_UTC_TEXT_BYTES])
{
    const time_t at = (time_t)at_s;
    struct tm parts;
    if (gmtime_r(&at, &parts) == NULL ||
        strftime(ret, DPT_UTC_TEXT_BYTES, "%Y-%m-%d %H:%M UTC", &parts) == 0)
        (void)snprintf(ret, DPT_UTC_TEXT_BYTES, "second %lld", (long long)at_s);
}
