/* The functions of kernels/device_activity.h in a build without CUDA or without CUPTI's header. */
#include "kernels/device_activity.h"

enum dpt_status dpt_activity_open(size_t records_max, struct dpt_activity **ret,
                                  struct dpt_err *err)
{
    (void)records_max;
    (void)ret;
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "this build has no CUPTI; `deploy/build cuda` makes one that has, where CUDA's "
                    "header cupti.h is (package cuda-cupti-dev of NVIDIA)");
}

void dpt_activity_close(struct dpt_activity **activity)
{
    *activity = NULL;
}

enum dpt_status dpt_activity_start(struct dpt_activity *activity, struct dpt_err *err)
{
    (void)activity;
    (void)err;
    DPT_ASSERT(!"an activity in a build that opens none");
    return DPT_EUNSUPPORTED;
}

void dpt_activity_restart(struct dpt_activity *activity)
{
    (void)activity;
}

void dpt_activity_stop(struct dpt_activity *activity)
{
    (void)activity;
}

void dpt_activity_read(const struct dpt_activity *activity, struct dpt_device_records *ret)
{
    (void)activity;
    *ret = (struct dpt_device_records){.n = 0};
}
