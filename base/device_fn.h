/* Functions with the same result, bit for bit, on host and device: gcc compiles them for the host,
 * nvcc for its kernels. Such a function calls no function of libm but sqrt, and its files are
 * compiled without fusing of products and sums, so that each operation is rounded by itself. */
#ifndef DPT_BASE_DEVICE_FN_H
#define DPT_BASE_DEVICE_FN_H

#ifdef __CUDACC__
#define DPT_DEVICE_FN static inline __host__ __device__
#else
#define DPT_DEVICE_FN static inline
#endif

#endif
