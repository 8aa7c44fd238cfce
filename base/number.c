/* Numbers for a person. */
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double plain_below = 1e15;

const char *dpt_number_grouped(double value, int decimals, char ret[DPT_NUMBER_BYTES])
{
    char plain[DPT_NUMBER_BYTES];
    size_t n = 0;
    if (!isfinite(value) || fabs(value) >= plain_below) {
        (void)snprintf(ret, DPT_NUMBER_BYTES, "%.3e", value);
        return ret;
    }
    (void)snprintf(plain, sizeof plain, "%.*f", decimals, value);
    const size_t sign = plain[0] == '-', whole = strcspn(plain, ".");
    for (size_t i = 0; plain[i] && n + 2 < DPT_NUMBER_BYTES; i++) {
        if (i > sign && i < whole && (whole - i) % 3 == 0)
            ret[n++] = ',';
        ret[n++] = plain[i];
    }
    ret[n] = '\0';
    return ret;
}
