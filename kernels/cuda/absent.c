/* What a build without CUDA has in its place. */
#include "kernels/device.h"

enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret, struct dpt_err *err)
{
    (void)index;
    (void)ret;
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "this build has no CUDA; `deploy/build cuda` makes one that has (docs/gpu.md "
                    "says what it needs and what it can do), or set cluster.device to cpu");
}
