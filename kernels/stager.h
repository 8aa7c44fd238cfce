/* Bulk copies between a device and host memory that is not page-locked.
 *
 * A device copies from and to page-locked memory at the speed of its bus. For other memory CUDA's
 * driver copies with one core through an internal buffer, at a fraction of that speed (8.5 GB/s on
 * an H200, whose bus has 50). Page-locking the gigabytes of a state takes longer than copying them.
 * Therefore the bytes go through a ring of page-locked buffers, called places: all workers of a
 * stream of the host fill or empty one place while the device copies others.
 *
 * One thread uses a stager: the thread that uses both streams. Nothing is allocated after
 * create. */
#ifndef DPT_KERNELS_STAGER_H
#define DPT_KERNELS_STAGER_H

#include "kernels/device.h"

struct dpt_stager;

enum { DPT_STAGER_PLACES = 4, DPT_STAGER_PLACE_BYTES_MAX = 8 << 20 };

struct dpt_stager_options {
    struct dpt_device *device;               /* borrowed, and so are the streams */
    struct dpt_stream *stream, *host_stream; /* of the device; of the CPU device */
    /* The bytes that are copied at a time. A place has this size, rounded up to 64, but at most
     * DPT_STAGER_PLACE_BYTES_MAX. A longer copy takes several places, one after another. */
    size_t bytes_max;
};

/* The page-locked memory of a stager for `bytes_max`: DPT_STAGER_PLACES places. */
size_t dpt_stager_bytes(size_t bytes_max);

DPT_MUST_USE enum dpt_status dpt_stager_create(const struct dpt_stager_options *options,
                                               struct dpt_stager **ret, struct dpt_err *err);
/* Waits for all posted copies. Accepts a pointer to NULL. */
void dpt_stager_destroy(struct dpt_stager **stager);

/* Posts a copy from host memory to the device. The caller may change the host memory after the
 * return. */
void dpt_stager_to_device(struct dpt_stager *stager, size_t bytes, const void *from, void *to);
/* Posts a copy from the device to host memory. The bytes are there after dpt_stager_finish. */
void dpt_stager_to_host(struct dpt_stager *stager, size_t bytes, const void *from, void *to);
/* Waits for all posted copies and syncs the device's stream; returns the stream's error. After an
 * error the contents of the host memory are undefined. */
DPT_MUST_USE enum dpt_status dpt_stager_finish(struct dpt_stager *stager, struct dpt_err *err);

#endif
