/* Memory that is sent between ranks (buffer.h). */
#include "worker/strategy/transport/buffer.h"

enum dpt_status dpt_buffer_make_private(struct dpt_device *device, enum dpt_memory_tag tag,
                                        size_t bytes, struct dpt_buffer *buffer,
                                        struct dpt_err *err)
{
    if (buffer->data && buffer->bytes == bytes)
        return DPT_OK;
    dpt_buffer_free(buffer);
    struct dpt_buffer made = {.bytes = bytes, .device = device, .tag = tag};
    DPT_TRY(dpt_device_alloc_for(device, tag, bytes, &made.data, err));
    *buffer = made;
    return DPT_OK;
}

enum dpt_status dpt_buffer_make(const struct dpt_strategy_env *env, enum dpt_memory_tag tag,
                                size_t bytes, struct dpt_buffer *buffer, struct dpt_err *err)
{
    if (env->resident)
        return dpt_buffer_make_private(env->resident, tag, bytes, buffer, err);
    if (buffer->data && buffer->bytes == bytes)
        return DPT_OK;
    dpt_buffer_free(buffer);
    struct dpt_buffer made = {.bytes = bytes, .tag = tag};
    DPT_TRY(dpt_comm_mem_create_for(env->listener, tag, false, bytes, &made.mem, err));
    made.data = dpt_comm_mem_data(made.mem);
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
