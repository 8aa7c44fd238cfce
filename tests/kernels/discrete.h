/* A device like a GPU on a machine without one: the CPU's ops behind memory that the host cannot
 * touch and a queue that runs when it is synced.
 *
 * What it gives is not readable but while an op runs: a host that reads or writes it dies of
 * SIGSEGV (unless at that moment an op runs on another thread). An op that is given other memory,
 * but for `copy`, fails with DPT_EINVAL, at the sync. A copy from the host takes the bytes at once,
 * but those of dpt_device_alloc_host when its turn comes; one to the host has happened at the sync.
 * Bits are the CPU device's. */
#ifndef DPT_TESTS_KERNELS_DISCRETE_H
#define DPT_TESTS_KERNELS_DISCRETE_H

#include "kernels/device.h"

/* Opens one with room for `bytes`. Its fingerprint is "discrete" and the CPU's. */
DPT_MUST_USE enum dpt_status dpt_device_discrete_create(size_t bytes, struct dpt_device **ret,
                                                        struct dpt_err *err);

/* The bytes allocated on it, for other threads than its owner's; 0 once it is destroyed. */
size_t dpt_device_discrete_bytes(const struct dpt_device *dev);

/* From here on its op number `n` (from 0) fails with DPT_EIO, as a device that breaks; -1: none. */
void dpt_device_discrete_fail(struct dpt_device *dev, int64_t n);

/* As what moves bytes between devices does, on any thread: a copy from the memory of one such
 * device, or of the host, to that of one; and a wait for an event (its native name), for which the
 * stream that it was set in need not be synced. */
void dpt_device_discrete_copy(void *to, const void *from, size_t bytes);
void dpt_device_discrete_await(void *event);

/* Bytes of the largest copy between any such device and memory of the host that is not
 * dpt_device_alloc_host's, since the last call. */
size_t dpt_device_discrete_pageable(void);

/* Graphs of all such devices: whether making one fails from here on, how many were launched since
 * the last call, how many there are. */
void dpt_device_discrete_graphs(bool fail, int64_t *ret_launches, int *ret_alive);
/* And how many were made since the last call. */
int64_t dpt_device_discrete_captures(void);

#endif
