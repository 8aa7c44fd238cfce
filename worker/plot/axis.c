/* Axes of a panel (axis.h). */
#include "worker/plot/axis.h"

#include "base/number.h"
#include "worker/html/scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INTERVALS = 6, DECIMALS_MAX = 9 };

/* The unit of an axis whose values reach `from`, largest first. */
struct unit {
    double from;
    double size; /* in the values' unit */
    const char *name;
};

static const struct unit loss_units[] = {{0, 1, "Loss (nats)"}};
static const struct unit throughput_units[] = {{1e6, 1e6, "Throughput (million tokens/s)"},
                                               {1e4, 1e3, "Throughput (thousand tokens/s)"},
                                               {0, 1, "Throughput (tokens/s)"}};
static const struct unit lr_units[] = {{1e-2, 1, "Learning rate"},
                                       {1e-3, 1e-3, "Learning rate (× 10⁻³)"},
                                       {1e-4, 1e-4, "Learning rate (× 10⁻⁴)"},
                                       {1e-5, 1e-5, "Learning rate (× 10⁻⁵)"},
                                       {0, 1e-6, "Learning rate (× 10⁻⁶)"}};
static const struct unit memory_units[] = {
    {1073741824.0, 1073741824.0, "Memory allocated by the writing rank (GiB)"},
    {1048576.0, 1048576.0, "Memory allocated by the writing rank (MiB)"},
    {0, 1024, "Memory allocated by the writing rank (KiB)"}};

static const struct {
    const struct unit *units;
    int n;
} units_of[PLOT_QUANTITIES] = {
    [PLOT_LOSS] = {loss_units, sizeof loss_units / sizeof *loss_units},
    [PLOT_THROUGHPUT] = {throughput_units, sizeof throughput_units / sizeof *throughput_units},
    [PLOT_LR] = {lr_units, sizeof lr_units / sizeof *lr_units},
    [PLOT_MEMORY] = {memory_units, sizeof memory_units / sizeof *memory_units},
};

struct plot_axis plot_step_axis(const struct plot_run *runs, int n_runs)
{
    struct plot_axis axis = {
        .low = (double)INFINITY, .high = 0, .tick = 0, .unit = 1, .name = "Step"};
    for (int i = 0; i < n_runs; i++) {
        const struct plot_run *run = &runs[i];
        axis.low = fmin(axis.low, (double)run->points[0].step);
        axis.high = fmax(axis.high, (double)run->points[run->n_points - 1].step);
        if (run->n_evaluations == 0)
            continue;
        axis.low = fmin(axis.low, (double)run->evaluations[0].step);
        axis.high = fmax(axis.high, (double)run->evaluations[run->n_evaluations - 1].step);
    }
    if (axis.low < 0.1 * axis.high)
        axis.low = 0;
    if (axis.high - axis.low < 1)
        axis.high = axis.low + 1;
    axis.tick = fmax(1, dpt_html_tick(axis.high - axis.low, INTERVALS));
    return axis;
}

/* The range of the finite values; false: there are none. */
static bool find_range(const struct plot_run *runs, int n_runs, enum plot_quantity quantity,
                       double *ret_low, double *ret_high)
{
    double low = (double)INFINITY, high = -(double)INFINITY;
    for (int i = 0; i < n_runs; i++) {
        for (size_t k = 0; k < runs[i].n_points; k++) {
            const double value = runs[i].points[k].value[quantity];
            if (!isfinite(value))
                continue;
            low = fmin(low, value);
            high = fmax(high, value);
        }
        for (size_t k = 0; quantity == PLOT_LOSS && k < runs[i].n_evaluations; k++) {
            const double value = runs[i].evaluations[k].loss;
            if (!isfinite(value))
                continue;
            low = fmin(low, value);
            high = fmax(high, value);
        }
    }
    *ret_low = low;
    *ret_high = high;
    return low <= high;
}

static const struct unit *choose_unit(enum plot_quantity quantity, double high)
{
    int i = 0;
    while (i + 1 < units_of[quantity].n && high < units_of[quantity].units[i].from)
        i++;
    return &units_of[quantity].units[i];
}

bool plot_value_axis(const struct plot_run *runs, int n_runs, enum plot_quantity quantity,
                     struct plot_axis *ret)
{
    double low, high;
    if (!find_range(runs, n_runs, quantity, &low, &high))
        return false;
    const struct unit *unit = choose_unit(quantity, high);
    low /= unit->size;
    high /= unit->size;
    if (quantity != PLOT_LOSS && low > 0)
        low = 0;
    if (high - low < 1e-9 * fmax(1, fabs(high))) { /* one value */
        low -= 0.5;
        high += 0.5;
    }
    const double tick = dpt_html_tick(high - low, INTERVALS);
    /* Whole ticks, and more than the greatest value, so that the curve does not touch the frame. */
    *ret = (struct plot_axis){.low = tick * floor(low / tick),
                              .high = tick * ceil(high / tick + 1e-4),
                              .tick = tick,
                              .unit = unit->size,
                              .name = unit->name};
    return isfinite(ret->low) && isfinite(ret->high) && ret->low < ret->high;
}

int plot_ticks(const struct plot_axis *axis, double ret_ticks[AXIS_TICKS_MAX])
{
    int n = 0;
    const double first = ceil(axis->low / axis->tick - 1e-9);
    for (int i = 0; i < AXIS_TICKS_MAX; i++) {
        const double tick = (first + i) * axis->tick;
        if (tick <= axis->high + 1e-9 * axis->tick)
            ret_ticks[n++] = tick;
    }
    return n;
}

void plot_tick_label(const struct plot_axis *axis, double tick, char ret[AXIS_LABEL_BYTES])
{
    const double decimals = fmax(0, ceil(-log10(axis->tick) - 1e-9));
    const double largest = fmax(fabs(axis->low), fabs(axis->high));
    if (largest >= 1e9 || decimals > DECIMALS_MAX)
        (void)snprintf(ret, AXIS_LABEL_BYTES, "%.3g", tick);
    else if (decimals == 0)
        (void)dpt_number_grouped(tick, 0, ret);
    else
        (void)snprintf(ret, AXIS_LABEL_BYTES, "%.*f", (int)decimals, tick == 0 ? 0.0 : tick);
}
