/* Intervals and goodput: by hand, and beside a simulation of failures. */
#include "worker/planner/goodput.h"

#include "base/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { SEED = 7 };

static void assert_near(double value, double expected, double share)
{
    if (fabs(value / expected - 1) > share)
        fail_msg("%.9g, expected %.9g", value, expected);
}

static void test_intervals_by_hand(void **state)
{
    (void)state;
    /* sqrt(2 * 50 * 40000) = 2000; 50 / 80000 = 0.000625, whose root is 0.025:
     * 2000 (1 + 0.025 / 3 + 0.000625 / 9) - 50 = 1966.8055... */
    assert_near(dpt_goodput_young(50, 40000), 2000, 1e-12);
    assert_near(dpt_goodput_daly(50, 40000), 1966.805555555, 1e-9);
    assert_near(dpt_goodput_daly(2000, 1000), 1000, 1e-12);
    assert_near(dpt_goodput_mtbf(3600, 16), 225, 1e-12);
}

static void test_goodput_by_hand(void **state)
{
    (void)state;
    const struct dpt_failure_times times = {.mtbf_s = 1000, .interval_s = 900, .save_s = 100};
    assert_near(dpt_goodput(&times), 0.9 / 1.718281828459, 1e-9);
    struct dpt_failure_times recovering = times;
    recovering.recover_s = 1000;
    assert_near(dpt_goodput(&recovering), 0.9 / 1.718281828459 / 2.718281828459, 1e-9);
    /* A step of 10 s: 10 / (1000 (e^0.01 - 1)) = 0.99500833..., and 0.9 for the saves. */
    assert_near(dpt_goodput_replicated(&times, 10), 0.9 * 0.995008332, 1e-8);
}

static void test_no_interval_is_better_than_daly(void **state)
{
    (void)state;
    const double saves[] = {1, 30, 300, 1500};
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        struct dpt_failure_times times = {.mtbf_s = 5000, .save_s = saves[i], .recover_s = 60};
        times.interval_s = dpt_goodput_daly(saves[i], 5000);
        const double best = dpt_goodput(&times), interval = times.interval_s;
        for (double factor = 0.5; factor < 2.05; factor += 0.1) {
            times.interval_s = interval * factor;
            assert_true(dpt_goodput(&times) < best * 1.0005);
        }
    }
}

/* The time until the next failure: exponentially distributed. */
static double draw_failure(uint64_t *draws, double mtbf_s)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(SEED, DPT_RNG_TEST, 0, 0, 0), (*draws)++, block);
    return -mtbf_s * log(((double)block[0] + 1.0) * 0x1p-32);
}

/* The wall time of `segments` intervals of training, each with its save. */
static double simulate(const struct dpt_failure_times *times, int segments)
{
    uint64_t draws = 0;
    double wall_s = 0;
    for (int i = 0; i < segments; i++)
        for (bool recovering = false;; recovering = true) {
            const double needed_s =
                times->interval_s + times->save_s + (recovering ? times->recover_s : 0);
            const double failure_s = draw_failure(&draws, times->mtbf_s);
            if (failure_s >= needed_s) {
                wall_s += needed_s;
                break;
            }
            wall_s += failure_s;
        }
    return wall_s;
}

static void test_simulation(void **state)
{
    (void)state;
    enum { SEGMENTS = 200000 };
    const struct dpt_failure_times cases[] = {
        {.mtbf_s = 1000, .interval_s = 400, .save_s = 50, .recover_s = 120},
        {.mtbf_s = 10000, .interval_s = 300, .save_s = 5, .recover_s = 300},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_near(dpt_goodput(&cases[i]),
                    SEGMENTS * cases[i].interval_s / simulate(&cases[i], SEGMENTS), 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intervals_by_hand),
        cmocka_unit_test(test_goodput_by_hand),
        cmocka_unit_test(test_no_interval_is_better_than_daly),
        cmocka_unit_test(test_simulation),
    };
    return cmocka_run_group_tests_name("goodput", tests, NULL, NULL);
}
