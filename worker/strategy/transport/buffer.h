/* Memory of a strategy: registered memory of the host, which peers read, or memory of a device; the
 * host is also a device. All functions are called by the main thread, between generations. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_BUFFER_H
#define DPT_WORKER_STRATEGY_TRANSPORT_BUFFER_H

#include "kernels/device.h"
#include "worker/comm/comm.h"

/* All zero: no memory. */
struct dpt_buffer {
    void *data;
    size_t bytes;
    struct dpt_comm_mem *mem;  /* NULL: the memory is not registered */
    struct dpt_device *device; /* NULL: the memory is registered */
    enum dpt_memory_tag tag;
};

/* Replaces the memory of `buffer` by memory that `listener` registers, or, if it is NULL, by memory
 * of `device`. Memory that already has this size is kept. */
DPT_MUST_USE enum dpt_status dpt_buffer_make(struct dpt_comm_listener *listener,
                                             struct dpt_device *device, enum dpt_memory_tag tag,
                                             size_t bytes, struct dpt_buffer *buffer,
                                             struct dpt_err *err);
/* Accepts an all-zero buffer, and leaves it all zero. */
void dpt_buffer_free(struct dpt_buffer *buffer);

/* The transfer of bytes [offset, offset + bytes) to a rank. */
struct dpt_comm_xfer dpt_buffer_send(const struct dpt_buffer *buffer, int peer, size_t offset,
                                     size_t bytes);

#endif
