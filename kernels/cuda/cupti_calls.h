/* The calls of CUPTI that we use. They are found at run time, so a program that was built with
 * CUPTI's header also starts on a machine without the library. */
#ifndef DPT_KERNELS_CUDA_CUPTI_CALLS_H
#define DPT_KERNELS_CUDA_CUPTI_CALLS_H

#include "base/err.h"

#include <cupti.h>

/* Name without "cupti". */
#define DPT_CUPTI_CALLS(X)                                                                         \
    X(GetVersion)                                                                                  \
    X(GetResultString)                                                                             \
    X(GetCallbackName)                                                                             \
    X(SetThreadIdType)                                                                             \
    X(ActivitySetAttribute)                                                                        \
    X(ActivityRegisterTimestampCallback)                                                           \
    X(ActivityRegisterCallbacks)                                                                   \
    X(ActivityEnable)                                                                              \
    X(ActivityDisable)                                                                             \
    X(ActivityFlushAll)                                                                            \
    X(ActivityGetNextRecord)                                                                       \
    X(ActivityGetNumDroppedRecords)

/* Calls that older libraries do not have. */
#define DPT_CUPTI_OPTIONAL_CALLS(X)                                                                \
    X(ActivityEnableRuntimeApi)                                                                    \
    X(ActivityEnableDriverApi)                                                                     \
    X(ActivityEnableAllSyncRecords)

struct dpt_cupti_calls {
#define X(name) __typeof__(cupti##name) *name;
    DPT_CUPTI_CALLS(X)
    /* NULL: the library does not have it. */
    DPT_CUPTI_OPTIONAL_CALLS(X)
#undef X
};

/* The records of this header's CUPTI. */
#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 dpt_cupti_kernel;
typedef CUpti_ActivityMemcpy6 dpt_cupti_copy;
typedef CUpti_ActivitySynchronization2 dpt_cupti_sync;
#else
typedef CUpti_ActivityKernel9 dpt_cupti_kernel;
typedef CUpti_ActivityMemcpy5 dpt_cupti_copy;
typedef CUpti_ActivitySynchronization dpt_cupti_sync;
#endif
typedef CUpti_ActivityMemset4 dpt_cupti_set;

/* Loads the library, which is never unloaded. The environment variable DPT_CUPTI has its path;
 * unset: the loader and CUDA's folders are searched; `off`: it is not loaded. DPT_EUNSUPPORTED: it
 * is not there, is of another major version than the header, or is forbidden; the text says what to
 * do. */
DPT_MUST_USE enum dpt_status dpt_cupti_load(struct dpt_cupti_calls *ret, struct dpt_err *err);

#endif
