/* What stays between steps (dpt_memory_given_back), by the figures of docs/strategies.md, GPT-2
 * 124M: shard_grad_op keeps what full_shard keeps of the state, all others all that they hold. And
 * a system that has no memory any more when it is wanted back. */
#include "worker/strategy/memory.h"

#include "kernels/device.h"
#include "worker/strategy/strategy.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

enum { RANKS_MAX = 8 };

/* The linker sends the calls of this program's objects here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_posix_fallocate(int fd, off_t offset, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes);

static off_t refused_bytes; /* memory of so many is not to be had */

int __wrap_posix_fallocate(int fd, off_t offset, off_t bytes)
{
    return bytes == refused_bytes ? ENOMEM : __real_posix_fallocate(fd, offset, bytes);
}

/* NOLINTEND(bugprone-reserved-identifier) */

struct scene {
    struct dpt_config config;
    struct dpt_model *model;
    int64_t offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    int numbers[2 * RANKS_MAX];
    struct dpt_world world;
    struct dpt_memory_spec spec;
};

static void make_model(struct scene *s, int layers, int heads, int width, int context, int vocab)
{
    struct dpt_err err;
    s->config.model.n_layer = layers;
    s->config.model.n_head = heads;
    s->config.model.n_embd = width;
    s->config.model.context = context;
    s->config.model.vocab = vocab;
    dpt_model_destroy(&s->model);
    assert_int_equal(dpt_model_create(&s->config, &s->model, &err), DPT_OK);
    const int n = dpt_model_n_units(s->model);
    for (int u = 0; u < n; u++)
        s->offset[u] = dpt_model_unit(s->model, u)->offset;
    s->offset[n] = dpt_model_flat_numel(s->model);
    s->grid = (struct dpt_grid){.offset = s->offset, .n_units = n, .block = DPT_BLOCK};
    s->spec.model = s->model;
}

/* A world of `size` ranks on one host, and GPT-2 124M. */
static void open_scene(struct scene *s, const char *name, enum dpt_sharding sharding,
                       enum dpt_precision precision, int size)
{
    *s = (struct scene){.model = NULL};
    dpt_config_defaults(&s->config);
    (void)snprintf(s->config.strategy.name, sizeof s->config.strategy.name, "%s", name);
    s->config.strategy.sharding = sharding;
    s->config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    s->config.train.precision = precision;
    s->config.train.global_batch = RANKS_MAX;
    s->config.train.micro_batch = 1;
    make_model(s, 12, 12, 768, 1024, 50257);
    for (int i = 0; i < size; i++)
        s->numbers[i] = i;
    s->world = (struct dpt_world){.lanes = 1,
                                  .size = size,
                                  .rank_of_position = s->numbers,
                                  .host_of_position = s->numbers + RANKS_MAX,
                                  .node_of_position = s->numbers + RANKS_MAX};
    s->spec = (struct dpt_memory_spec){.config = &s->config,
                                       .model = s->model,
                                       .grid = &s->grid,
                                       .world = &s->world,
                                       .threads = 1};
}

/* Bytes of weights, masters, moments and reduced gradient, in a step or between two. */
static double state_bytes(const struct scene *s, bool between)
{
    int64_t formula[DPT_MEMORY_COUNT];
    dpt_memory_formula(&s->spec, formula);
    return (double)(formula[DPT_MEMORY_WEIGHTS] + formula[DPT_MEMORY_MASTERS] +
                    formula[DPT_MEMORY_MOMENTS] + formula[DPT_MEMORY_GRADIENT] -
                    (between ? dpt_memory_given_back(&s->spec) : 0));
}

/* Shards are in whole blocks. */
static void expect(const struct scene *s, const char *what, double bytes, double of_parameter)
{
    const double expected = of_parameter * (double)dpt_model_flat_numel(s->model);
    if (bytes < expected * 0.999 || bytes > expected * 1.001)
        fail_msg("%s, %s, %d ranks: %.0f bytes, not %.0f", s->config.strategy.name, what,
                 s->world.size, bytes, expected);
}

static void bytes_a_parameter(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dpt_sharding sharding;
        enum dpt_precision precision;
        int size;
        double in_step, between;
    } cases[] = {
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_FP32, 1, 16, 16},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_FP32, 2, 10, 8},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_FP32, 4, 7, 4},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_BF16, 2, 10, 9},
        {"fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_BF16, 8, 4, 2.25},
        {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_PRECISION_FP32, 2, 8, 8},
        {"fsdp", DPT_SHARDING_FULL_SHARD, DPT_PRECISION_BF16, 8, 2.25, 2.25},
        {"zero2", DPT_SHARDING_NULL, DPT_PRECISION_FP32, 2, 10, 10},
        {"zero2", DPT_SHARDING_NULL, DPT_PRECISION_BF16, 8, 4, 4},
        {"zero1", DPT_SHARDING_NULL, DPT_PRECISION_FP32, 2, 10, 10},
        {"ddp", DPT_SHARDING_NULL, DPT_PRECISION_FP32, 2, 16, 16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene s;
        open_scene(&s, cases[i].name, cases[i].sharding, cases[i].precision, cases[i].size);
        expect(&s, "in a step", state_bytes(&s, false), cases[i].in_step);
        expect(&s, "between steps", state_bytes(&s, true), cases[i].between);
        dpt_model_destroy(&s.model);
    }
}

/* All ranks together give back all but one whole of the weights each; and the bound, which is of a
 * step, is zero2's. */
static void every_rank_its_others(void **state)
{
    (void)state;
    struct scene s, zero2;
    int64_t bytes = 0;
    open_scene(&s, "fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_FP32, 5);
    open_scene(&zero2, "zero2", DPT_SHARDING_NULL, DPT_PRECISION_FP32, 5);
    for (int rank = 0; rank < 5; rank++) {
        s.spec.rank = zero2.spec.rank = rank;
        bytes += dpt_memory_given_back(&s.spec);
        assert_int_equal(dpt_memory_bound(&s.spec), dpt_memory_bound(&zero2.spec));
    }
    assert_int_equal(bytes, 4 * 4 * dpt_model_flat_numel(s.model));
    dpt_model_destroy(&s.model);
    dpt_model_destroy(&zero2.model);
}

/* A GPU that has the state keeps its weights; one that has only the computing does not. */
static void a_device_gives_nothing_back(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, "fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_BF16, 2);
    s.config.cluster.device = DPT_DEVICE_CUDA;
    assert_true(dpt_config_state_on_device(&s.config));
    assert_int_equal(dpt_memory_given_back(&s.spec), 0);
    s.config.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
    assert_false(dpt_config_state_on_device(&s.config));
    assert_true(dpt_memory_given_back(&s.spec) > 0);
    dpt_model_destroy(&s.model);
}

/* A rank in a world of `size`, with what its state has been given. */
static enum dpt_status enter_world(struct scene *s, struct dpt_strategy *strategy, int size,
                                   struct dpt_err *err)
{
    s->world.size = size;
    DPT_TRY(strategy->ops->begin_generation(strategy, &s->world, 0, 0, err));
    strategy->ops->state_changed(strategy);
    return DPT_OK;
}

/* A step, an evaluation and a larger world need the weights' memory, and say that it lacks; when it
 * is there again they go on. */
static void not_to_be_had_again(void **state)
{
    (void)state;
    struct scene s;
    struct dpt_err err;
    struct dpt_account account = {.all = {.now = 0}};
    struct dpt_strategy_env env = {.config = &s.config, .grid = &s.grid};
    struct dpt_strategy *strategy;
    struct dpt_slot slot = {.b = 0};
    open_scene(&s, "fsdp", DPT_SHARDING_SHARD_GRAD_OP, DPT_PRECISION_FP32, 2);
    make_model(&s, 2, 2, 32, 8, 300);
    env.model = s.model;
    assert_int_equal(dpt_device_cpu_create(&env.device, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(env.device, 1, &env.stream, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(env.device, 1, &env.comm_stream, &err), DPT_OK);
    assert_int_equal(dpt_comm_listener_create("127.0.0.1", &env.listener, &err), DPT_OK);
    dpt_comm_listener_set_account(env.listener, &account);
    assert_int_equal(dpt_comm_thread_create(env.listener, &env.comm_thread, &err), DPT_OK);
    assert_int_equal(dpt_strategy_find(&s.config)->create(&env, &strategy, &err), DPT_OK);
    const struct dpt_strategy_ops *ops = strategy->ops;
    assert_int_equal(enter_world(&s, strategy, 2, &err), DPT_OK);

    const int64_t whole = dpt_model_flat_numel(s.model) * (int64_t)sizeof(float);
    refused_bytes = (off_t)whole; /* it is in whole pages of 4 KiB, and this takes all of them */
    const int64_t own = whole - dpt_memory_given_back(&s.spec);
    assert_int_equal(account.tag[DPT_MEMORY_WEIGHTS].now, own);
    assert_int_equal(ops->begin_step(strategy, 0, &err), DPT_ENOMEM);
    assert_int_equal(ops->begin_eval(strategy, &slot, &err), DPT_ENOMEM);
    ops->end_generation(strategy);
    assert_int_equal(enter_world(&s, strategy, 3, &err), DPT_ENOMEM);
    assert_non_null(strstr(err.text, "reserve shared memory of"));
    assert_int_equal(account.tag[DPT_MEMORY_WEIGHTS].now, own);
    assert_int_equal(ops->held(strategy)->own.shard.of, 2);
    refused_bytes = 0;
    ops->end_generation(strategy);
    assert_int_equal(enter_world(&s, strategy, 3, &err), DPT_OK);
    assert_int_equal(account.tag[DPT_MEMORY_WEIGHTS].now, whole - dpt_memory_given_back(&s.spec));
    assert_int_equal(account.tag[DPT_MEMORY_WEIGHTS].peak, whole);

    ops->end_generation(strategy);
    ops->destroy(&strategy);
    dpt_comm_thread_destroy(&env.comm_thread);
    dpt_comm_listener_destroy(&env.listener);
    dpt_stream_destroy(&env.stream);
    dpt_stream_destroy(&env.comm_stream);
    dpt_device_destroy(&env.device);
    assert_int_equal(account.all.now, 0);
    dpt_model_destroy(&s.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_a_parameter),
        cmocka_unit_test(every_rank_its_others),
        cmocka_unit_test(a_device_gives_nothing_back),
        cmocka_unit_test(not_to_be_had_again),
    };
    return cmocka_run_group_tests_name("given back", tests, NULL, NULL);
}
