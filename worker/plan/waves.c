/* Slots in waves (waves.h). */
#include "worker/plan/waves.h"

#include "base/err.h"

int dpt_assignment_end(const struct dpt_assignment *assignment)
{
    return assignment->n > 0 ? assignment->first + (assignment->n - 1) * assignment->stride + 1
                             : assignment->first;
}

/* The slots of the run. */
static struct dpt_range slots_of(const struct dpt_waves *w)
{
    DPT_ASSERT(w->members >= 1 && w->run.first >= 0 && w->run.first < w->run.end &&
               w->run.end <= w->lanes && w->lanes <= w->slots);
    return (struct dpt_range){dpt_lane_slots(w->slots, w->lanes, w->run.first).first,
                              dpt_lane_slots(w->slots, w->lanes, w->run.end - 1).end};
}

int dpt_waves_count(const struct dpt_waves *w)
{
    const struct dpt_range slots = slots_of(w);
    return (slots.end - slots.first + w->members - 1) / w->members;
}

int dpt_waves_active(const struct dpt_waves *w, int wave)
{
    const struct dpt_range slots = slots_of(w);
    const int left = slots.end - slots.first - wave * w->members;
    DPT_ASSERT(wave >= 0 && left > 0);
    return left < w->members ? left : w->members;
}

struct dpt_assignment dpt_waves_assign(const struct dpt_waves *w, int member)
{
    const struct dpt_range slots = slots_of(w);
    DPT_ASSERT(member >= 0 && member < w->members);
    const int n = (slots.end - slots.first - member + w->members - 1) / w->members;
    return (struct dpt_assignment){.first = slots.first + member, .stride = w->members, .n = n};
}

int dpt_waves_sum_steps(const struct dpt_waves *w, struct dpt_sum_step *ret, int *ret_first)
{
    const struct dpt_range slots = slots_of(w);
    int n = 0, sum = 0;
    for (int slot = slots.first; slot < slots.end; slot++) {
        const int at = slot - slots.first, member = at % w->members;
        const int lane = dpt_share_of(w->slots, w->lanes, slot);
        const struct dpt_range of_lane = dpt_lane_slots(w->slots, w->lanes, lane);
        if (member == 0)
            ret_first[at / w->members] = n;
        ret[n++] =
            (struct dpt_sum_step){slot == of_lane.first ? DPT_SUM_SET : DPT_SUM_ADD, sum, member};
        if (slot + 1 < of_lane.end)
            continue;
        for (int joins = dpt_tree_joins_after(w->lanes, w->run, lane); joins > 0; joins--)
            ret[n++] = (struct dpt_sum_step){DPT_SUM_JOIN, --sum, -1};
        sum++; /* the sum of the next lane */
    }
    ret_first[dpt_waves_count(w)] = n;
    return n;
}

int dpt_waves_sums(const struct dpt_waves *w)
{
    return dpt_tree_buffers(w->lanes, w->run);
}
