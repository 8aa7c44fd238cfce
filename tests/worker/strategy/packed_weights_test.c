/* When packed weights save time; that a form is tied to the weights of a slot and to nothing else;
 * their memory. */
#include "worker/strategy/state/packed_weights.h"

#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

struct fixture {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    float *flat[2]; /* the same values at two places */
    const void *weights[2][DPT_UNITS_MAX];
    struct dpt_packed_weights *packed;
};

static void open_without(struct fixture *f, enum dpt_pack_weights mode, int without)
{
    struct dpt_err err;
    *f = (struct fixture){0};
    dpt_config_defaults(&f->config);
    f->config.model.n_layer = f->config.model.n_head = 2;
    f->config.model.n_embd = 48;
    f->config.model.context = 16;
    f->config.model.vocab = 300;
    f->config.cluster.pack_weights = mode;
    assert_int_equal(dpt_model_create(&f->config, &f->model, &err), DPT_OK);
    assert_int_equal(dpt_device_cpu_create(&f->device, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(f->device, 2, &f->stream, &err), DPT_OK);
    const size_t bytes = (size_t)dpt_model_flat_numel(f->model) * sizeof(float);
    for (int i = 0; i < 2; i++) {
        f->flat[i] = malloc(bytes);
        assert_non_null(f->flat[i]);
        dpt_model_init_range(f->model, dpt_device_ops(f->device), f->stream, 3,
                             (struct dpt_span){0, dpt_model_flat_numel(f->model)}, f->flat[i]);
        for (int u = 0; u < dpt_model_n_units(f->model); u++)
            f->weights[i][u] = f->flat[i] + dpt_model_unit(f->model, u)->offset;
    }
    const struct dpt_packed_weights_options options = {.config = &f->config,
                                                       .model = f->model,
                                                       .device = f->device,
                                                       .stream = f->stream,
                                                       .without = without};
    assert_int_equal(dpt_packed_weights_create(&options, &f->packed, &err), DPT_OK);
}

static void open_fixture(struct fixture *f, enum dpt_pack_weights mode)
{
    open_without(f, mode, -1);
}

static void close_fixture(struct fixture *f)
{
    struct dpt_err err;
    dpt_packed_weights_destroy(&f->packed);
    assert_null(f->packed);
    assert_int_equal(dpt_stream_sync(f->stream, &err), DPT_OK);
    dpt_stream_destroy(&f->stream);
    dpt_device_destroy(&f->device);
    dpt_model_destroy(&f->model);
    free(f->flat[0]);
    free(f->flat[1]);
}

static void decide(struct fixture *f, int slots, int ranks_of_host)
{
    struct dpt_err err;
    assert_int_equal(dpt_packed_weights_decide(f->packed, slots, ranks_of_host, &err), DPT_OK);
}

static void test_when_it_pays(void **state)
{
    (void)state;
    const int64_t gib = 1 << 30;
    assert_true(dpt_packing_pays(DPT_PACK_WEIGHTS_AUTO, 2, gib, 2 * gib));
    assert_false(dpt_packing_pays(DPT_PACK_WEIGHTS_AUTO, 1, gib, 2 * gib));
    assert_false(dpt_packing_pays(DPT_PACK_WEIGHTS_AUTO, 0, 0, 2 * gib));
    assert_false(dpt_packing_pays(DPT_PACK_WEIGHTS_AUTO, 2, gib + 1, 2 * gib));
    assert_false(dpt_packing_pays(DPT_PACK_WEIGHTS_AUTO, 2, gib, 0));
    assert_true(dpt_packing_pays(DPT_PACK_WEIGHTS_ON, 1, gib, 0));
    assert_false(dpt_packing_pays(DPT_PACK_WEIGHTS_OFF, 100, 0, gib));
}

/* The form of parameter `param`, made by hand from place `i`. */
static void expect_form(struct fixture *f, const struct dpt_slot *slot, int param, int i)
{
    const struct dpt_ops *ops = dpt_device_ops(f->device);
    struct dpt_pack pack;
    assert_true(dpt_model_packing(f->model, param, &pack));
    const size_t bytes = ops->packed_bytes(f->stream, &pack);
    pack.w = f->flat[i] + dpt_model_param(f->model, param)->offset;
    pack.packed = aligned_alloc(64, bytes);
    assert_non_null(pack.packed);
    memset(pack.packed, 0, bytes);
    ops->pack(f->stream, &pack);
    assert_memory_equal(pack.packed, slot->packed[param], bytes);
    free(pack.packed);
}

static void expect_forms(struct fixture *f, const struct dpt_slot *slot, int unit, int i)
{
    const struct dpt_unit *u = dpt_model_unit(f->model, unit);
    struct dpt_pack pack;
    for (int p = u->first_param; p < u->first_param + u->n_params; p++) {
        if (dpt_model_packing(f->model, p, &pack))
            expect_form(f, slot, p, i);
        else
            assert_null(slot->packed[p]); /* norms, biases, positions */
    }
}

static void test_tied_to_the_weights_given(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, DPT_PACK_WEIGHTS_ON);
    decide(&f, 1, 1);
    struct dpt_slot slot = {.weights = f.weights[0]};
    dpt_packed_weights_use(f.packed, &slot);
    expect_forms(&f, &slot, 1, 0);
    expect_forms(&f, &slot, 0, 0);

    /* The same values at another place: the forms are still true, and nothing is read. */
    const int64_t from = dpt_model_unit(f.model, 1)->offset;
    const int64_t numel = dpt_model_unit(f.model, 1)->numel;
    for (int64_t i = 0; i < numel; i++)
        f.flat[1][from + i] = 0.5f * f.flat[1][from + i];
    slot.weights = f.weights[1];
    dpt_packed_weights_use(f.packed, &slot);
    expect_forms(&f, &slot, 1, 0);

    /* Until they are dropped: then there are none, and the next slot's are made from its
     * weights. */
    dpt_packed_weights_forget(f.packed);
    const struct dpt_unit *unit = dpt_model_unit(f.model, 1);
    for (int p = unit->first_param; p < unit->first_param + unit->n_params; p++)
        assert_null(slot.packed[p]);
    dpt_packed_weights_use(f.packed, &slot);
    expect_forms(&f, &slot, 1, 1);
    expect_forms(&f, &slot, 0, 1);
    close_fixture(&f);
}

/* A weight that is trained beside frozen ones has no form; its neighbours have theirs. */
static void test_without_one(void **state)
{
    (void)state;
    struct fixture f;
    struct dpt_pack pack;
    open_fixture(&f, DPT_PACK_WEIGHTS_ON);
    decide(&f, 1, 1);
    const int64_t all = dpt_packed_weights_bytes(f.packed);
    int without = dpt_model_unit(f.model, 1)->first_param;
    while (!dpt_model_packing(f.model, without, &pack))
        without++;
    const size_t bytes = dpt_device_ops(f.device)->packed_bytes(f.stream, &pack);
    close_fixture(&f);

    open_without(&f, DPT_PACK_WEIGHTS_ON, without);
    decide(&f, 1, 1);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), all - (int64_t)(bytes + 63) / 64 * 64);
    struct dpt_slot slot = {.weights = f.weights[0]};
    const struct dpt_unit *unit = dpt_model_unit(f.model, 1);
    dpt_packed_weights_use(f.packed, &slot);
    assert_null(slot.packed[without]);
    for (int p = without + 1; p < unit->first_param + unit->n_params; p++)
        if (dpt_model_packing(f.model, p, &pack))
            expect_form(&f, &slot, p, 0);
    close_fixture(&f);
}

static void test_packed_memory_is_counted(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, DPT_PACK_WEIGHTS_AUTO);
    const size_t before = dpt_device_bytes(f.device);
    struct dpt_slot slot = {.weights = f.weights[0]};
    decide(&f, 1, 1); /* one slot: it does not pay */
    dpt_packed_weights_use(f.packed, &slot);
    assert_null(slot.packed);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), 0);
    assert_int_equal(dpt_device_bytes(f.device), before);

    decide(&f, 2, 1);
    dpt_packed_weights_use(f.packed, &slot);
    assert_non_null(slot.packed);
    const int64_t bytes = dpt_packed_weights_bytes(f.packed);
    assert_int_equal(dpt_device_bytes(f.device), before + (size_t)bytes);
    /* At least two copies of the matrices that products read. */
    int64_t matrices = 0;
    struct dpt_pack pack;
    for (int p = 0; p < dpt_model_n_params(f.model); p++)
        if (dpt_model_packing(f.model, p, &pack))
            matrices += pack.rows * pack.cols;
    assert_int_equal(matrices, 2 * 12 * 48 * 48 + 300 * 48);
    assert_true(bytes >= 2 * matrices * (int64_t)sizeof(float));

    /* Kept while generations want them; a great many ranks change nothing then. */
    decide(&f, 2, 1 << 30);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), bytes);

    /* A generation that does not use them does not hold them; the next one that does makes them
     * again, from its weights. */
    decide(&f, 1, 1);
    assert_null(slot.packed[dpt_model_unit(f.model, 1)->first_param]);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), 0);
    assert_int_equal(dpt_device_bytes(f.device), before);
    decide(&f, 2, 1 << 30);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), 0);
    decide(&f, 2, 1);
    assert_int_equal(dpt_device_bytes(f.device), before + (size_t)bytes);
    f.flat[1][dpt_model_unit(f.model, 1)->offset] = 3.0f;
    slot = (struct dpt_slot){.weights = f.weights[1]};
    dpt_packed_weights_use(f.packed, &slot);
    expect_forms(&f, &slot, 1, 1);
    close_fixture(&f);
}

static void test_no_memory_no_forms(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, DPT_PACK_WEIGHTS_AUTO);
    decide(&f, 2, 1 << 30); /* more than any host has */
    assert_int_equal(dpt_packed_weights_bytes(f.packed), 0);
    close_fixture(&f);
}

static void test_off_packs_nothing(void **state)
{
    (void)state;
    struct fixture f;
    open_fixture(&f, DPT_PACK_WEIGHTS_OFF);
    decide(&f, 100, 1);
    struct dpt_slot slot = {.weights = f.weights[0]};
    dpt_packed_weights_use(f.packed, &slot);
    dpt_packed_weights_forget(f.packed);
    assert_null(slot.packed);
    assert_int_equal(dpt_packed_weights_bytes(f.packed), 0);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_it_pays),       cmocka_unit_test(test_tied_to_the_weights_given),
        cmocka_unit_test(test_without_one),        cmocka_unit_test(test_packed_memory_is_counted),
        cmocka_unit_test(test_no_memory_no_forms), cmocka_unit_test(test_off_packs_nothing),
    };
    return cmocka_run_group_tests_name("packed_weights", tests, NULL, NULL);
}
