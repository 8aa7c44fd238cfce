/* CUDA's calls for dpt_gpus_ask_cuda (gpus.h). */
#include "kernels/device.h"
#include "worker/doctor/gpus.h"

_Static_assert((int)DPT_DEVICE_BUS_BYTES <= (int)DPT_PCI_BUS_BYTES, "a bus id fits");

static enum dpt_status count_devices(int *ret, struct dpt_err *err)
{
    char fingerprint[DPT_FINGERPRINT_BYTES];
    return dpt_device_cuda_look(ret, fingerprint, err);
}

static enum dpt_status find_bus(int index, char *ret, struct dpt_err *err)
{
    return dpt_device_cuda_bus(index, ret, err);
}

const struct dpt_cuda_calls dpt_gpus_cuda = {
    .count = count_devices, .bus = find_bus, .peer = dpt_device_cuda_peer};
