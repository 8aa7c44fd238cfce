/* Between discrete.c and discrete_ops.c. */
#ifndef DPT_TESTS_KERNELS_DISCRETE_OPS_H
#define DPT_TESTS_KERNELS_DISCRETE_OPS_H

#include "kernels/ops.h"

enum { DISCRETE_POINTERS_MAX = 13 };

extern const struct dpt_ops discrete_ops;

/* An op that runs on the CPU's stream when its turn comes. `args` are copied; `owned` is freed when
 * it has run: the bytes of a copy from the host. */
typedef void discrete_run(const struct dpt_ops *ops, struct dpt_stream *cpu, const void *args);
void discrete_post(struct dpt_stream *stream, discrete_run *run, const void *args, size_t bytes,
                   void *owned);

/* Each pointer must be of the device, or NULL; else the stream has an error. */
void discrete_check(struct dpt_stream *stream, const char *op,
                    const void *const pointers[DISCRETE_POINTERS_MAX]);

/* Whether it is memory of the host that is not page-locked; and a copy from or to such memory. */
bool discrete_is_pageable(struct dpt_stream *stream, const void *p);
void discrete_note_pageable(size_t bytes);

/* Page-locked memory: the device's vtable, and whether p is such (discrete_locked.c). */
enum dpt_status discrete_alloc_host(struct dpt_device *dev, size_t bytes, void **ret,
                                    struct dpt_err *err);
void discrete_free_host(struct dpt_device *dev, void *ptr, size_t bytes);
bool discrete_is_locked(const void *p);

#endif
