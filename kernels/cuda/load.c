/* The list of kernels, and their loading (load.h). */
#include "kernels/cuda/load.h"

#include "base/err.h"

#include <cuda_runtime_api.h>

enum { KERNELS_MAX = 4096 };

static struct {
    const void *address; /* the host address by which the runtime knows the kernel */
    const char *name;
} kernels[KERNELS_MAX];
static int n_kernels;

/* The parameters of __cudaRegisterFunction, as crt/host_runtime.h declares it; types that are not
 * used here are void *. Both are called before main, by one thread.
   NOLINTBEGIN(bugprone-reserved-identifier): the name is the runtime's */
void __cudaRegisterFunction(void **module, const char *address, char *name, const char *device_name,
                            int thread_limit, void *thread, void *block, void *block_size,
                            void *grid_size, int *warp_size);
/* NOLINTEND(bugprone-reserved-identifier) */
void dpt_cuda_register_kernel(void **module, const char *address, char *name,
                              const char *device_name, int thread_limit, void *thread, void *block,
                              void *block_size, void *grid_size, int *warp_size);
void dpt_cuda_register_kernel(void **module, const char *address, char *name,
                              const char *device_name, int thread_limit, void *thread, void *block,
                              void *block_size, void *grid_size, int *warp_size)
{
    DPT_ASSERT(n_kernels < KERNELS_MAX);
    kernels[n_kernels].address = address;
    kernels[n_kernels].name = device_name;
    n_kernels++;
    __cudaRegisterFunction(module, address, name, device_name, thread_limit, thread, block,
                           block_size, grid_size, warp_size);
}

int dpt_cuda_kernels(void)
{
    return n_kernels;
}

const char *dpt_cuda_kernel_name(int i)
{
    return kernels[i].name;
}

int dpt_cuda_load_kernels(const char **ret_name)
{
    DPT_ASSERT(n_kernels > 0); /* a .cu file was compiled without the renaming */
    for (int i = 0; i < n_kernels; i++) {
        struct cudaFuncAttributes attributes;
        const cudaError_t code = cudaFuncGetAttributes(&attributes, kernels[i].address);
        if (code == cudaSuccess)
            continue;
        (void)cudaGetLastError(); /* cleared, so that the next launch does not report it */
        *ret_name = kernels[i].name;
        return code;
    }
    return cudaSuccess;
}
