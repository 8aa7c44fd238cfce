/* Numbers for a person. */
#ifndef DPT_BASE_NUMBER_H
#define DPT_BASE_NUMBER_H

#include <stdint.h>

enum { DPT_NUMBER_BYTES = 40 };

/* Prints a number with `decimals` (0 to 9) digits after the point and a comma before every three
 * digits of the whole part: "-12,345.6". From 1e15 on: "1.235e+16". Not finite: "nan", "inf" or
 * "-inf". Returns `ret`. */
const char *dpt_number_grouped(double value, int decimals, char ret[DPT_NUMBER_BYTES]);

static inline double dpt_mib(int64_t bytes)
{
    return (double)bytes / 0x1p20;
}

#endif
