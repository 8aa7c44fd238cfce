/* The memory of a part of the state, registered and on a device (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

bool strategy_has_whole(const struct dpt_strategy *s)
{
    return s->traits.weights != DPT_WEIGHTS_UNITS;
}

static enum dpt_memory_tag part_tag(const struct dpt_strategy *s, bool own, int vector)
{
    return own ? dpt_strategy_vector_tag((enum dpt_vector)vector, s->dtype) : DPT_MEMORY_SHADOW;
}

/* This rank's f32 masters lie in the memory of all weights, if the rank has all weights. */
static bool lies_in_whole(const struct dpt_strategy *s, bool own, int vector)
{
    return vector == DPT_VECTOR_PARAM && own && strategy_has_whole(s) && s->dtype == DPT_F32;
}

void strategy_part_leave_device(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                                const struct dpt_state_part *kept)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        float **memory = &part->vector[v].device;
        if (*memory && *memory != s->state.whole.data &&
            !(kept && kept->vector[v].device == *memory))
            dpt_device_free_for(
                s->device, part_tag(s, own, v), *memory,
                dpt_memory_list_shard_bytes(s->env.grid, part->shard, sizeof(float)));
        *memory = NULL;
    }
}

void strategy_part_free(const struct dpt_strategy *s, bool own, struct dpt_state_part *part,
                        const struct dpt_state_part *kept)
{
    strategy_part_leave_device(s, own, part, kept);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_comm_mem **mem = &part->vector[v].mem;
        if (*mem && *mem != s->state.whole.mem && !(kept && kept->vector[v].mem == *mem))
            dpt_comm_mem_destroy(mem);
        *mem = NULL;
    }
    part->shard = (struct dpt_shard){0, 0};
}

enum dpt_status strategy_part_create(const struct dpt_strategy *s, struct dpt_shard shard, bool own,
                                     struct dpt_state_part *part, struct dpt_err *err)
{
    *part = (struct dpt_state_part){.shard = shard};
    for (int v = 0; v < dpt_strategy_vectors(s->env.config) && !dpt_shard_is_none(shard); v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        if (lies_in_whole(s, own, v) && s->state.whole.mem) {
            *vector = (struct dpt_state_vector){.mem = s->state.whole.mem, .flat = true};
            continue;
        }
        vector->flat = s->traits.state == DPT_STATE_REPLICATED;
        const enum dpt_status status = dpt_comm_mem_create_for(
            s->env.listener, part_tag(s, own, v), false,
            dpt_memory_list_shard_bytes(s->env.grid, shard, sizeof(float)), &vector->mem, err);
        if (status != DPT_OK) {
            strategy_part_free(s, own, part, NULL);
            return status;
        }
    }
    return DPT_OK;
}

enum dpt_status strategy_part_enter_device(const struct dpt_strategy *s, bool own,
                                           struct dpt_state_part *part, struct dpt_err *err)
{
    for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
        struct dpt_state_vector *vector = &part->vector[v];
        void *memory = NULL;
        if (!vector->mem || vector->device)
            continue;
        vector->device_flat = vector->flat || lies_in_whole(s, own, v);
        if (lies_in_whole(s, own, v))
            memory = s->state.whole.data;
        else
            DPT_TRY(dpt_device_alloc_for(
                s->device, part_tag(s, own, v),
                dpt_memory_list_shard_bytes(s->env.grid, part->shard, sizeof(float)), &memory,
                err));
        vector->device = memory;
    }
    return DPT_OK;
}

struct dpt_buffer strategy_vector(const struct dpt_strategy *s, const struct dpt_state_part *part,
                                  enum dpt_vector vector)
{
    const struct dpt_state_vector *v = &part->vector[vector];
    if (s->traits.on_device)
        return (struct dpt_buffer){.data = v->device};
    return (struct dpt_buffer){.data = dpt_comm_mem_data(v->mem), .mem = v->mem};
}

int64_t strategy_vector_offset(const struct dpt_strategy *s, const struct dpt_state_part *part,
                               enum dpt_vector vector, int unit)
{
    const struct dpt_state_vector *v = &part->vector[vector];
    return (s->traits.on_device ? v->device_flat : v->flat)
               ? dpt_shard_piece(s->env.grid, part->shard, unit).first
               : dpt_shard_offset(s->env.grid, part->shard, unit);
}

float *strategy_vector_at(const struct dpt_strategy *s, const struct dpt_state_part *part,
                          enum dpt_vector vector, int unit)
{
    float *data = strategy_vector(s, part, vector).data;
    return data + strategy_vector_offset(s, part, vector, unit);
}
