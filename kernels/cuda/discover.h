/* Between discover.c and device.c. */
#ifndef DPT_KERNELS_CUDA_DISCOVER_H
#define DPT_KERNELS_CUDA_DISCOVER_H

#include "kernels/device.h"

/* Whether device `index` is there and can run what was compiled, and its fingerprint. Errors as
 * dpt_device_cuda_create's. */
DPT_MUST_USE enum dpt_status dpt_cuda_find_fingerprint(int index, char ret[DPT_FINGERPRINT_BYTES],
                                                       struct dpt_err *err);

#endif
