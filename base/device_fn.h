/* DPT_DEVICE_FN marks a function whose results have the same bits on host and device: gcc compiles
 * it for the host, nvcc for kernels. Such a function calls no function of libm except sqrt. Files
 * that use it are compiled without fused multiply-add, so that each operation is rounded. */
#ifndef DPT_BASE_DEVICE_FN_H
#define DPT_BASE_DEVICE_FN_H

#ifdef __CUDACC__
#define DPT_DEVICE_FN static inline __host__ __device__
#else
#define DPT_DEVICE_FN static inline
#endif

#endif
