/* The list of a step. */
#include "worker/plan/schedule.h"

#include <stddef.h>

int dpt_schedule_data_parallel(struct dpt_range slots, int n_units, struct dpt_action *ret)
{
    int n = 0;
    for (int slot = slots.first; slot < slots.end; slot++) {
        if (ret) {
            struct dpt_action *a = ret + n;
            *a++ = (struct dpt_action){DPT_ACTION_BEGIN_SLOT, -1, slot};
            for (int unit = 0; unit < n_units; unit++)
                *a++ = (struct dpt_action){DPT_ACTION_FORWARD, unit, slot};
            for (int unit = n_units - 1; unit >= 0; unit--)
                *a++ = (struct dpt_action){DPT_ACTION_BACKWARD, unit, slot};
            *a = (struct dpt_action){DPT_ACTION_END_SLOT, -1, slot};
        }
        n += 2 + 2 * n_units;
    }
    return n;
}
