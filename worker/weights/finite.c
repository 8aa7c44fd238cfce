/* NaN and infinities in a file of weights (finite.h). */
#include "worker/weights/finite.h"

#include <math.h>
#include <string.h>

/* Without a branch for each value: all values of all weights pass here. */
static bool all_finite(const float *values, int64_t n)
{
    static const uint32_t exponent = 0x7f800000; /* all ones: NaN or infinite (IEEE 754, 3.4) */
    uint32_t odd = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        odd |= (bits & exponent) == exponent;
    }
    return odd == 0;
}

enum dpt_status dpt_weights_check_finite(const char *path, const char *name, int64_t first,
                                         int64_t end, const float *values, struct dpt_err *err)
{
    int64_t at = 0;
    if (all_finite(values, end - first))
        return DPT_OK;
    while (isfinite(values[at]))
        at++;
    return dpt_fail(err, DPT_ECORRUPT,
                    "'%s': tensor '%s' has the value %s at element %lld: no model computes with "
                    "it; take weights of a run that has not diverged, or download the file again",
                    path, name, isnan(values[at]) ? "NaN" : "infinity", (long long)(first + at));
}
