/* Loading all kernels of kernels/cuda at once.
 *
 * CUDA loads a kernel at its first use unless CUDA_MODULE_LOADING says otherwise, and loading may
 * wait for what is under way on the device (CUDA Programming Guide, "Lazy Loading": potential
 * hazards). A kernel of NCCL's that is under way waits for a peer, which may wait for this rank. So
 * no kernel of ours may be loaded after the first communicator opens. CUDA_MODULE_LOADING=EAGER
 * would load all kernels of cuBLASLt and cuDNN too, which takes seconds.
 *
 * The list of kernels is the compiler's: code that nvcc makes of a .cu file registers each kernel
 * by __cudaRegisterFunction before main, and kernels/cuda compiles it with
 * -D__cudaRegisterFunction=dpt_cuda_register_kernel. */
#ifndef DPT_KERNELS_CUDA_LOAD_H
#define DPT_KERNELS_CUDA_LOAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* The number of kernels, and the compiler's name of kernel `i`; static storage. */
int dpt_cuda_kernels(void);
const char *dpt_cuda_kernel_name(int i);

/* Loads all of them into the current device, which waits for the device. Returns a cudaError_t, 0
 * for loaded; else `ret_name` is the kernel that failed. Any thread. */
int dpt_cuda_load_kernels(const char **ret_name);

#ifdef __cplusplus
}
#endif

#endif
