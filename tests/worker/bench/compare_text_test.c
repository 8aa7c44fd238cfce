/* Spreads of repeats, and the sentences that compare two methods. */
#include "worker/bench/compare_text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static char said[COMPARE_SENTENCES_MAX][COMPARE_SENTENCE_BYTES];

static void spread_of_repeats(void **state)
{
    (void)state;
    const double values[] = {3, 1, 2, 6}, one[] = {5};
    const struct spread s = spread_of(values, 4), alone = spread_of(one, 1);
    assert_true(s.median == 2.5 && s.min == 1 && s.max == 6 && s.mean == 3);
    assert_true(fabs(s.deviation - sqrt(14.0 / 3)) < 1e-12);
    assert_true(values[0] == 3); /* not sorted in place */
    assert_true(alone.median == 5 && alone.deviation == 0 && alone.min == 5);
}

static void ratios_of_pairs(void **state)
{
    (void)state;
    const double a[] = {1, 2, 4}, twice[] = {2, 4, 8}, noisy[] = {1.1, 1.8, 4.2};
    struct paired_ratio r = paired_ratio_of(a, twice, 3);
    assert_true(fabs(r.ratio - 2) < 1e-12 && r.has_interval && r.differs);
    r = paired_ratio_of(a, noisy, 3);
    assert_true(r.has_interval && !r.differs && r.low < 1 && r.high > 1);
    r = paired_ratio_of(a, twice, 1);
    assert_true(!r.has_interval && !r.differs && r.low == r.high);
    /* Logarithms 0.1 and 0.3: mean 0.2, deviation 0.1414, t 12.706 over the root of 2. */
    const double ones[] = {1, 1}, more[] = {exp(0.1), exp(0.3)};
    r = paired_ratio_of(ones, more, 2);
    assert_true(fabs(log(r.high) - (0.2 + 12.706 * 0.1)) < 1e-9);
    assert_true(fabs(log(r.low) - (0.2 - 12.706 * 0.1)) < 1e-9);
}

static struct compare_figures figures_of(const char *name, int n, double step, double memory)
{
    struct compare_figures f = {
        .name = name, .n = n, .sent_bytes = 1000, .hash = "0123456789abcdef"};
    for (int i = 0; i < n; i++) {
        f.step_s[i] = step * (1 + 0.01 * i);
        f.memory[i] = memory;
        f.wait_share[i] = 0.25;
    }
    return f;
}

static void assert_said(int at, const char *words)
{
    if (strcmp(said[at], words) != 0)
        fail_msg("'%s' instead of '%s'", said[at], words);
}

static void memory_for_time(void **state)
{
    (void)state;
    const struct compare_figures ddp = figures_of("ddp", 3, 1, 100e6);
    struct compare_figures fsdp = figures_of("fsdp", 3, 1.07, 59e6);
    fsdp.sent_bytes = 1500;
    fsdp.wait_share[1] = 0.4;
    assert_int_equal(compare_sentences(&ddp, &fsdp, "", said), 4);
    assert_said(0, "fsdp needs 41 % less memory than ddp, and takes 7.0 % more time a step (95 % "
                   "interval +7.0 to +7.0 %, 3 pairs).");
    assert_said(1, "fsdp waits for communication in 30.0 % of a step, ddp in 25.0 %.");
    assert_said(2, "A rank of fsdp sends 50 % more bytes a step than one of ddp.");
    assert_said(3, "ddp and fsdp end with the same weights, bit for bit.");
}

static void no_difference_within_noise(void **state)
{
    (void)state;
    const struct compare_figures a = figures_of("a", 3, 1, 100e6);
    struct compare_figures b = figures_of("b", 3, 1, 100.2e6);
    b.step_s[0] = 1.06;
    b.step_s[2] = 0.97;
    (void)compare_sentences(&a, &b, "", said);
    if (!strstr(said[0], "b needs as much memory as a, and shows no difference in time beyond the "
                         "noise of 3 pairs (95 % interval -"))
        fail_msg("%s", said[0]);
    assert_said(2, "A rank of b sends as much as one of a.");
}

static void one_repeat_tells_no_noise(void **state)
{
    (void)state;
    const struct compare_figures a = figures_of("a", 1, 1, 100e6),
                                 b = figures_of("b", 1, 0.5, 300e6);
    (void)compare_sentences(&a, &b, "", said);
    assert_said(0, "b needs 200 % more memory than a, and takes 50 % less time a step; one repeat "
                   "does not tell a difference from noise.");
}

static void reasons_of_other_weights(void **state)
{
    (void)state;
    const struct compare_figures a = figures_of("a", 2, 1, 1e6);
    struct compare_figures b = figures_of("b", 2, 1, 1e6);
    b.hash = "other";
    b.sent_bytes = 0; /* a world of one rank */
    assert_int_equal(compare_sentences(&a, &b, "", said), 3);
    assert_said(2, "a and b end with different weights, because they add gradients in different "
                   "orders (train.accumulate: local or reduce makes them equal).");
    (void)compare_sentences(&a, &b, "seed (1, here 2)", said);
    assert_said(2, "a and b end with different weights, because the configs differ in keys of the "
                   "trajectory: seed (1, here 2).");
    b.hash = "";
    (void)compare_sentences(&a, &b, "", said);
    assert_said(2, "The weights of b depend on the run: its order of addition is open.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spread_of_repeats),         cmocka_unit_test(ratios_of_pairs),
        cmocka_unit_test(memory_for_time),           cmocka_unit_test(no_difference_within_noise),
        cmocka_unit_test(one_repeat_tells_no_noise), cmocka_unit_test(reasons_of_other_weights),
    };
    return cmocka_run_group_tests_name("compare_text", tests, NULL, NULL);
}
