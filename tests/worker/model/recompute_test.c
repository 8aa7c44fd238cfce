/* Activation checkpointing: fewer bytes are kept, and not a bit changes. */
#include "tests/worker/model/model_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MODES = 3, PRECISIONS = 3, SIZES = 3 };
static const enum dpt_activation_checkpointing modes[MODES] = {
    DPT_ACTIVATION_CHECKPOINTING_NONE, DPT_ACTIVATION_CHECKPOINTING_SELECTIVE,
    DPT_ACTIVATION_CHECKPOINTING_FULL};
static const char *const names[MODES] = {"none", "selective", "full"};
static const enum dpt_precision precisions[PRECISIONS] = {DPT_PRECISION_FP32, DPT_PRECISION_BF16,
                                                          DPT_PRECISION_FP16};

/* Odd with dropout, round with dropout, one block of one position. */
static const struct rig_size sizes[SIZES] = {{3, 3, 51, 37, 131, 3, 29, 2, 0.3, DPT_PRECISION_FP32},
                                             {2, 4, 64, 64, 384, 2, 64, 3, 0.1, DPT_PRECISION_FP32},
                                             {1, 1, 8, 4, 5, 1, 1, 1, 0.5, DPT_PRECISION_FP32}};

static struct dpt_err err;

/* What a slot came to: losses, and the gradient without its padding (which stays the rig's NaN). */
struct result {
    float *grad, *losses;
};

static struct result result_of(const struct rig *rig)
{
    struct result r = {.grad = rig_memory((size_t)rig->numel * sizeof(float)),
                       .losses = rig_memory((size_t)rig->n * sizeof(float))};
    memcpy(r.grad, rig->grad, (size_t)rig->numel * sizeof(float));
    memcpy(r.losses, rig->slot.losses, (size_t)rig->n * sizeof(float));
    return r;
}

static void expect_result(const struct rig *rig, const struct result *r, const char *what)
{
    if (memcmp(r->losses, rig->slot.losses, (size_t)rig->n * sizeof(float)) != 0)
        fail_msg("%s: losses differ", what);
    for (int p = 0; p < dpt_model_n_params(rig->model); p++) {
        const struct dpt_param *param = dpt_model_param(rig->model, p);
        if (memcmp(r->grad + param->offset, rig->grad + param->offset,
                   (size_t)param->numel * sizeof(float)) != 0)
            fail_msg("%s: gradient of %s differs", what, param->name);
    }
}

static void free_result(struct result *r)
{
    free(r->grad);
    free(r->losses);
}

static void open_in(struct rig *rig, int size, int precision, int mode)
{
    struct rig_size here = sizes[size];
    here.precision = precisions[precision];
    rig_open_checkpointing(rig, &here, modes[mode]);
}

/* The rig's guards behind saved and scratch show that the bytes stated are the bytes used. */
static void recomputed_activations_have_same_bits(void **state)
{
    (void)state;
    for (int size = 0; size < SIZES; size++)
        for (int precision = 0; precision < PRECISIONS; precision++) {
            struct result kept = {0};
            for (int mode = 0; mode < MODES; mode++) {
                struct rig rig;
                open_in(&rig, size, precision, mode);
                (void)rig_run(&rig);
                if (mode == 0)
                    kept = result_of(&rig);
                else
                    expect_result(&rig, &kept, names[mode]);
                rig_close(&rig);
            }
            free_result(&kept);
        }
}

/* Gradients that are added to, as every slot of a lane after its first. */
static void same_bits_accumulated(void **state)
{
    (void)state;
    struct result kept = {0};
    for (int mode = 0; mode < MODES; mode++) {
        struct rig rig;
        open_in(&rig, 0, 1, mode);
        (void)rig_run(&rig);
        rig.slot.accumulate = true;
        rig.slot.slot = 1;
        (void)rig_run(&rig);
        if (mode == 0)
            kept = result_of(&rig);
        else
            expect_result(&rig, &kept, names[mode]);
        rig_close(&rig);
    }
    free_result(&kept);
}

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes beside the statistics, in elements of a row: of GPT-2's blocks 16 C, 10 C, C; of a llama's,
 * with Q of queries, keys and values each and I of the MLP, 4 C + 4 Q + 3 I, 2 C + 4 Q + 2 I, C. */
static void bytes_kept(void **state)
{
    (void)state;
    enum {
        T = 64,
        N = 2 * T,
        C = 64,
        HEADS = 4,
        LAYERS = 2,
        HALF = 16,
        Q = HEADS * 2 * HALF,
        I = 96
    };
    static const size_t rows[2][MODES] = {{16 * C, 10 * C, C},
                                          {4 * C + 4 * Q + 3 * I, 2 * C + 4 * Q + 2 * I, C}};
    const bool llama = !rig_is_gpt2();
    const size_t of_norms = llama ? 2 : 4, tables = llama ? 2 * T * HALF * sizeof(float) : 0;
    for (int precision = 0; precision < PRECISIONS; precision++)
        for (int mode = 0; mode < MODES; mode++) {
            struct rig rig;
            open_in(&rig, 1, precision, mode);
            const size_t column = N * dpt_dtype_bytes(dpt_model_dtype(rig.model));
            const size_t statistics =
                of_norms * padded(N * sizeof(float)) + padded(N * HEADS * sizeof(float));
            const size_t block = rows[llama][mode] * column + (mode < 2 ? statistics : 0);
            assert_int_equal(rig.saved_bytes, 2 * C * column + tables + LAYERS * block);
            rig_close(&rig);
        }
}

/* Whatever is in scratch when a call begins means nothing: two slots share it, unit by unit. */
static void slots_interleave(void **state)
{
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        struct rig a, b;
        open_in(&a, 0, 0, mode);
        open_in(&b, 0, 0, mode);
        b.slot.slot = 1;
        (void)rig_run(&a);
        (void)rig_run(&b);
        struct result of_a = result_of(&a), of_b = result_of(&b);
        void *own = b.slot.scratch;
        b.slot.scratch = a.slot.scratch;
        const int units = dpt_model_n_units(a.model);
        for (int u = 0; u < units; u++) {
            dpt_model_forward(a.model, a.ops, a.stream, u, &a.slot);
            dpt_model_forward(a.model, a.ops, a.stream, u, &b.slot);
        }
        assert_int_equal(dpt_stream_sync(a.stream, &err), DPT_OK);
        for (int u = units - 1; u >= 0; u--) {
            memset(a.slot.scratch, 0xff, a.scratch_bytes);
            dpt_model_backward(a.model, a.ops, a.stream, u, &b.slot);
            assert_int_equal(dpt_stream_sync(a.stream, &err), DPT_OK);
            memset(a.slot.scratch, 0xff, a.scratch_bytes);
            dpt_model_backward(a.model, a.ops, a.stream, u, &a.slot);
            assert_int_equal(dpt_stream_sync(a.stream, &err), DPT_OK);
        }
        expect_result(&a, &of_a, names[mode]);
        expect_result(&b, &of_b, names[mode]);
        b.slot.scratch = own;
        free_result(&of_a);
        free_result(&of_b);
        rig_close(&a);
        rig_close(&b);
    }
}

/* The preparing mode knows the recomputation too, and needs no memory for it. */
static void test_recompute_prepares_without_memory(void **state)
{
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        struct rig rig;
        open_in(&rig, 0, 0, mode);
        (void)rig_run(&rig);
        struct result plain = result_of(&rig);
        struct dpt_stream *const unprepared = rig.stream;
        assert_int_equal(dpt_stream_create(rig.dev, 2, &rig.stream, &err), DPT_OK);
        const struct dpt_slot nowhere = {
            .mode = DPT_MODE_TRAIN, .b = sizes[0].b, .t = sizes[0].t, .dloss = 1.0f};
        const int units = dpt_model_n_units(rig.model);
        dpt_stream_prepare_begin(rig.stream);
        for (int u = 0; u < units; u++)
            dpt_model_forward(rig.model, rig.ops, rig.stream, u, &nowhere);
        for (int u = units - 1; u >= 0; u--)
            dpt_model_backward(rig.model, rig.ops, rig.stream, u, &nowhere);
        assert_int_equal(dpt_stream_prepare_end(rig.stream, &err), DPT_OK);
        (void)rig_run(&rig);
        expect_result(&rig, &plain, names[mode]);
        dpt_stream_destroy(&rig.stream);
        rig.stream = unprepared;
        free_result(&plain);
        rig_close(&rig);
    }
}

int main(int argc, char **argv)
{
    rig_choose(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputed_activations_have_same_bits),
        cmocka_unit_test(same_bits_accumulated),
        cmocka_unit_test(bytes_kept),
        cmocka_unit_test(slots_interleave),
        cmocka_unit_test(test_recompute_prepares_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
