/* The calls of cuDNN that we use. They are found at run time, so a program that was built with
 * cuDNN's header also starts on a machine without the library. */
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

/* Returns the calls, or NULL: the machine has no cuDNN of the header's major version, or
 * DPT_CUDNN=off forbids it. The first call loads the library and never unloads it. Any thread. */
const struct dpt_cudnn_calls *dpt_cudnn_calls(void);

#endif
