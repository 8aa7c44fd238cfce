/* Shared by discrete.c, discrete_ops.c and discrete_locked.c. */
#ifndef DPT_TESTS_KERNELS_DISCRETE_OPS_H
#define DPT_TESTS_KERNELS_DISCRETE_OPS_H

#include "kernels/ops.h"

enum { DISCRETE_POINTERS_MAX = 13 };

extern const struct dpt_ops discrete_ops;

/* Posts an op, which runs on the CPU's stream when the queue reaches it. `args` are copied. `owned`
 * (the bytes of a copy from the host) is freed after the op has run. */
typedef void discrete_run(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args);
void discrete_post(struct dpt_stream *stream, discrete_run *run, const void *args, size_t bytes,
                   void *owned);

/* Sets the stream's error unless each pointer is NULL or points to memory of the device. */
void discrete_check(struct dpt_stream *stream, const char *op,
                    const void *const pointers[DISCRETE_POINTERS_MAX]);

/* Whether p is host memory that is not page-locked; notes a copy from or to such memory. */
bool discrete_is_pageable(struct dpt_stream *stream, const void *p);
void discrete_note_pageable(size_t bytes);

/* discrete_locked.c: page-locked memory, for the device's vtable; and whether p is in it. */
enum dpt_status discrete_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                    struct dpt_err *err);
void discrete_free_host(struct dpt_device *dev, void *ptr, size_t bytes);
bool discrete_is_locked(const void *p);

#endif
