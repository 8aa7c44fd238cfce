/* DPT_DEVICE_FN: a function with the same bits on host and device, compiled by gcc for the host and
 * by nvcc for its kernels. Such a function calls no function of libm except sqrt, and its files are
 * compiled without fused multiply-add: each operation is rounded. */
#ifndef DPT_BASE_DEVICE_FN_H
#define DPT_BASE_DEVICE_FN_H

#ifdef __CUDACC__
#define DPT_DEVICE_FN static inline __host__ __device__
#else
#define DPT_DEVICE_FN static inline
#endif

#endif
