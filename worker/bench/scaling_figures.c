/* Speed-up, efficiency, causes of lost time (scaling_figures.h). */
#include "worker/bench/scaling_figures.h"

#include <math.h>

static const double small_loss = 0.05; /* of the step */

static double ideal_speed_up(const struct scaling_point *base, const struct scaling_point *point)
{
    return (double)point->ranks / base->ranks;
}

double scaling_speed_up(bool weak, const struct scaling_point *base,
                        const struct scaling_point *point)
{
    const double faster = base->step_ms / point->step_ms;
    return weak ? faster * ideal_speed_up(base, point) : faster;
}

double scaling_efficiency(bool weak, const struct scaling_point *base,
                          const struct scaling_point *point)
{
    return scaling_speed_up(weak, base, point) / ideal_speed_up(base, point);
}

double scaling_bound(double processors, const struct scaling_point *base,
                     const struct scaling_point *point)
{
    return fmin(point->ranks, processors) / fmin(base->ranks, processors) /
           ideal_speed_up(base, point);
}

struct scaling_loss scaling_loss_of(const struct scaling_terms *terms,
                                    const struct scaling_point *base,
                                    const struct scaling_point *point)
{
    struct scaling_loss loss = {
        .ideal_ms = terms->weak ? base->step_ms : base->step_ms / ideal_speed_up(base, point)};
    const double bound = scaling_bound(terms->processors, base, point);
    const double shared_ms = loss.ideal_ms / bound - loss.ideal_ms;
    /* The base's waits are part of its step, and so of the ideal step. */
    const double scale = loss.ideal_ms / base->step_ms;
    const double exposed_ms = fmax(point->exposed_ms - scale * base->exposed_ms, 0),
                 late_ms = fmax(point->late_ms - scale * base->late_ms, 0);
    const double waited_ms = exposed_ms + late_ms;
    const double kept = waited_ms > 0 ? fmax(waited_ms - shared_ms, 0) / waited_ms : 0;
    const double computed_ms = point->step_ms - point->exposed_ms - point->late_ms;
    loss.ms[SCALING_PROCESSORS] = shared_ms;
    loss.ms[SCALING_COMMUNICATION] = kept * exposed_ms;
    loss.ms[SCALING_IMBALANCE] = fmin(kept * late_ms, computed_ms * (point->busiest - 1));
    loss.ms[SCALING_STRAGGLER] = kept * late_ms - loss.ms[SCALING_IMBALANCE];
    loss.ms[SCALING_COMPUTATION] = point->step_ms - loss.ideal_ms - shared_ms - kept * waited_ms;
    return loss;
}

enum scaling_cause scaling_bottleneck(const struct scaling_point *point,
                                      const struct scaling_loss *loss)
{
    enum scaling_cause worst = SCALING_PROCESSORS;
    if (point->step_ms - loss->ideal_ms <= small_loss * loss->ideal_ms)
        return SCALING_CAUSES;
    for (int i = 1; i < SCALING_CAUSES; i++)
        if (loss->ms[i] > loss->ms[worst])
            worst = (enum scaling_cause)i;
    return worst;
}
