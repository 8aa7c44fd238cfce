/* NaN and infinities in a file of weights (finite.h). */
#include "worker/weights/finite.h"

#include "base/finite.h"

#include <math.h>

enum dpt_status dpt_weights_check_finite(const char *path, const char *name, int64_t first,
                                         int64_t end, const float *values, struct dpt_err *err)
{
    int64_t at = 0;
    if (dpt_all_finite(values, (size_t)(end - first)))
        return DPT_OK;
    while (isfinite(values[at]))
        at++;
    return dpt_fail(err, DPT_ECORRUPT,
                    "'%s': tensor '%s' has the value %s at element %lld: no model computes with "
                    "it; take weights of a run that has not diverged, or download the file again",
                    path, name, isnan(values[at]) ? "NaN" : "infinity", (long long)(first + at));
}
