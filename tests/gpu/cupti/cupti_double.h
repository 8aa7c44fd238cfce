/* A double of CUPTI for tests without a GPU, as a shared library: the test names it in DPT_CUPTI
 * and is linked with it, so kernels/cuda loads the library that the test controls. Records go into
 * the client's buffers, as CUPTI's do: a buffer is given back when it is full and at a flush. Only
 * enabled kinds are recorded. Any thread. */
#ifndef DPT_TESTS_GPU_CUPTI_CUPTI_DOUBLE_H
#define DPT_TESTS_GPU_CUPTI_CUPTI_DOUBLE_H

#include <cupti.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Functions of the runtime and the driver that the double names. */
enum {
    DOUBLE_GET_LAST_ERROR = 10, /* runtime; says little, so it is not recorded */
    DOUBLE_MEMCPY_ASYNC = 41,
    DOUBLE_MEMSET_ASYNC = 51,
    DOUBLE_STREAM_SYNCHRONIZE = 131,
    DOUBLE_LAUNCH_KERNEL = 211,
    DOUBLE_GRAPH_LAUNCH = 311,
    DOUBLE_CU_LAUNCH_KERNEL = 307 /* driver */
};

/* From now on cuptiActivityEnable returns `code`, and cuptiGetVersion `version`. */
void cupti_double_refuse(CUptiResult code);
void cupti_double_set_version(uint32_t version);
/* The library had no room for n records. */
void cupti_double_drop(size_t n);

/* A call of the calling thread, of the runtime or the driver. Returns its correlation. */
uint32_t cupti_double_call(CUpti_CallbackDomain domain, CUpti_CallbackId cbid);
/* The driver's part of a call of the runtime, which has the same correlation. */
void cupti_double_inner_call(CUpti_CallbackId cbid, uint32_t correlation);

/* Work that the call has posted; it begins and ends now. graph 0: of none. */
struct cupti_double_kernel {
    const char *name;
    uint32_t correlation, graph, stream;
    unsigned grid, block, shared_bytes;
};
void cupti_double_kernel(const struct cupti_double_kernel *kernel);
void cupti_double_copy(uint32_t correlation, CUpti_ActivityMemcpyKind kind, uint64_t bytes);
void cupti_double_set(uint32_t correlation, uint64_t bytes);
void cupti_double_sync(uint32_t correlation, CUpti_ActivitySynchronizationType type,
                       uint32_t stream);
/* A kernel whose end is not known, and a record of a kind that nobody has asked for. */
void cupti_double_unfinished_kernel(uint32_t correlation);
void cupti_double_device(void);

/* Whether any kind is enabled, and whether a function of the runtime is left out. */
bool cupti_double_is_on(void);
bool cupti_double_leaves_out(CUpti_CallbackId cbid);

#ifdef __cplusplus
}
#endif

#endif
