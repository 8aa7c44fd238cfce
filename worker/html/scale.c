/* The ticks of an axis. */
#include "worker/html/scale.h"

#include <math.h>

double dpt_html_tick(double range, int intervals)
{
    const double rough = range / intervals, power = pow(10, floor(log10(rough)));
    const double digit = rough / power;
    const double rounding = 1.0001;
    return power * (digit <= rounding       ? 1
                    : digit <= 2 * rounding ? 2
                    : digit <= 5 * rounding ? 5
                                            : 10);
}
