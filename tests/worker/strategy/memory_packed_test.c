/* The memory of packed forms and of activations: the computed bytes are those that the library
 * needs and those of docs/strategies.md; and which ranks pack. */
#include "tests/worker/strategy/memory_scene.h"

#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* What a rank packs. */
static int64_t packed_bytes(const struct scene *s, const struct place *place, int rank,
                            int *ret_operand)
{
    struct part p;
    struct dpt_memory_use use;
    open_part(s, &p);
    enter_world(&p, place, rank);
    dpt_account_read(&p.account, &use);
    *ret_operand = (int)dpt_device_ops(device)->operand_bytes(p.stream, dpt_model_dtype(s->model));
    dpt_strategy_end_generation(p.strategy);
    close_part(&p);
    return use.tag[DPT_MEMORY_PACKED];
}

/* The closed formula beside the library's need: equal if every side is in whole blocks, on all
 * machines; at most as large elsewhere. */
static void test_packed_formula_bounds_library(void **state)
{
    (void)state;
    static const struct {
        int width, vocab;
        bool whole;
    } shapes[] = {{64, 256, true},  {192, 3072, true}, {256, 3392, true},
                  {32, 300, false}, {40, 1500, false}, {72, 6301, false}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int half = 0; half < 2; half++) {
            struct scene s;
            struct place place;
            int operand;
            open_scene(&s, &variants[0], DPT_ACCUMULATE_LOCAL,
                       half ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32, shapes[i].vocab, 8);
            s.config.cluster.pack_weights = DPT_PACK_WEIGHTS_ON;
            s.config.model.n_embd = shapes[i].width;
            make_model(&s);
            make_place(&s, 0, &place);
            const int64_t bytes = packed_bytes(&s, &place, 0, &operand),
                          formula = dpt_memory_packed(s.model, operand), c = shapes[i].width,
                          elements = 3 * 12 * c * c + shapes[i].vocab * c;
            if (shapes[i].whole ? bytes != formula
                                : bytes > formula || bytes < 2 * elements * operand)
                fail_msg("width %d, vocabulary %d, %d bytes an element: %lld bytes, not %lld",
                         shapes[i].width, shapes[i].vocab, operand, (long long)bytes,
                         (long long)formula);
            dpt_model_destroy(&s.model);
        }
}

/* By hand: 12 blocks of 12 C C, twice; the vocabulary in 16 blocks of 3072 and one of 1105, which
 * is 6 tiles of 192 columns in one product and 1120 rows in the other. */
static void test_packed_of_124m(void **state)
{
    (void)state;
    const int64_t c = 768, elements = 12 * 12 * c * c * 2 + 16 * 3072 * c * 2 + (1152 + 1120) * c;
    struct scene s;
    open_scene(&s, &variants[0], DPT_ACCUMULATE_LOCAL, DPT_PRECISION_FP32, 300, 8);
    make_124m(&s);
    assert_int_equal(dpt_memory_packed(s.model, 4), 4 * elements);
    assert_int_equal(dpt_memory_packed(s.model, 2), 2 * elements);
    struct place place;
    make_place(&s, 0, &place);
    struct dpt_memory_spec spec = spec_of(&s, &place, 0);
    const int64_t without = dpt_memory_bound(&spec);
    spec.packed_operand = 4;
    assert_int_equal(dpt_memory_bound(&spec), without + 4 * elements);
    dpt_model_destroy(&s.model);
}

/* For every strategy and rank: the ranks that pack are those of dpt_memory_may_pack, in worlds of 1
 * and of 4 ranks with 5 slots, so that some ranks compute one slot and some several. */
static void who_packs(const struct variant *v, enum dpt_accumulate accumulate,
                      enum dpt_pack_weights mode)
{
    struct scene s;
    open_scene(&s, v, accumulate, DPT_PRECISION_FP32, 300, 5);
    s.config.cluster.pack_weights = mode;
    for (int i = 0; i < WORLDS; i += 5) {
        struct place place;
        make_place(&s, i, &place);
        for (int rank = 0; rank < place.world.size; rank++) {
            const struct dpt_memory_spec spec = spec_of(&s, &place, rank);
            int operand;
            const int64_t bytes = packed_bytes(&s, &place, rank, &operand);
            if (dpt_memory_may_pack(&spec) != (bytes > 0))
                fail_msg("%s, accumulate %d, mode %d, world %d, rank %d: %lld bytes", v->name,
                         (int)accumulate, (int)mode, i, rank, (long long)bytes);
        }
    }
    dpt_model_destroy(&s.model);
}

static void test_who_packs(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++)
        for (int i = 0; i <= 2 * DPT_PACK_WEIGHTS_OFF + 1; i++)
            who_packs(&variants[v], i % 2 ? DPT_ACCUMULATE_LOCAL : DPT_ACCUMULATE_REDUCE,
                      (enum dpt_pack_weights)(i / 2));
}

/* What docs/strategies.md says of activations, in words. */
static void test_activations_as_documented(void **state)
{
    static const int parts[] = {[DPT_ACTIVATION_CHECKPOINTING_NONE] = 16,
                                [DPT_ACTIVATION_CHECKPOINTING_FULL] = 1,
                                [DPT_ACTIVATION_CHECKPOINTING_SELECTIVE] = 10};
    (void)state;
    for (int mode = 0; mode < 3; mode++)
        for (int half = 0; half < 2; half++) {
            struct scene s;
            struct place place;
            open_scene(&s, &variants[0], DPT_ACCUMULATE_LOCAL,
                       half ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32, 300, 8);
            struct dpt_config *c = &s.config;
            c->train.activation_checkpointing = (enum dpt_activation_checkpointing)mode;
            c->model.n_embd = 128;
            c->model.n_head = 4;
            c->train.micro_batch = 3;
            make_model(&s);
            make_place(&s, 0, &place);
            const struct dpt_memory_spec spec = spec_of(&s, &place, 0);
            int64_t formula[DPT_MEMORY_COUNT];
            dpt_memory_formula(&spec, formula);
            const double tokens = 3.0 * 8, w = half ? 2 : 4, layers = 3,
                         statistics = mode == DPT_ACTIVATION_CHECKPOINTING_FULL ? 0 : 4 + 4,
                         expected = w * tokens * 128 * (parts[mode] * layers + 2) +
                                    4 * tokens * layers * statistics;
            const double kept = (double)formula[DPT_MEMORY_ACTIVATIONS];
            if (kept < expected * 0.99 || kept > expected * 1.01)
                fail_msg("checkpointing %d, %d bytes an element: %.0f bytes, not %.0f", mode,
                         (int)w, kept, expected);
            dpt_model_destroy(&s.model);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_formula_bounds_library),
        cmocka_unit_test(test_packed_of_124m),
        cmocka_unit_test(test_who_packs),
        cmocka_unit_test(test_activations_as_documented),
    };
    return cmocka_run_group_tests_name("memory_packed", tests, make_device, destroy_device);
}
