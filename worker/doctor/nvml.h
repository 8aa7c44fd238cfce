/* The few calls of NVIDIA's management library that dpt-doctor makes, as a table of functions: the
 * library is found at run time, and tests have a double. */
#ifndef DPT_WORKER_DOCTOR_NVML_H
#define DPT_WORKER_DOCTOR_NVML_H

#include "base/err.h"

enum { DPT_NVML_BUS_BYTES = 32, DPT_NVML_NAME_BYTES = 96, DPT_NVML_LINKS_MAX = 18 };

/* Each call returns 0 or an error number of the library. `gpu` is the library's index. */
struct dpt_nvml_calls {
    int (*count)(void *ctx, unsigned *ret);
    /* ret: "00000000:1B:00.0". */
    int (*bus)(void *ctx, unsigned gpu, char ret[DPT_NVML_BUS_BYTES]);
    int (*name)(void *ctx, unsigned gpu, char ret[DPT_NVML_NAME_BYTES]);
    /* *ret: whether the link is up. */
    int (*link_up)(void *ctx, unsigned gpu, unsigned link, bool *ret);
    /* The device at the other end of a link: a GPU, or a switch. */
    int (*link_bus)(void *ctx, unsigned gpu, unsigned link, char ret[DPT_NVML_BUS_BYTES]);
    /* *ret: 0 when the GPU can read the memory of the other; else the reason (nvmlGpuP2PStatus_t).
     */
    int (*p2p)(void *ctx, unsigned gpu, unsigned other, int *ret);
    void *ctx;
};

struct dpt_nvml;

/* Opens libnvidia-ml.so.1. DPT_ENOENT: there is no such library; DPT_EDEVICE: it does not start.
 * The text names the reason. */
DPT_MUST_USE enum dpt_status dpt_nvml_open(struct dpt_nvml **ret, struct dpt_err *err);
void dpt_nvml_close(struct dpt_nvml **nvml);
const struct dpt_nvml_calls *dpt_nvml_calls(const struct dpt_nvml *nvml);

#endif
