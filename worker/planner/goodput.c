/* Goodput: see goodput.h. */
#include "worker/planner/goodput.h"

#include <math.h>

double dpt_goodput_mtbf(double machine_mtbf_s, int machines)
{
    return machine_mtbf_s / machines;
}

double dpt_goodput_young(double save_s, double mtbf_s)
{
    return sqrt(2 * save_s * mtbf_s);
}

double dpt_goodput_daly(double save_s, double mtbf_s)
{
    const double ratio = save_s / (2 * mtbf_s);
    if (ratio >= 1)
        return mtbf_s;
    return dpt_goodput_young(save_s, mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - save_s;
}

double dpt_goodput(const struct dpt_failure_times *times)
{
    const double mtbf = times->mtbf_s, segment = times->interval_s + times->save_s;
    return times->interval_s / (mtbf * exp(times->recover_s / mtbf) * expm1(segment / mtbf));
}

double dpt_goodput_replicated(const struct dpt_failure_times *times, double step_s)
{
    const struct dpt_failure_times step = {
        .mtbf_s = times->mtbf_s, .interval_s = step_s, .recover_s = times->recover_s};
    return dpt_goodput(&step) * times->interval_s / (times->interval_s + times->save_s);
}
