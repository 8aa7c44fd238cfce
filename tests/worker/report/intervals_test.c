/* Sets of times, beside a set of points. */
#include "worker/report/intervals.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { POINTS = 64, SEEDS = 300, INTERVALS_MAX = 12 };

/* A set with the unit intervals that it covers. */
struct pair {
    struct report_intervals set;
    bool covers[POINTS];
};

/* Random numbers of a seed. */
struct draws {
    struct dpt_rng_key key;
    uint64_t n;
};

static int draw_below(struct draws *draws, int limit)
{
    uint32_t block[4];
    dpt_philox(draws->key, draws->n++, block);
    return (int)(block[0] % (uint32_t)limit);
}

static struct pair draw_pair(struct draws *draws)
{
    struct pair pair;
    memset(&pair, 0, sizeof pair);
    const int n = draw_below(draws, INTERVALS_MAX);
    for (int i = 0; i < n; i++) {
        const int begin = draw_below(draws, POINTS),
                  end = begin + 1 + draw_below(draws, POINTS - begin);
        assert_true(report_intervals_add(&pair.set, begin, end));
        for (int at = begin; at < end; at++)
            pair.covers[at] = true;
    }
    report_intervals_merge(&pair.set);
    return pair;
}

static void assert_covers(const struct report_intervals *set, const bool covers[POINTS])
{
    int64_t length = 0;
    for (int at = 0; at < POINTS; at++) {
        assert_int_equal(report_intervals_length_in(set, at, at + 1), covers[at]);
        length += covers[at];
    }
    assert_int_equal(report_intervals_length(set), length);
    for (size_t i = 1; i < set->n; i++)
        assert_true(set->at[i].begin > set->at[i - 1].end);
}

static void test_sets_are_those_of_points(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct draws draws = {dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0), 0};
        struct pair a = draw_pair(&draws), b = draw_pair(&draws);
        int64_t common = 0;
        assert_covers(&a.set, a.covers);
        for (int at = 0; at < POINTS; at++)
            common += a.covers[at] && b.covers[at];
        assert_int_equal(report_intervals_common(&a.set, &b.set), common);
        assert_true(report_intervals_subtract(&a.set, &b.set));
        for (int at = 0; at < POINTS; at++)
            a.covers[at] = a.covers[at] && !b.covers[at];
        assert_covers(&a.set, a.covers);
        report_intervals_free(&a.set);
        report_intervals_free(&b.set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sets_are_those_of_points)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
