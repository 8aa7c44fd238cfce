/* Which rank is granted the commit of a checkpoint: members of the generation in force only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

/* Rank 0 of `fake` asks to commit the checkpoint of `step`; returns the grant that it receives. */
static int64_t ask_for_grant(struct fake *fake, int64_t step)
{
    fake->ranks[0].grant_step = step;
    fake_say(fake, &stage);
    return fake->grant_step;
}

static void grant_until_the_generation_ends(void **state)
{
    (void)state;
    trio_start();
    assert_int_equal(ask_for_grant(&a, 10), 10);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 1);
    /* While a soft PREPARE waits for the boundary, the generation is still in force. */
    fake_say(&c, &stage);
    assert_true(a.soft);
    assert_int_equal(ask_for_grant(&a, 20), 20);
    /* A hard one ends it. */
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    assert_int_equal(ask_for_grant(&a, 30), -1);
    /* Node c has no place. */
    assert_int_equal(ask_for_grant(&c, 30), -1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 2);
}

/* A rank without a place is granted nothing, and no other rank is granted its step. */
static void no_grant_for_a_spare(void **state)
{
    (void)state;
    a.spec.max_world = b.spec.max_world = c.spec.max_world = 2;
    trio_start();
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_SPARE);
    assert_int_equal(ask_for_grant(&c, 40), -1);
    fake_say(&a, &stage);
    assert_int_equal(a.grant_step, -1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 0);
}

/* A request belongs to the generation in which the rank asked: after the next one runs it is
 * dropped, granted or not, and the member must ask again. */
static void no_grant_for_a_request_of_an_earlier_generation(void **state)
{
    (void)state;
    trio_start();
    const uint64_t first = a.generation;
    assert_int_equal(ask_for_grant(&a, 10), 10);
    a.ranks[0].grant_step = -1;
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    fake_say(&b, &stage);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    const uint64_t second = a.generation;
    assert_true(second > first);
    assert_int_equal(a.grant_step, -1); /* the first generation's */
    a.ranks[0].generation = first;
    assert_int_equal(ask_for_grant(&a, 10), -1);
    assert_int_equal(ask_for_grant(&a, 20), -1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 1);
    a.ranks[0].generation = second;
    assert_int_equal(ask_for_grant(&a, 20), 20);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 2);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, trio_setup, trio_teardown)
    const struct CMUnitTest tests[] = {
        T(grant_until_the_generation_ends),
        T(no_grant_for_a_spare),
        T(no_grant_for_a_request_of_an_earlier_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
