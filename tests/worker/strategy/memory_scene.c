/* Strategies and worlds whose memory is measured (memory_scene.h). */
#include "tests/worker/strategy/memory_scene.h"

#include "base/log.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

const struct variant variants[VARIANTS] = {
    {"ddp", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_NO_SHARD, 2, DPT_REDUNDANCY_NONE},
    {"simple", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"async", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"bucket_async", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"zero2", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"zero3", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 1, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 3, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 256, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, 2, DPT_REDUNDANCY_NONE},
    {"fsdp", DPT_SHARDING_HYBRID_SHARD, 2, DPT_REDUNDANCY_NONE},
    {"zero1", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_SHADOW},
    {"zero2", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_SHADOW},
    {"fsdp", DPT_SHARDING_FULL_SHARD, 2, DPT_REDUNDANCY_SHADOW},
    {"dp", DPT_SHARDING_NULL, 2, DPT_REDUNDANCY_NONE},
};

const int worlds[WORLDS][4] = {{1},    {2},          {1, 1},    {3},    {4},    {2, 2},
                               {3, 1}, {1, 1, 1, 1}, {2, 3, 2}, {2, 2}, {3, 1}, {1, 1, 1, 1}};

struct dpt_device *device;

int make_device(void **state)
{
    struct dpt_err err;
    (void)state;
    dpt_log_set_level(DPT_LOG_ERROR);
    return dpt_device_cpu_create(&device, &err) == DPT_OK ? 0 : -1;
}

int destroy_device(void **state)
{
    (void)state;
    dpt_device_destroy(&device);
    return 0;
}

void make_model(struct scene *s)
{
    struct dpt_err err;
    dpt_model_destroy(&s->model);
    assert_int_equal(dpt_model_create(&s->config, &s->model, &err), DPT_OK);
    const int n = dpt_model_n_units(s->model);
    for (int u = 0; u < n; u++)
        s->offset[u] = dpt_model_unit(s->model, u)->offset;
    s->offset[n] = dpt_model_flat_numel(s->model);
    s->grid = (struct dpt_grid){.offset = s->offset, .n_units = n, .block = DPT_BLOCK};
}

void make_124m(struct scene *s)
{
    s->config.model.n_layer = s->config.model.n_head = 12;
    s->config.model.n_embd = 768;
    s->config.model.context = 1024;
    s->config.model.vocab = 50257;
    make_model(s);
}

void open_scene(struct scene *s, const struct variant *v, enum dpt_accumulate accumulate,
                enum dpt_precision precision, int vocab, int slots)
{
    struct dpt_config *c = &s->config;
    *s = (struct scene){.model = NULL};
    dpt_config_defaults(c);
    (void)snprintf(c->strategy.name, sizeof c->strategy.name, "%s", v->name);
    c->strategy.sharding = v->sharding;
    c->strategy.redundancy = v->redundancy;
    c->strategy.gathered_units_max = v->gathered_max;
    c->strategy.bucket_mib = c->strategy.first_bucket_mib = 0.02;
    c->cluster.pack_weights = DPT_PACK_WEIGHTS_OFF;
    c->model.n_layer = 3;
    c->model.n_head = 2;
    c->model.n_embd = 32;
    c->model.context = 8;
    c->model.vocab = vocab;
    c->train.global_batch = slots;
    c->train.micro_batch = 1;
    c->train.seq_len = 8;
    c->train.precision = precision;
    c->train.accumulate = accumulate;
    c->train.lanes = 5;
    const bool refused = strstr(v->name, "s") == v->name || strstr(v->name, "async") != NULL ||
                         v->sharding == DPT_SHARDING_HYBRID_SHARD;
    if (precision == DPT_PRECISION_BF16 && slots == 5 && !refused)
        c->strategy.compression = DPT_COMPRESSION_BF16;
    if (precision == DPT_PRECISION_FP16)
        (void)snprintf(c->optimizer.name, sizeof c->optimizer.name, "sgd");
    make_model(s);
}

void make_place(const struct scene *s, int world, struct place *p)
{
    int n = 0;
    for (int node = 0; node < 4; node++)
        for (int i = 0; i < worlds[world][node]; i++) {
            p->node_of_position[n] = node;
            p->host_of_position[n++] = world >= TWO_NODES_A_HOST ? node / 2 : node;
        }
    for (int i = 0; i < n; i++)
        p->rank_of_position[i] = n - 1 - i;
    p->world = (struct dpt_world){.lanes = dpt_config_lanes(&s->config),
                                  .size = n,
                                  .rank_of_position = p->rank_of_position,
                                  .host_of_position = p->host_of_position,
                                  .node_of_position = p->node_of_position};
}

void open_part(const struct scene *s, struct part *p)
{
    struct dpt_err err;
    *p = (struct part){.stream = NULL};
    dpt_device_set_account(device, &p->account);
    assert_int_equal(dpt_stream_create(device, 1, &p->stream, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(device, 1, &p->comm_stream, &err), DPT_OK);
    assert_int_equal(dpt_comm_listener_create("127.0.0.1", &p->listener, &err), DPT_OK);
    dpt_comm_listener_set_account(p->listener, &p->account);
    assert_int_equal(dpt_comm_thread_create(p->listener, &p->thread, &err), DPT_OK);
    const struct dpt_strategy_env env = {.config = &s->config,
                                         .model = s->model,
                                         .device = device,
                                         .stream = p->stream,
                                         .comm_stream = p->comm_stream,
                                         .listener = p->listener,
                                         .comm_thread = p->thread,
                                         .grid = &s->grid};
    assert_int_equal(dpt_strategy_create(&env, &p->strategy, &err), DPT_OK);
}

void close_part(struct part *p)
{
    struct dpt_memory_use use;
    dpt_strategy_destroy(&p->strategy);
    dpt_comm_thread_destroy(&p->thread);
    dpt_stream_destroy(&p->stream);
    dpt_stream_destroy(&p->comm_stream);
    dpt_account_read(&p->account, &use);
    assert_int_equal(use.all, dpt_comm_own_bytes(1, 0, DPT_ENCRYPT_NONE)); /* the listener's own */
    dpt_comm_listener_destroy(&p->listener);
    dpt_account_read(&p->account, &use);
    assert_int_equal(use.all, 0);
    assert_int_equal(use.reserved, 0);
}

void enter_world(struct part *p, const struct place *place, int rank)
{
    struct dpt_err err;
    assert_int_equal(dpt_strategy_begin_generation(p->strategy, &place->world, rank, &err), DPT_OK);
    dpt_strategy_state_changed(p->strategy);
}

struct dpt_memory_spec spec_of(const struct scene *s, const struct place *place, int rank)
{
    return (struct dpt_memory_spec){.config = &s->config,
                                    .model = s->model,
                                    .grid = &s->grid,
                                    .world = &place->world,
                                    .rank = rank,
                                    .threads = 1};
}
