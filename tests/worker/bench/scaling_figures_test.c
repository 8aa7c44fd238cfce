/* Speed-up, efficiency and the causes of lost time, for worlds whose figures are known. */
#include "worker/bench/scaling_figures.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

static const struct scaling_point one = {.ranks = 1, .step_ms = 100, .busiest = 1};

static void assert_near(double value, double expected)
{
    if (fabs(value - expected) > 1e-9 * fabs(expected) + 1e-12)
        fail_msg("%.12g instead of %.12g", value, expected);
}

static void strong_and_weak_speed_up(void **state)
{
    (void)state;
    const struct scaling_point two = {.ranks = 2, .step_ms = 60, .busiest = 1},
                               four = {.ranks = 4, .step_ms = 125, .busiest = 1};
    assert_near(scaling_speed_up(false, &one, &two), 100.0 / 60);
    assert_near(scaling_efficiency(false, &one, &two), 100.0 / 120);
    assert_near(scaling_speed_up(true, &one, &four), 3.2);
    assert_near(scaling_efficiency(true, &one, &four), 0.8);
    /* Beside a base of two ranks. */
    assert_near(scaling_speed_up(false, &two, &four), 60.0 / 125);
    assert_near(scaling_efficiency(false, &two, &four), 30.0 / 125);
    assert_near(scaling_efficiency(true, &two, &four), 60.0 / 125);
}

static void bound_by_processors(void **state)
{
    (void)state;
    const struct scaling_point two = {.ranks = 2}, eight = {.ranks = 8};
    assert_near(scaling_bound(2, &one, &eight), 0.25);
    assert_near(scaling_bound(8, &one, &eight), 1);
    assert_near(scaling_bound(64, &one, &eight), 1);
    assert_near(scaling_bound(1.5, &one, &two), 0.75); /* three cores, two threads a rank */
    assert_near(scaling_bound(2, &two, &eight), 0.25);
    assert_near(scaling_bound(1, &two, &eight), 0.25); /* the base shares its processor, too */
}

/* The cause that must be named, and its time. */
static const struct {
    struct scaling_point point;
    struct scaling_terms terms;
    enum scaling_cause cause;
    double ms;
} cases[] = {
    {{2, 60, 8, 1, 1}, {false, 2}, SCALING_COMMUNICATION, 8},
    {{2, 60, 1, 8, 1}, {false, 2}, SCALING_STRAGGLER, 8},
    /* 4 slots on 3 ranks: the one with two has 1.5 times the mean. */
    {{3, 55, 1, 16, 1.5}, {false, 4}, SCALING_IMBALANCE, 16},
    {{2, 70, 2, 3, 1}, {false, 2}, SCALING_COMPUTATION, 15},
    /* While 8 ranks share 2 cores, they wait because others have their turn. */
    {{8, 60, 5, 20, 1}, {false, 2}, SCALING_PROCESSORS, 37.5},
    {{4, 130, 20, 4, 1}, {true, 4}, SCALING_COMMUNICATION, 20},
    {{4, 420, 40, 20, 1}, {true, 1}, SCALING_PROCESSORS, 300},
};

static void causes_of_lost_time(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct scaling_point *p = &cases[i].point;
        const struct scaling_loss loss = scaling_loss_of(&cases[i].terms, &one, p);
        double sum = loss.ideal_ms;
        for (int c = 0; c < SCALING_CAUSES; c++)
            sum += loss.ms[c];
        assert_near(sum, p->step_ms);
        if (scaling_bottleneck(p, &loss) != cases[i].cause)
            fail_msg("case %d: cause %d", (int)i, (int)scaling_bottleneck(p, &loss));
        assert_near(loss.ms[cases[i].cause], cases[i].ms);
    }
}

static void no_bottleneck_near_the_ideal(void **state)
{
    (void)state;
    const struct scaling_terms weak = {true, 4}, strong = {false, 4};
    const struct scaling_point near = {4, 104, 3, 0, 1}, far = {4, 106, 5, 0, 1},
                               faster = {4, 24, 0, 0, 1};
    struct scaling_loss loss = scaling_loss_of(&weak, &one, &near);
    assert_int_equal(scaling_bottleneck(&near, &loss), SCALING_CAUSES);
    loss = scaling_loss_of(&weak, &one, &far);
    assert_int_equal(scaling_bottleneck(&far, &loss), SCALING_COMMUNICATION);
    loss = scaling_loss_of(&strong, &one, &faster);
    assert_int_equal(scaling_bottleneck(&faster, &loss), SCALING_CAUSES);
    loss = scaling_loss_of(&strong, &one, &one);
    assert_int_equal(scaling_bottleneck(&one, &loss), SCALING_CAUSES);
}

/* A base of several ranks communicates. Only what the larger world has beyond it is a loss. */
static void waits_of_the_base(void **state)
{
    (void)state;
    const struct scaling_terms terms = {false, 8};
    const struct scaling_point base = {2, 60, 10, 0, 1}, four = {4, 40, 12, 0, 1};
    const struct scaling_loss loss = scaling_loss_of(&terms, &base, &four);
    assert_near(loss.ideal_ms, 30);
    assert_near(loss.ms[SCALING_COMMUNICATION], 7);
    assert_near(loss.ms[SCALING_COMPUTATION], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strong_and_weak_speed_up), cmocka_unit_test(bound_by_processors),
        cmocka_unit_test(causes_of_lost_time),      cmocka_unit_test(no_bottleneck_near_the_ideal),
        cmocka_unit_test(waits_of_the_base),
    };
    return cmocka_run_group_tests_name("scaling_figures", tests, NULL, NULL);
}
