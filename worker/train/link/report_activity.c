/* The work of the rank's threads in its report (link.h). */
#include "base/clock.h"
#include "worker/trace/present_work.h"
#include "worker/train/link/link.h"

_Static_assert((int)DPT_WORK_AWAIT_OWN == (int)DPT__RANK_WORK__WORK_AWAIT_OWN &&
                   (int)DPT_WORK_COMMIT == (int)DPT__RANK_WORK__WORK_COMMIT &&
                   (int)DPT_WORK_GATHER == (int)DPT__RANK_WORK__WORK_GATHER,
               "dpt.proto numbers the works as present_work.h does");

static int64_t ms_since(int64_t since_ns)
{
    const int64_t ns = dpt_now_ns() - since_ns;
    return since_ns > 0 && ns > 0 ? ns / 1000000 : 0;
}

void dpt_report_set_activity(struct dpt_report *report, const struct dpt_present_work *activity)
{
    const struct dpt_present_work_view own = dpt_present_work_read(activity, DPT_PRESENT_WORK_MAIN),
                                       comm =
                                           dpt_present_work_read(activity, DPT_PRESENT_WORK_COMM);
    Dpt__RankActivity *to = &report->activity;
    to->main = (Dpt__RankWork)own.work;
    to->main_unit = (uint32_t)(own.unit + 1);
    to->main_slot = (uint32_t)own.slot + 1;
    to->main_ms = ms_since(own.since_ns);
    to->comm = (Dpt__RankWork)comm.work;
    to->comm_unit = (uint32_t)(comm.unit + 1);
    to->comm_ms = ms_since(comm.since_ns);
    report->state.activity = to;
}
