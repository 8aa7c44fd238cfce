/* The choice of a token: frequencies are the probabilities, top-k cuts, zero is greedy, a seed
 * repeats itself. */
#include "worker/generate/token_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { V = 7, DRAWS = 20000 };

static const float logits[V] = {0.5f, -1.0f, 2.0f, 2.0f, 0.0f, 1.0f, -3.0f};
static struct dpt_err err;

static int32_t draw_token(const float *of, struct dpt_token_choice_settings sampling, int64_t i)
{
    struct dpt_token_candidate room[V];
    if (dpt_token_choice_check_logits(of, V, &err) != DPT_OK)
        fail_msg("%s", err.text);
    const int32_t token = dpt_token_choice(of, V, &sampling, i, room);
    assert_in_range(token, 0, V - 1);
    return token;
}

/* Each token comes as often as it should, within five standard deviations. */
static void check_frequencies(struct dpt_token_choice_settings sampling, const int *allowed, int n)
{
    int count[V] = {0};
    double total = 0;
    for (int64_t i = 0; i < DRAWS; i++)
        count[draw_token(logits, sampling, i)]++;
    for (int k = 0; k < n; k++)
        total += exp((double)logits[allowed[k]] / sampling.temperature);
    for (int t = 0; t < V; t++) {
        double p = 0;
        for (int k = 0; k < n; k++)
            if (allowed[k] == t)
                p = exp((double)logits[t] / sampling.temperature) / total;
        assert_true(fabs(count[t] - p * DRAWS) <= 5 * sqrt(p * (1 - p) * DRAWS));
    }
}

static void frequencies_are_probabilities(void **state)
{
    (void)state;
    static const int all[] = {0, 1, 2, 3, 4, 5, 6}, three[] = {2, 3, 5}, four[] = {2, 3, 5, 0};
    for (uint64_t seed = 0; seed < 3; seed++) {
        check_frequencies((struct dpt_token_choice_settings){1.0, 0, seed}, all, V);
        check_frequencies((struct dpt_token_choice_settings){0.5, V, seed}, all, V);
        check_frequencies((struct dpt_token_choice_settings){2.0, 100, seed}, all, V);
        check_frequencies((struct dpt_token_choice_settings){1.0, 3, seed}, three, 3);
        check_frequencies((struct dpt_token_choice_settings){0.7, 4, seed}, four, 4);
    }
}

static void greedy_choice_takes_greatest_logit(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 100; i++) {
        /* Of equal ones the first. */
        assert_int_equal(draw_token(logits, (struct dpt_token_choice_settings){0.0, 0, 9}, i), 2);
        assert_int_equal(draw_token(logits, (struct dpt_token_choice_settings){1.0, 1, 9}, i), 2);
        assert_int_equal(draw_token(logits, (struct dpt_token_choice_settings){1e-3, 0, 9}, i) / 2,
                         1);
    }
}

static void a_seed_repeats_itself(void **state)
{
    (void)state;
    int same = 0;
    for (int64_t i = 0; i < 1000; i++) {
        const int32_t a = draw_token(logits, (struct dpt_token_choice_settings){1.0, 0, 1}, i);
        assert_int_equal(a, draw_token(logits, (struct dpt_token_choice_settings){1.0, 0, 1}, i));
        same += a == draw_token(logits, (struct dpt_token_choice_settings){1.0, 0, 2}, i);
    }
    assert_in_range(same, 100, 500);
}

/* Logits of any size, and weights that vanish beside the greatest. */
static void test_extreme_logits(void **state)
{
    (void)state;
    float large[V];
    for (int t = 0; t < V; t++)
        large[t] = t == 4 ? 3e38f : -3e38f;
    assert_int_equal(draw_token(large, (struct dpt_token_choice_settings){1.0, 0, 3}, 0), 4);
    assert_int_equal(draw_token(large, (struct dpt_token_choice_settings){100.0, 0, 3}, 1), 4);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        large[5] = bad[i];
        assert_int_equal(dpt_token_choice_check_logits(large, V, &err), DPT_ECORRUPT);
        assert_non_null(strstr(err.text, "token 5"));
    }
}

/* The greatest first, and probabilities that come to one, however large the logits are. */
static void log_probabilities(void **state)
{
    (void)state;
    static const int32_t order[V] = {2, 3, 5, 0, 4, 1, 6};
    struct dpt_token_candidate sorted[V];
    dpt_token_choice_sort(logits, V, sorted);
    double total = 0;
    for (int k = 0; k < V; k++) {
        assert_int_equal(sorted[k].token, order[k]);
        assert_true(sorted[k].logit == logits[order[k]]);
        total += exp((double)logits[k]);
    }
    assert_true(fabs(dpt_token_choice_log_sum_exp(logits, V) - log(total)) < 1e-12);
    static const float large[] = {3e38f, 3e38f, -3e38f}, small[] = {-2000.0f};
    assert_true(dpt_token_choice_log_sum_exp(large, 3) ==
                (double)3e38f); /* log(2) is far below its last bit */
    assert_true(dpt_token_choice_log_sum_exp(small, 1) == -2000.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_are_probabilities),
        cmocka_unit_test(greedy_choice_takes_greatest_logit),
        cmocka_unit_test(a_seed_repeats_itself),
        cmocka_unit_test(test_extreme_logits),
        cmocka_unit_test(log_probabilities),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
