/* Loads all kernels of kernels/cuda at once.
 *
 * CUDA loads a kernel at its first use unless CUDA_MODULE_LOADING says otherwise. Loading may wait
 * for work that is under way on the device (CUDA Programming Guide, "Lazy Loading": potential
 * hazards). A kernel of NCCL that is under way waits for a peer, and the peer may wait for this
 * rank. Therefore no kernel of ours may be loaded after the first communicator opens.
 * CUDA_MODULE_LOADING=EAGER would also load all kernels of cuBLASLt and cuDNN, which takes seconds.
 *
 * The compiler provides the list of kernels. The code that nvcc generates from a .cu file registers
 * each kernel by __cudaRegisterFunction before main. kernels/cuda compiles this code with
 * -D__cudaRegisterFunction=dpt_cuda_register_kernel. */
#ifndef DPT_KERNELS_CUDA_LOAD_H
#define DPT_KERNELS_CUDA_LOAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* The number of kernels, and the compiler's name for kernel `i` (static storage). */
int dpt_cuda_kernels(void);
const char *dpt_cuda_kernel_name(int i);

/* Loads all kernels into the current device. May wait for work of the device. Returns a
 * cudaError_t, 0 for success; otherwise *ret_name is the kernel that failed. Any thread. */
int dpt_cuda_load_kernels(const char **ret_name);

#ifdef __cplusplus
}
#endif

#endif
