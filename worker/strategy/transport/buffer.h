/* Memory of a strategy that goes between ranks: registered memory of the host, or, where the state
 * is kept on a device (dpt_strategy_env.resident), memory of that. All by the main thread, between
 * generations. */
#ifndef DPT_WORKER_STRATEGY_TRANSPORT_BUFFER_H
#define DPT_WORKER_STRATEGY_TRANSPORT_BUFFER_H

#include "worker/strategy/strategy.h"

/* Zeroes: there is none. */
struct dpt_buffer {
    void *data;
    size_t bytes;
    struct dpt_comm_mem *mem;  /* NULL: of the device */
    struct dpt_device *device; /* NULL: registered */
    enum dpt_memory_tag tag;
};

/* Makes one in place of what is there, which is kept when it has the size. */
DPT_MUST_USE enum dpt_status dpt_buffer_make(const struct dpt_strategy_env *env,
                                             enum dpt_memory_tag tag, size_t bytes,
                                             struct dpt_buffer *buffer, struct dpt_err *err);
/* The same of a device, the host's own included, for what no peer reads. */
DPT_MUST_USE enum dpt_status dpt_buffer_make_private(struct dpt_device *device,
                                                     enum dpt_memory_tag tag, size_t bytes,
                                                     struct dpt_buffer *buffer,
                                                     struct dpt_err *err);
/* Accepts zeroes, and leaves them. */
void dpt_buffer_free(struct dpt_buffer *buffer);

/* The transfer of bytes [offset, offset + bytes) to a rank. */
struct dpt_comm_xfer dpt_buffer_send(const struct dpt_buffer *buffer, int peer, size_t offset,
                                     size_t bytes);

#endif
