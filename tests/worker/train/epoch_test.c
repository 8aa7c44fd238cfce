/* The account of an epoch: sums in order, restarted with each epoch, and correct after a gap. */
#include "worker/train/state/epoch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

enum { EPOCH_STEPS = 4 };

static void add_steps(struct dpt_epoch *epoch, int64_t first, int64_t end, double loss)
{
    for (int64_t step = first; step < end; step++) {
        dpt_epoch_add_step(epoch, EPOCH_STEPS, step, loss + (double)step);
        dpt_epoch_add_time(epoch, 0.5);
    }
}

static void epochs_begin_anew(void **state)
{
    (void)state;
    struct dpt_epoch epoch = {0};
    assert_true(isnan(dpt_epoch_loss(&epoch)) && dpt_epoch_samples_per_s(&epoch, 8) == 0);
    add_steps(&epoch, 0, 4, 1);
    assert_true(epoch.from == 0 && epoch.to == 4 && epoch.finite == 4 && epoch.timed == 4);
    assert_true(dpt_epoch_loss(&epoch) == 2.5);
    assert_true(epoch.seconds == 2 && dpt_epoch_samples_per_s(&epoch, 8) == 16);
    add_steps(&epoch, 4, 6, 1);
    assert_true(epoch.from == 4 && epoch.to == 6 && dpt_epoch_loss(&epoch) == 5.5);
    add_steps(&epoch, 6, 8, 1);
    assert_true(epoch.from == 4 && epoch.to == 8 && epoch.seconds == 2);
}

/* A step that was skipped, or that went on though it diverged. */
static void loss_that_is_not_finite_does_not_count(void **state)
{
    (void)state;
    struct dpt_epoch epoch = {0};
    add_steps(&epoch, 0, 2, 3);
    dpt_epoch_add_step(&epoch, EPOCH_STEPS, 2, (double)NAN);
    dpt_epoch_add_step(&epoch, EPOCH_STEPS, 3, (double)INFINITY);
    assert_true(epoch.to == 4 && epoch.finite == 2 && dpt_epoch_loss(&epoch) == 3.5);
    assert_true(epoch.timed == 2 && dpt_epoch_samples_per_s(&epoch, 8) == 16);
    dpt_epoch_add_step(&epoch, EPOCH_STEPS, 4, (double)NAN);
    assert_true(isnan(dpt_epoch_loss(&epoch)));
}

/* A state that came without its account, or that is an earlier one. */
static void a_gap_is_told(void **state)
{
    (void)state;
    struct dpt_epoch epoch = {0};
    add_steps(&epoch, 6, 8, 0);
    assert_true(epoch.from == 6 && epoch.to == 8 && dpt_epoch_loss(&epoch) == 6.5);
    add_steps(&epoch, 9, 11, 0);
    assert_true(epoch.from == 9 && epoch.to == 11 && epoch.finite == 2);
    add_steps(&epoch, 10, 12, 0);
    assert_true(epoch.from == 10 && epoch.to == 12 && epoch.timed == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(epochs_begin_anew),
                                       cmocka_unit_test(loss_that_is_not_finite_does_not_count),
                                       cmocka_unit_test(a_gap_is_told)};
    return cmocka_run_group_tests_name("epoch", tests, NULL, NULL);
}
