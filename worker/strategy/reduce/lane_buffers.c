/* Lane buffers and the reducer over them (lane_buffers.h). */
#include "worker/strategy/reduce/lane_buffers.h"

#include "worker/strategy/reduce/nccl_reducer.h"
#include "worker/strategy/reduce/staged_reducer.h"
#include "worker/strategy/reduce/wire.h"

static enum dpt_memory_tag tag_of(int buffer)
{
    return buffer == 0 ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS;
}

static size_t bytes_of(const struct dpt_strategy_env *env)
{
    return (size_t)dpt_model_flat_numel(env->model) * sizeof(float);
}

enum dpt_status dpt_lane_buffers_make(struct dpt_lane_buffers *b,
                                      const struct dpt_strategy_env *env,
                                      const struct dpt_world *world, int position,
                                      struct dpt_err *err)
{
    const bool by_host = !env->resident || (world->size > 1 && !env->resident_comm_stream);
    const int registered = by_host ? dpt_reduce_buffers(world, position) : 0;
    const int on_device =
        env->resident ? dpt_tree_buffers(world->lanes,
                                         dpt_position_lanes(world->lanes, world->size, position))
                      : 0;
    DPT_ASSERT(registered <= DPT_COVER_MAX && on_device <= DPT_COVER_MAX);
    for (int i = b->n_registered; i < registered; i++, b->n_registered++) {
        DPT_TRY(dpt_host_reducer_buffer_create(env->listener, i, dpt_model_flat_numel(env->model),
                                               &b->registered[i], err));
        if (!env->resident)
            b->data[i] = dpt_comm_mem_data(b->registered[i]);
    }
    for (int i = b->n_on_device; i < on_device; i++, b->n_on_device++) {
        void *memory = NULL;
        DPT_TRY(dpt_device_alloc_for(env->resident, tag_of(i), bytes_of(env), &memory, err));
        b->data[i] = b->on_device[i] = memory;
    }
    return DPT_OK;
}

void dpt_lane_buffers_free(struct dpt_lane_buffers *b, const struct dpt_strategy_env *env)
{
    for (int i = 0; i < b->n_registered; i++)
        dpt_comm_mem_destroy(&b->registered[i]);
    for (int i = 0; i < b->n_on_device; i++)
        dpt_device_free_for(env->resident, tag_of(i), b->on_device[i], bytes_of(env));
    *b = (struct dpt_lane_buffers){.n_registered = 0};
}

static enum dpt_status create_nccl(const struct dpt_strategy_env *env,
                                   const struct dpt_partition *part,
                                   const struct dpt_model_buckets *buckets,
                                   const struct dpt_lane_buffers *b, struct dpt_reducer **ret,
                                   struct dpt_err *err)
{
    const enum dpt_dtype wire = dpt_wire_dtype(env->config);
    const bool shards = part->traits.state != DPT_STATE_REPLICATED;
    const struct dpt_nccl_reducer_spec spec = {.device = env->resident,
                                               .stream = env->resident_comm_stream,
                                               .main_stream = env->resident_stream,
                                               .thread = env->comm_thread,
                                               .buckets = buckets->bucket,
                                               .n_buckets = buckets->n,
                                               .block = DPT_BLOCK,
                                               .buffers = b->on_device,
                                               .world = part->world,
                                               .rank = part->rank,
                                               .wire = wire,
                                               .any_order = part->traits.order_open &&
                                                            wire == DPT_F32 && !shards,
                                               .shards = shards};
    return dpt_nccl_reducer_create(&spec, ret, err);
}

enum dpt_status dpt_lane_reducer_create(const struct dpt_strategy_env *env,
                                        const struct dpt_partition *part,
                                        const struct dpt_model_buckets *buckets,
                                        const struct dpt_lane_buffers *b, struct dpt_reducer **ret,
                                        struct dpt_err *err)
{
    const struct dpt_world *world = part->world;
    struct dpt_range cover[DPT_COVER_MAX];
    if (world->size > 1 && env->resident_comm_stream)
        return create_nccl(env, part, buckets, b, ret, err);
    const struct dpt_host_reducer_spec host = {.ops = dpt_device_ops(env->device),
                                               .stream = env->comm_stream,
                                               .thread = env->comm_thread,
                                               .listener = env->listener,
                                               .buckets = buckets->bucket,
                                               .n_buckets = buckets->n,
                                               .block = DPT_BLOCK,
                                               .buffers = b->registered,
                                               .n_buffers = b->n_registered,
                                               .world = world,
                                               .rank = part->rank,
                                               .wire = dpt_wire_dtype(env->config),
                                               .shards =
                                                   part->traits.state != DPT_STATE_REPLICATED};
    if (!env->resident || world->size == 1)
        return dpt_host_reducer_create(&host, ret, err);
    const struct dpt_staged_reducer_spec staged = {
        .stream = env->resident_stream,
        .ops = dpt_device_ops(env->resident),
        .on_device = b->on_device,
        .n_sums = dpt_tree_cover(
            world->lanes, dpt_position_lanes(world->lanes, world->size, part->position), cover),
        .numel = dpt_model_flat_numel(env->model),
        .host = host};
    return dpt_staged_reducer_create(&staged, ret, err);
}
