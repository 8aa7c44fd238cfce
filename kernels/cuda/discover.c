/* The CUDA devices of this machine and their kinds. Opens no device. */
#include "kernels/cuda/cudnn_ops.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

enum { CC_MAJOR_MIN = 8 };

/* Finds device `index` and checks that it can run the compiled kernels. */
static enum dpt_status find_device(int index, struct cudaDeviceProp *ret, struct dpt_err *err)
{
    int count = 0, driver = 0;
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
        return dpt_fail(err, DPT_ENOENT,
                        "there is no CUDA device here (nvidia-smi and CUDA_VISIBLE_DEVICES say "
                        "which there are); or set cluster.device to cpu");
    if (code == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        return dpt_fail(err, DPT_EVERSION,
                        "the driver of NVIDIA is missing or too old (it has CUDA %d, this build "
                        "needs %d): install a newer one, or set cluster.device to cpu",
                        driver, CUDART_VERSION);
    }
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "looking for devices", index);
    if (index < 0 || index >= count)
        return dpt_fail(err, DPT_ENOENT,
                        "there is no CUDA device %d: this machine shows %d; a node starts one rank "
                        "a device, so set cluster.gpus_per_node to at most that",
                        index, count);
    const cudaError_t asked = cudaGetDeviceProperties(ret, index);
    if (asked != cudaSuccess)
        return dpt_cuda_translate(err, asked, "asking what it is", index);
    if (ret->major < CC_MAJOR_MIN)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "CUDA device %d (%s) has compute capability %d.%d; %d.0 is needed", index,
                        ret->name, ret->major, ret->minor, CC_MAJOR_MIN);
    return DPT_OK;
}

enum dpt_status dpt_cuda_find_fingerprint(int index, char ret[DPT_FINGERPRINT_BYTES],
                                          struct dpt_err *err)
{
    struct cudaDeviceProp is;
    int driver = 0, runtime = 0;
    DPT_TRY(find_device(index, &is, err));
    cudaError_t code = cudaDriverGetVersion(&driver);
    if (code == cudaSuccess)
        code = cudaRuntimeGetVersion(&runtime);
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "asking for versions", index);
    (void)snprintf(ret, DPT_FINGERPRINT_BYTES, "cuda sm%d%dx%d driver-%d rt-%d lt-%zu dnn-%zu",
                   is.major, is.minor, is.multiProcessorCount, driver, runtime,
                   cublasLtGetVersion(), dpt_cudnn_version());
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_name(int index, char ret[DPT_DEVICE_NAME_BYTES],
                                     struct dpt_err *err)
{
    struct cudaDeviceProp is;
    DPT_TRY(find_device(index, &is, err));
    (void)snprintf(ret, DPT_DEVICE_NAME_BYTES, "%s", is.name);
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_bus(int index, char ret[DPT_DEVICE_BUS_BYTES], struct dpt_err *err)
{
    struct cudaDeviceProp is;
    DPT_TRY(find_device(index, &is, err));
    const cudaError_t code = cudaDeviceGetPCIBusId(ret, DPT_DEVICE_BUS_BYTES, index);
    return code == cudaSuccess ? DPT_OK
                               : dpt_cuda_translate(err, code, "asking where it is", index);
}

enum dpt_status dpt_device_cuda_peer(int from, int to, bool *ret, struct dpt_err *err)
{
    struct cudaDeviceProp is;
    int can = 0;
    DPT_TRY(find_device(from, &is, err));
    DPT_TRY(find_device(to, &is, err));
    const cudaError_t code = cudaDeviceCanAccessPeer(&can, from, to);
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "asking for its peers", from);
    *ret = can != 0;
    return DPT_OK;
}

enum dpt_status dpt_device_cuda_look(int *ret_count, char ret_fingerprint[DPT_FINGERPRINT_BYTES],
                                     struct dpt_err *err)
{
    int count = 0;
    DPT_TRY(dpt_cuda_find_fingerprint(0, ret_fingerprint, err));
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess)
        return dpt_cuda_translate(err, code, "looking for devices", 0);
    for (int i = 1; i < count; i++) {
        char other[DPT_FINGERPRINT_BYTES];
        DPT_TRY(dpt_cuda_find_fingerprint(i, other, err));
        if (strcmp(other, ret_fingerprint) != 0)
            return dpt_fail(err, DPT_EUNSUPPORTED,
                            "CUDA devices 0 and %d are of different kinds (%s; %s) and compute "
                            "other bits: choose those of one kind with CUDA_VISIBLE_DEVICES",
                            i, ret_fingerprint, other);
    }
    *ret_count = count;
    return DPT_OK;
}
