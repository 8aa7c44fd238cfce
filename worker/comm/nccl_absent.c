/* A build without NCCL. */
#include "worker/comm/nccl_calls.h"

enum dpt_status dpt_nccl_calls_load(const struct dpt_nccl_calls **ret, struct dpt_err *err)
{
    *ret = NULL;
    return dpt_fail(
        err, DPT_EUNSUPPORTED,
        "this build has no NCCL: build with preset cuda where NCCL is installed, or set "
        "cluster.backend to host");
}
