/* The CUDA device's functions in a build without CUDA. */
#include "kernels/device.h"

static enum dpt_status fail_without_cuda(struct dpt_err *err)
{
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "this build has no CUDA; `deploy/build cuda` makes one that has (docs/gpu.md "
                    "says what it needs and what it can do), or set cluster.device to cpu");
}

enum dpt_status dpt_device_cuda_create(int index, struct dpt_device **ret, struct dpt_err *err)
{
    (void)index;
    (void)ret;
    return fail_without_cuda(err);
}

enum dpt_status dpt_device_cuda_name(int index, char ret[DPT_DEVICE_NAME_BYTES],
                                     struct dpt_err *err)
{
    (void)index;
    (void)ret;
    return fail_without_cuda(err);
}

enum dpt_status dpt_device_cuda_bus(int index, char ret[DPT_DEVICE_BUS_BYTES], struct dpt_err *err)
{
    (void)index;
    (void)ret;
    return fail_without_cuda(err);
}

enum dpt_status dpt_device_cuda_peer(int from, int to, bool *ret, struct dpt_err *err)
{
    (void)from;
    (void)to;
    (void)ret;
    return fail_without_cuda(err);
}

enum dpt_status dpt_device_cuda_look(int *ret_count, char ret_fingerprint[DPT_FINGERPRINT_BYTES],
                                     struct dpt_err *err)
{
    (void)ret_count;
    (void)ret_fingerprint;
    return fail_without_cuda(err);
}
