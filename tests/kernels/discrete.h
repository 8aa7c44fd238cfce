/* A device like a GPU on a machine without one. It runs the CPU's ops on memory that the host
 * cannot access, from a queue that runs when it is synced.
 *
 * The memory is accessible only while an op runs. A host thread that reads or writes it at another
 * time dies of SIGSEGV. An op other than `copy` whose arguments point to other memory fails with
 * DPT_EINVAL at the sync. A copy from the host reads the host's bytes when it is posted, or, from
 * memory of dpt_device_alloc_host, when the queue runs it. A copy to the host is complete after the
 * sync. Results have the bits of the CPU device. */
#ifndef DPT_TESTS_KERNELS_DISCRETE_H
#define DPT_TESTS_KERNELS_DISCRETE_H

#include "kernels/device.h"

/* Opens a device with `bytes` of memory. Its fingerprint is "discrete" and the CPU's. */
DPT_MUST_USE enum dpt_status dpt_device_discrete_create(size_t bytes, struct dpt_device **ret,
                                                        struct dpt_err *err);

/* The bytes allocated on it; 0 after it was destroyed. Any thread may call it. */
size_t dpt_device_discrete_bytes(const struct dpt_device *dev);

/* Op number `n` from now on (counted from 0) fails with DPT_EIO, as on a broken device; -1: none.
 */
void dpt_device_discrete_fail(struct dpt_device *dev, int64_t n);

/* For a double of the library that moves bytes between devices; any thread. _copy copies from the
 * memory of such a device, or of the host, to the memory of such a device. _await waits for an
 * event, given by its native name; the event's stream need not be synced. */
void dpt_device_discrete_copy(void *to, const void *from, size_t bytes);
void dpt_device_discrete_await(void *event);

/* Bytes of the largest copy since the last call between any such device and host memory that is
 * not page-locked (dpt_device_alloc_host). */
size_t dpt_device_discrete_pageable(void);

/* Graphs of all such devices. fail: making a graph fails from now on. Gives the number of launches
 * since the last call and the number of graphs that exist. */
void dpt_device_discrete_graphs(bool fail, int64_t *ret_launches, int *ret_alive);
/* The number of graphs made since the last call. */
int64_t dpt_device_discrete_captures(void);

#endif
