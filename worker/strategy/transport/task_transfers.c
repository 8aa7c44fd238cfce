/* Peers and transfers of tasks, and their staging memory (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

int strategy_next_of(const struct dpt_strategy *s, struct dpt_range positions, int i)
{
    return positions.first +
           (s->part.position - positions.first + i) % (positions.end - positions.first);
}

int strategy_other(const struct dpt_strategy *s, int i)
{
    return strategy_next_of(s, (struct dpt_range){0, s->part.world->size}, i);
}

void strategy_send(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                   const struct dpt_buffer *buffer, size_t offset, size_t bytes)
{
    if (bytes > 0)
        x->out[x->n_out++] =
            dpt_buffer_send(buffer, s->part.world->rank_of_position[position], offset, bytes);
}

void strategy_receive(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                      void *place, size_t bytes)
{
    x->in[x->n_in++] = (struct dpt_comm_xfer){.dir = DPT_COMM_RECV,
                                              .peer = s->part.world->rank_of_position[position],
                                              .buf = place,
                                              .bytes = bytes};
}

void strategy_borrow(const struct dpt_strategy *s, struct dpt_task_transfers *x, int position,
                     char **staging, size_t bytes)
{
    const bool staged = dpt_partition_is_staged(&s->part, position);
    x->in[x->n_in++] = (struct dpt_comm_xfer){.dir = DPT_COMM_LEND,
                                              .peer = s->part.world->rank_of_position[position],
                                              .buf = staged ? *staging : NULL,
                                              .bytes = bytes};
    *staging += staged ? bytes : 0;
}

char *strategy_staging(const struct dpt_buffer *staging, int turn)
{
    return (char *)staging->data +
           (size_t)(turn % DPT_STAGING_TURNS) * (staging->bytes / DPT_STAGING_TURNS);
}

enum dpt_status strategy_buffer_make(const struct dpt_strategy *s, enum dpt_memory_item item,
                                     bool sent, struct dpt_buffer *buffer, struct dpt_err *err)
{
    const struct dpt_memory_entry *entry = &s->memory.item[item];
    struct dpt_comm_listener *listener = sent && !s->traits.on_device ? s->env.listener : NULL;
    if (entry->n > 0)
        return dpt_buffer_make(listener, s->device, entry->tag, entry->bytes, buffer, err);
    dpt_buffer_free(buffer);
    return DPT_OK;
}

enum dpt_status strategy_staging_make(const struct dpt_strategy *s, enum dpt_memory_item item,
                                      struct dpt_buffer *staging, struct dpt_err *err)
{
    const struct dpt_memory_entry *entry = &s->memory.item[item];
    DPT_ASSERT(entry->n == 0 || entry->n == DPT_STAGING_TURNS);
    return entry->n == 0 ? DPT_OK
                         : dpt_buffer_make(NULL, s->device, entry->tag,
                                           (size_t)entry->n * entry->bytes, staging, err);
}
