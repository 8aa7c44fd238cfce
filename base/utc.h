/* A time as a person reads it. Pure. */
#ifndef DPT_BASE_UTC_H
#define DPT_BASE_UTC_H

#include <stdint.h>

enum { DPT_UTC_TEXT_BYTES = 48 };

/* "2026-11-28 09:30 UTC". at_s: seconds since 1970; "second N" if the year is too large. */
void dpt_utc_text(int64_t at_s, char ret[DPT_UTC_TEXT_BYTES]);

#endif
