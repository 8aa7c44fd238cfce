/* Memory that goes between ranks (buffer.h). */
#include "worker/strategy/buffer.h"

static enum dpt_status make(const struct dpt_strategy_env *env, struct dpt_buffer *buffer,
                            struct dpt_err *err)
{
    if (env->resident)
        return dpt_device_alloc_for(env->resident, buffer->tag, buffer->bytes, &buffer->data, err);
    DPT_TRY(dpt_comm_mem_create_for(env->listener, buffer->tag, false, buffer->bytes, &buffer->mem,
                                    err));
    buffer->data = dpt_comm_mem_data(buffer->mem);
    return DPT_OK;
}

enum dpt_status dpt_buffer_make(const struct dpt_strategy_env *env, enum dpt_memory_tag tag,
                                size_t bytes, struct dpt_buffer *buffer, struct dpt_err *err)
{
    if (buffer->data && buffer->bytes == bytes)
        return DPT_OK;
    dpt_buffer_free(env, buffer);
    struct dpt_buffer made = {.bytes = bytes, .tag = tag};
    DPT_TRY(make(env, &made, err));
    *buffer = made;
    return DPT_OK;
}

void dpt_buffer_free(const struct dpt_strategy_env *env, struct dpt_buffer *buffer)
{
    if (buffer->mem)
        dpt_comm_mem_destroy(&buffer->mem);
    else if (buffer->data)
        dpt_device_free_for(env->resident, buffer->tag, buffer->data, buffer->bytes);
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
