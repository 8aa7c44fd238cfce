/* The part of CUDA's runtime that kernels/cuda calls, implemented on the host (emulated.cc). There
 * is one device; its memory is the host's, and its queues run work at once. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_CUDA_RUNTIME_API_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000

typedef enum {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInsufficientDriver,
    cudaErrorNoDevice,
    cudaErrorNotSupported
} cudaError_t;

typedef struct emulated_queue *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
#define cudaStreamPerThread ((cudaStream_t)2)
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_graph_exec *cudaGraphExec_t;

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount;
};

enum {
    cudaHostAllocDefault,
    cudaMemcpyDefault,
    cudaStreamNonBlocking,
    cudaStreamCaptureModeThreadLocal,
    cudaEventDefault,
    cudaEventDisableTiming
};
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin };

const char *cudaGetErrorName(cudaError_t code);
const char *cudaGetErrorString(cudaError_t code);
cudaError_t cudaGetLastError(void);
/* Keeps an error for cudaGetLastError of this thread; returns `code`. */
cudaError_t emulated_error(cudaError_t code);
cudaError_t cudaGetDeviceCount(int *ret);
cudaError_t cudaGetDevice(int *ret);
cudaError_t cudaDeviceGetAttribute(int *ret, int attribute, int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device);
cudaError_t cudaDeviceGetPCIBusId(char *ret, int bytes, int device);
cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer);
cudaError_t cudaDriverGetVersion(int *ret);
cudaError_t cudaRuntimeGetVersion(int *ret);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **ret, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *queue);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, void *queue);
cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(void *queue);
cudaError_t cudaStreamSynchronize(void *queue);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags);
cudaError_t cudaEventDestroy(void *event);
cudaError_t cudaEventRecord(void *event, void *queue);
cudaError_t cudaStreamWaitEvent(void *queue, void *event, unsigned flags);
cudaError_t cudaStreamBeginCapture(void *queue, int mode);
cudaError_t cudaStreamEndCapture(void *queue, cudaGraph_t *ret);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphLaunch(void *graph, void *queue);
cudaError_t cudaGraphExecDestroy(void *graph);
cudaError_t cudaEventSynchronize(void *event);
cudaError_t cudaEventElapsedTime(float *ret_ms, void *from, void *to);

#ifdef __cplusplus
}
#endif

#endif
