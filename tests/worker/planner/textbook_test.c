/* The textbook's accounting, beside figures that courses print. */
#include "worker/planner/textbook.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define GB 1e9

static void test_70b_in_8_bytes_on_4_ranks(void **state)
{
    (void)state;
    const struct dpt_textbook_widths w = dpt_textbook_plain(8, 2);
    assert_true(70e9 * w.weight == 560 * GB && 70e9 * w.gradient == 560 * GB);
    assert_true(70e9 * w.optimizer == 1120 * GB);
    assert_true(dpt_textbook_copy(70e9, w) == 2240 * GB);
    assert_true(dpt_textbook_rank(70e9, w, DPT_TEXTBOOK_ZERO3, 4) == 560 * GB);
    assert_true(dpt_textbook_rank(70e9, w, DPT_TEXTBOOK_DDP, 4) == 2240 * GB);
}

/* 2,240 GB are also the four copies of ddp in 16 bits: 560 GB a rank. */
static void test_70b_in_fewer_bytes(void **state)
{
    (void)state;
    const struct dpt_textbook_widths fp32 = dpt_textbook_plain(4, 2),
                                     bf16 = dpt_textbook_plain(2, 2);
    assert_true(70e9 * fp32.weight == 280 * GB && 70e9 * bf16.weight == 140 * GB);
    assert_true(dpt_textbook_rank(70e9, fp32, DPT_TEXTBOOK_ZERO3, 4) == 280 * GB);
    assert_true(dpt_textbook_rank(70e9, bf16, DPT_TEXTBOOK_ZERO3, 4) == 140 * GB);
    assert_true(dpt_textbook_copy(70e9, bf16) == 560 * GB);
    assert_true(4 * dpt_textbook_copy(70e9, bf16) == 2240 * GB);
    assert_true(175e9 * fp32.weight == 700 * GB); /* GPT-3 */
}

/* ZeRO, figure 1: 7.5B parameters on 64 GPUs with K = 12. */
static void test_stages_of_zero(void **state)
{
    (void)state;
    const struct dpt_textbook_widths w = dpt_textbook_mixed(2);
    const double of[] = {120, 31.4, 16.6, 1.9}; /* GB, in the paper rounded to one decimal */
    for (int stage = DPT_TEXTBOOK_DDP; stage <= DPT_TEXTBOOK_ZERO3; stage++) {
        const double gb =
            dpt_textbook_rank(7.5e9, w, (enum dpt_textbook_stage)stage, 64) / GB - of[stage];
        assert_true(gb > -0.06 && gb < 0.06);
    }
}

static void test_sgd_has_one_moment(void **state)
{
    (void)state;
    assert_true(dpt_textbook_copy(10, dpt_textbook_plain(4, 1)) == 120);
    assert_true(dpt_textbook_copy(10, dpt_textbook_mixed(1)) == 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_70b_in_8_bytes_on_4_ranks),
        cmocka_unit_test(test_70b_in_fewer_bytes),
        cmocka_unit_test(test_stages_of_zero),
        cmocka_unit_test(test_sgd_has_one_moment),
    };
    return cmocka_run_group_tests_name("textbook", tests, NULL, NULL);
}
