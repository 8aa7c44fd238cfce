/* Memory of a strategy (buffer.h). */
#include "worker/strategy/transport/buffer.h"

enum dpt_status dpt_buffer_make(struct dpt_comm_listener *listener, struct dpt_device *device,
                                enum dpt_memory_tag tag, size_t bytes, struct dpt_buffer *buffer,
                                struct dpt_err *err)
{
    if (buffer->data && buffer->bytes == bytes)
        return DPT_OK;
    dpt_buffer_free(buffer);
    struct dpt_buffer made = {.bytes = bytes, .device = listener ? NULL : device, .tag = tag};
    if (listener) {
        DPT_TRY(dpt_comm_mem_create_for(listener, tag, false, bytes, &made.mem, err));
        made.data = dpt_comm_mem_data(made.mem);
    } else {
        DPT_TRY(dpt_device_alloc_for(device, tag, bytes, &made.data, err));
    }
    *buffer = made;
    return DPT_OK;
}

void dpt_buffer_free(struct dpt_buffer *buffer)
{
    if (buffer->mem)
        dpt_comm_mem_destroy(&buffer->mem);
    else if (buffer->data)
        dpt_device_free_for(buffer->device, buffer->tag, buffer->data, buffer->bytes);
    *buffer = (struct dpt_buffer){.data = NULL};
}

struct dpt_comm_xfer dpt_buffer_send(const struct dpt_buffer *buffer, int peer, size_t offset,
                                     size_t bytes)
{
    struct dpt_comm_xfer send = {.dir = DPT_COMM_SEND, .peer = peer, .bytes = bytes};
    if (buffer->mem) {
        send.mem = buffer->mem;
        send.offset = offset;
    } else {
        send.buf = (char *)buffer->data + offset;
    }
    return send;
}
