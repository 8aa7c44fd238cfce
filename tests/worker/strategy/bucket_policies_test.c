/* Each of ddp's teaching variants does what its name says: the tensors that it reduces together,
 * the time of posting, the wait, the frequency. Ranks are threads; gradients are small whole
 * numbers, so that every order of addition gives the same sum; waits are compared with the work
 * that other ranks have begun. */
#include "tests/worker/comm/comm_world.h"
#include "worker/plan/partition.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/strategy.h"

#include "base/cores.h"
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

enum { SEQ_LEN = 8, WORLD = 2 };

struct part;

/* What a test looks at while a rank goes through a step. */
struct scene {
    const char *name[WORLD]; /* the strategy of each rank */
    enum dpt_accumulate accumulate;
    int slots;
    int hosts;
    void (*before)(struct part *p, int slot, int param); /* it is announced */
    void (*after)(struct part *p, int slot, int param);
    void (*slot_over)(struct part *p, int slot);
};

struct part {
    struct rank *self;
    const struct scene *scene;
    struct dpt_config config;
    struct dpt_device *device;
    struct dpt_stream *stream, *comm_stream;
    struct dpt_model *model;
    struct dpt_comm_thread *thread;
    int64_t offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_strategy *strategy;
    struct dpt_world world;
    int rank_of_position[WORLD], host_of_position[WORLD];
    int n_params, tied;
    struct dpt_slot slot;
    float *tensor0; /* where the first slot's gradients went: the buffer of the sum */
    bool last;      /* the present slot is this rank's last */
};

static struct dpt_config make_bucket_config(const struct scene *s, int rank)
{
    struct dpt_config c;
    dpt_config_defaults(&c);
    (void)snprintf(c.strategy.name, sizeof c.strategy.name, "%s", s->name[rank]);
    c.model.n_layer = 2;
    c.model.n_head = 2;
    c.model.n_embd = 64;
    c.model.context = SEQ_LEN;
    c.model.vocab = 300;
    c.train.global_batch = s->slots;
    c.train.micro_batch = 1;
    c.train.seq_len = SEQ_LEN;
    c.train.accumulate = s->accumulate;
    return c;
}

static void make_bucket_part(struct rank *self, struct part *p)
{
    struct dpt_err *err = &self->err;
    *p = (struct part){.self = self, .scene = self->world->arg, .tied = -1};
    p->config = make_bucket_config(p->scene, self->rank);
    CHECK_OK(dpt_device_cpu_create(&p->device, err), err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->stream, err), err);
    CHECK_OK(dpt_stream_create(p->device, 1, &p->comm_stream, err), err);
    CHECK_OK(dpt_model_create(&p->config, &p->model, err), err);
    CHECK_OK(dpt_comm_thread_create(self->listener, &p->thread, err), err);
    p->n_params = dpt_model_n_params(p->model);
    const int n = dpt_model_n_units(p->model);
    for (int u = 0; u < n; u++) {
        p->offset[u] = dpt_model_unit(p->model, u)->offset;
        if (dpt_model_unit(p->model, u)->borrows >= 0)
            p->tied = dpt_model_unit(p->model, u)->borrows;
    }
    p->offset[n] = dpt_model_flat_numel(p->model);
    p->grid = (struct dpt_grid){.offset = p->offset, .n_units = n, .block = DPT_BLOCK};
    const struct dpt_strategy_env env = {.config = &p->config,
                                         .model = p->model,
                                         .device = p->device,
                                         .stream = p->stream,
                                         .comm_stream = p->comm_stream,
                                         .listener = self->listener,
                                         .comm_thread = p->thread,
                                         .grid = &p->grid};
    CHECK_OK(dpt_strategy_create(&env, &p->strategy, err), err);
}

static void open_world(struct part *p)
{
    struct dpt_err *err = &p->self->err;
    for (int r = 0; r < WORLD; r++) {
        p->rank_of_position[r] = r;
        p->host_of_position[r] = p->self->world->hosts[r];
    }
    p->world = (struct dpt_world){.lanes = dpt_config_lanes(&p->config),
                                  .size = WORLD,
                                  .rank_of_position = p->rank_of_position,
                                  .host_of_position = p->host_of_position};
    CHECK_OK(dpt_strategy_begin_generation(p->strategy, &p->world, p->self->rank, err), err);
    const struct dpt_comm_spec spec = world_spec(p->self, 1);
    dpt_comm_thread_arm(p->thread);
    CHECK_OK(dpt_comm_thread_open(p->thread, &spec, err), err);
}

static void end_part(struct part *p)
{
    dpt_comm_thread_close(p->thread);
    dpt_strategy_end_generation(p->strategy);
    dpt_strategy_destroy(&p->strategy);
    dpt_comm_thread_destroy(&p->thread);
    dpt_model_destroy(&p->model);
    dpt_stream_destroy(&p->stream);
    dpt_stream_destroy(&p->comm_stream);
    dpt_device_destroy(&p->device);
}

/* The gradient of a tensor in a slot, the same in all its elements; and the sum of slots below n.
 */
static float gradient_value(int slot, int param)
{
    return (float)((slot + 1) * (param + 1));
}

static float sum_below(int n, int param)
{
    return (float)(n * (n + 1) / 2 * (param + 1));
}

/* As backward: added to, or overwritten. */
static void write_gradient(struct part *p, int slot, int param)
{
    const struct dpt_param *t = dpt_model_param(p->model, param);
    const bool anew = !p->slot.accumulate || (p->slot.parts_apart && t->unit == p->tied);
    float *grad = p->slot.grads[t->unit] + (t->offset - dpt_model_unit(p->model, t->unit)->offset);
    for (int64_t i = 0; i < t->numel; i++)
        grad[i] = (anew ? 0 : grad[i]) + gradient_value(slot, param);
}

/* The sum's tensor is `value` everywhere. */
static bool sum_is(const struct part *p, int param, float value)
{
    const struct dpt_param *t = dpt_model_param(p->model, param);
    for (int64_t i = 0; i < t->numel; i++)
        if (memcmp(&p->tensor0[t->offset + i], &value, sizeof value) != 0)
            return false;
    return true;
}

/* The strategy's actions of a kind in a slot. */
static void strategy_act(struct part *p, enum dpt_action_kind kind, int slot)
{
    const struct dpt_step_list *list = dpt_strategy_step_list(p->strategy);
    for (int i = 0; i < list->n_actions; i++)
        if (list->actions[i].kind == kind && list->actions[i].slot == slot)
            CHECK_OK(dpt_strategy_act(p->strategy, i, &p->self->err), &p->self->err);
}

static void run_slot(struct part *p, int slot)
{
    p->slot = (struct dpt_slot){.slot = slot};
    dpt_strategy_begin_slot(p->strategy, slot, &p->slot);
    if (!p->tensor0)
        p->tensor0 = p->slot.grads[0];
    strategy_act(p, DPT_ACTION_RESERVE, slot);
    for (int param = p->n_params - 1; param >= 0; param--) {
        write_gradient(p, slot, param);
        if (p->scene->before)
            p->scene->before(p, slot, param);
        p->slot.announce(p->slot.announce_ctx, param);
        if (p->scene->after)
            p->scene->after(p, slot, param);
    }
    strategy_act(p, DPT_ACTION_REDUCE, slot);
    if (p->scene->slot_over)
        p->scene->slot_over(p, slot);
}

static void run_step(struct rank *self)
{
    struct part p;
    make_bucket_part(self, &p);
    open_world(&p);
    const struct dpt_assignment assignment = dpt_partition_assign(&p.config, &p.world, self->rank);
    dpt_strategy_begin_step(p.strategy, 0);
    for (int i = 0; i < assignment.n; i++) {
        p.last = i == assignment.n - 1;
        run_slot(&p, assignment.first + i * assignment.stride);
    }
    CHECK_OK(dpt_strategy_await_gradient(p.strategy, &self->err), &self->err);
    for (int param = 0; param < p.n_params; param++)
        CHECK(sum_is(&p, param, sum_below(p.scene->slots, param)));
    end_part(&p);
}

static void run_scene(const struct scene *s)
{
    struct world world = {.size = WORLD, .arg = (void *)(uintptr_t)s};
    world.hosts[1] = s->hosts - 1;
    world_run_threads(&world, run_step);
}

/* In both orders, on one host and on two, with 6 slots. */
static void in_all_ways(struct scene *s)
{
    for (int hosts = 1; hosts <= 2; hosts++)
        for (int order = 0; order < 2; order++) {
            s->hosts = hosts;
            s->accumulate = order == 0 ? DPT_ACCUMULATE_LOCAL : DPT_ACCUMULATE_REDUCE;
            s->slots = 6;
            run_scene(s);
        }
}

/* marks[rank]: how many tensors of its last slot it has begun to announce. */
static void count_begun(struct part *p, int slot, int param)
{
    (void)slot;
    if (p->last)
        mark_set(&p->self->world->marks[p->self->rank], p->n_params - param);
}

static int begun_by_peer(const struct part *p)
{
    return __atomic_load_n(&p->self->world->marks[1 - p->self->rank], __ATOMIC_ACQUIRE);
}

/* The main thread goes on from a tensor's announcement only with its sum; those to come have not
 * gone anywhere. */
static void has_waited(struct part *p, int slot, int param)
{
    (void)slot;
    if (!p->last)
        return;
    CHECK(begun_by_peer(p) >= p->n_params - param);
    CHECK(sum_is(p, param, sum_below(p->scene->slots, param)));
    CHECK(param == 0 || !sum_is(p, param - 1, sum_below(p->scene->slots, param - 1)));
}

static void hook_waits_at_each_tensor(void **state)
{
    (void)state;
    struct scene s = {.name = {"hook", "hook"}, .before = count_begun, .after = has_waited};
    in_all_ways(&s);
}

static void nothing_yet(struct part *p, int slot, int param)
{
    (void)slot;
    CHECK(!sum_is(p, param, sum_below(p->scene->slots, param)));
}

static void all_at_the_last(struct part *p, int slot)
{
    (void)slot;
    for (int param = 0; param < p->n_params; param++)
        CHECK(sum_is(p, param, sum_below(p->scene->slots, param)) == p->last);
}

static void simple_ga_reduces_after_the_last_backward(void **state)
{
    (void)state;
    struct scene s = {
        .name = {"simple_ga", "simple_ga"}, .after = nothing_yet, .slot_over = all_at_the_last};
    in_all_ways(&s);
}

/* Two ranks take slots in turn: after the wave of slots 2 w and 2 w + 1 all have the sum of the
 * first 2 (w + 1). */
static void sum_so_far(struct part *p, int slot)
{
    for (int param = 0; param < p->n_params; param++)
        CHECK(sum_is(p, param, sum_below(slot / WORLD * WORLD + WORLD, param)));
}

static void simple_reduces_after_each_backward(void **state)
{
    (void)state;
    struct scene s = {.name = {"simple", "simple"},
                      .accumulate = DPT_ACCUMULATE_REDUCE,
                      .slots = 6,
                      .after = nothing_yet,
                      .slot_over = sum_so_far};
    for (s.hosts = 1; s.hosts <= 2; s.hosts++)
        run_scene(&s);
    s.slot_over = NULL; /* the part of the tree so far is no sum of all slots */
    in_all_ways(&s);
}

/* Rank 1 announces nothing before rank 0 has completed its backward pass: a rank that waited there
 * would wait for ever. */
static void after_the_other(struct part *p, int slot, int param)
{
    (void)slot;
    if (p->self->rank == 1 && param == p->n_params - 1)
        mark_wait(&p->self->world->marks[0], 1);
}

static void tell_through(struct part *p, int slot)
{
    (void)slot;
    if (p->self->rank == 0)
        mark_set(&p->self->world->marks[0], 1);
}

static void async_waits_for_nobody(void **state)
{
    (void)state;
    static const char *const names[] = {"async", "bucket_async", "ddp"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct scene s = {.name = {names[i], names[i]},
                          .accumulate = DPT_ACCUMULATE_LOCAL,
                          .slots = WORLD,
                          .hosts = 1,
                          .before = after_the_other,
                          .slot_over = tell_through};
        run_scene(&s);
        s.accumulate = DPT_ACCUMULATE_REDUCE;
        if (strcmp(names[i], "ddp") != 0) /* it lets units go, not tensors */
            run_scene(&s);
    }
}

/* Rank 0 hooks and so goes on from a tensor only with its sum, which rank 1, async, must have
 * posted for that in the middle of its backward pass: it goes on from a tensor only when rank 0 has
 * begun the one before. (Inside a host both post in the same order.) */
static void after_the_hook(struct part *p, int slot, int param)
{
    (void)slot;
    const int announced = p->n_params - param;
    if (p->self->rank == 1 && announced > 1)
        mark_wait(&p->self->world->marks[0], announced - 1);
}

static void async_posts_what_is_announced(void **state)
{
    (void)state;
    const struct scene s = {.name = {"hook", "async"},
                            .accumulate = DPT_ACCUMULATE_LOCAL,
                            .slots = WORLD,
                            .hosts = 1,
                            .before = count_begun,
                            .after = after_the_hook};
    run_scene(&s);
}

static void buckets_of_each(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool tensors, small_first;
    } cases[] = {{"ddp", false, true},      {"bucket_async", false, false}, {"simple", true, true},
                 {"simple_ga", true, true}, {"hook", true, true},           {"async", true, true}};
    const struct scene any = {.name = {"ddp", "ddp"}, .slots = 1};
    struct dpt_config config = make_bucket_config(&any, 0);
    struct dpt_model *model;
    struct dpt_err err;
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    const int n_params = dpt_model_n_params(model);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_model_buckets made;
        (void)snprintf(config.strategy.name, sizeof config.strategy.name, "%s", cases[i].name);
        config.strategy.bucket_mib = 0.125;
        config.strategy.first_bucket_mib = 0.01;
        assert_int_equal(dpt_model_buckets_init(&made, &config, model, &err), DPT_OK);
        const struct dpt_bucket *buckets = made.bucket;
        const int n = made.n;
        assert_int_equal(n == n_params, cases[i].tensors);
        assert_true(n > 1);
        assert_int_equal(buckets[0].end, dpt_model_flat_numel(model));
        for (int b = 1; b < n; b++)
            assert_int_equal(buckets[b].end, buckets[b - 1].first);
        assert_int_equal(buckets[n - 1].first, 0);
        const double first_mib =
            (double)(buckets[0].end - buckets[0].first) * sizeof(float) / 1048576.0;
        assert_int_equal(first_mib <= 0.02, cases[i].small_first);
        for (int b = 0; b < n; b++) /* the same as ranges */
            assert_int_equal(made.offset[n - 1 - b], buckets[b].first);
        assert_int_equal(made.offset[n], dpt_model_flat_numel(model));
        dpt_model_buckets_fini(&made);
    }
    dpt_model_destroy(&model);
}

int main(void)
{
    dpt_cores_set_demand(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_of_each),
        cmocka_unit_test(hook_waits_at_each_tensor),
        cmocka_unit_test(simple_ga_reduces_after_the_last_backward),
        cmocka_unit_test(simple_reduces_after_each_backward),
        cmocka_unit_test(async_waits_for_nobody),
        cmocka_unit_test(async_posts_what_is_announced),
    };
    return cmocka_run_group_tests_name("bucket_policies", tests, NULL, NULL);
}
