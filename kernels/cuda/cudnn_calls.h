/* The calls of cuDNN that are used, found at run time: a program that was built with its header
 * starts where the library is not. */
#ifndef DPT_KERNELS_CUDA_CUDNN_CALLS_H
#define DPT_KERNELS_CUDA_CUDNN_CALLS_H

#include <cudnn.h>

/* Name without "cudnn". */
#define DPT_CUDNN_CALLS(X)                                                                         \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(SetStream)                                                                                   \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastErrorString)                                                                          \
    X(BackendCreateDescriptor)                                                                     \
    X(BackendDestroyDescriptor)                                                                    \
    X(BackendSetAttribute)                                                                         \
    X(BackendGetAttribute)                                                                         \
    X(BackendFinalize)                                                                             \
    X(BackendExecute)

struct dpt_cudnn_calls {
#define X(name) __typeof__(cudnn##name) *name;
    DPT_CUDNN_CALLS(X)
#undef X
};

/* NULL: there is no cuDNN of the header's major version here, or DPT_CUDNN=off says not to look.
 * Loaded by the first call, for good; any thread. */
const struct dpt_cudnn_calls *dpt_cudnn_calls(void);

#endif
