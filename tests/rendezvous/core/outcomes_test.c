/* Outcomes of steps: each is kept once, and only so many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/run_state.h"
#include "tests/rendezvous/core/trio.h"

#include <string.h>

static struct outcome *keep(struct outcomes *outcomes, uint8_t byte)
{
    bool no_memory = false;
    const uint8_t bytes[2] = {byte, 1};
    struct outcome *ret = dpt_outcomes_keep(outcomes, bytes, sizeof bytes, &no_memory);
    assert_false(no_memory);
    return ret;
}

static void one_outcome_is_kept_once(void **state)
{
    (void)state;
    struct outcomes outcomes = {0};
    struct outcome *first = keep(&outcomes, 7), *second = keep(&outcomes, 7);
    assert_non_null(first);
    assert_ptr_equal(first, second);
    dpt_outcomes_drop(&first);
    assert_null(first);
    assert_int_equal(second->bytes[0], 7);
    struct outcome *other = keep(&outcomes, 8);
    assert_ptr_not_equal(other, second);
    dpt_outcomes_drop(&second);
    dpt_outcomes_drop(&second); /* none: nothing happens */
    dpt_outcomes_drop(&other);
}

static void so_many_are_kept(void **state)
{
    (void)state;
    struct outcomes outcomes = {0};
    struct outcome *kept[OUTCOMES_MAX];
    for (uint8_t i = 0; i < OUTCOMES_MAX; i++)
        assert_non_null(kept[i] = keep(&outcomes, i));
    assert_null(keep(&outcomes, 99));
    struct outcome *again = keep(&outcomes, 3);
    assert_ptr_equal(again, kept[3]);
    dpt_outcomes_drop(&again);
    dpt_outcomes_drop(&kept[5]);
    assert_non_null(kept[5] = keep(&outcomes, 99));
    for (size_t i = 0; i < OUTCOMES_MAX; i++)
        dpt_outcomes_drop(&kept[i]);
}

/* a has quiesced with the outcome of step 8. */
static void report_outcome(void)
{
    static uint8_t bytes[] = "outcome";
    fake_phase(&a, DPT__RANK_PHASE__RANK_QUIESCED, a.generation);
    a.ranks[0].step_applied = 7;
    a.ranks[0].gradient = true;
    a.ranks[0].outcome_step = 8;
    a.ranks[0].outcome = (ProtobufCBinaryData){sizeof bytes, bytes};
    fake_say(&a, &stage);
}

/* Other outcomes fill the run's list: the log tells once that another one is not kept. */
static void outcome_beyond_them_is_told(void **state)
{
    (void)state;
    struct outcome *kept[OUTCOMES_MAX];
    trio_start();
    struct run *run = dpt_rdzv_find_run(stage.core, a.stamp.run);
    fake_breaks_off(&a, &stage);
    for (uint8_t i = 0; i < OUTCOMES_MAX; i++)
        assert_non_null(kept[i] = keep(&run->outcomes, i));
    const size_t before = stage.n_logs;
    report_outcome();
    assert_null(run->nodes[0]->ranks[0].outcome);
    fake_say(&a, &stage);
    assert_int_equal(stage.n_logs, before + 1);
    for (size_t i = 0; i < OUTCOMES_MAX; i++)
        dpt_outcomes_drop(&kept[i]);
    fake_say(&a, &stage);
    assert_int_equal(run->nodes[0]->ranks[0].outcome->n_bytes, sizeof "outcome");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_outcome_is_kept_once),
        cmocka_unit_test(so_many_are_kept),
        cmocka_unit_test_setup_teardown(outcome_beyond_them_is_told, trio_setup, trio_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
