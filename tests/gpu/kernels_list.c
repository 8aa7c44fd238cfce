/* Prints the names of the kernels that a CUDA device loads when it is created, for
 * tests/gpu/loaded; and creates one, where there is a GPU. */
#include "kernels/cuda/load.h"
#include "kernels/device.h"

#include <stdio.h>

int main(void)
{
    struct dpt_device *device = NULL;
    struct dpt_err err;
    const enum dpt_status status = dpt_device_cuda_create(0, &device, &err);
    if (status == DPT_OK) {
        dpt_device_destroy(&device);
    } else if (status != DPT_ENOENT && status != DPT_EVERSION) { /* no device, no driver */
        (void)fprintf(stderr, "test_gpu_kernels: %s\n", err.text);
        return 1;
    }
    for (int i = 0; i < dpt_cuda_kernels(); i++)
        if (puts(dpt_cuda_kernel_name(i)) == EOF)
            return 1;
    return 0;
}
