/* The steps that a rank reports over its link: once, in order, without waiting for a full list. */
#include "tests/worker/train/link_pair.h"

#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void tell_passing(struct link_pair *p, int64_t step, double loss, bool passes)
{
    Dpt__StepRecord record = DPT__STEP_RECORD__INIT;
    record.step = step;
    record.loss = loss;
    record.world_size = 2;
    dpt_link_tell_step(p->link, &record, passes);
}

/* Tells a step, of which the loss is a mark. */
static void tell(struct link_pair *p, int64_t step, double loss)
{
    tell_passing(p, step, loss, false);
}

/* Takes messages until a step reported with `loss` has come; returns the number of steps. */
static int hear_until(struct link_pair *p, double loss, int64_t ret_steps[DPT_PROTO_STEPS_MAX])
{
    int n = 0;
    for (bool found = false; !found;) {
        Dpt__RankToAgent *said = link_pair_hear(p);
        for (size_t i = 0; i < said->n_steps; i++) {
            assert_true(n < DPT_PROTO_STEPS_MAX);
            ret_steps[n++] = said->steps[i]->step;
            found = found || said->steps[i]->loss == loss;
        }
        dpt_message_free_rank_to_agent(&said);
    }
    return n;
}

/* Steps wait for a heartbeat, come once and in order; those made again take the place of lost ones.
 */
static void steps_are_told_once(void **state)
{
    (void)state;
    struct link_pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    link_pair_begin(&p, HEARTBEAT_MS);
    for (int64_t step = 1; step <= 5; step++)
        tell(&p, step, (double)step);
    assert_int_equal(hear_until(&p, 5, steps), 5);
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(steps[i], i + 1);
    tell(&p, 6, 6);
    assert_int_equal(hear_until(&p, 6, steps), 1);
    link_pair_end(&p);
}

/* Steps that have no line make room for a newer one; the others come all the same. */
static void steps_that_pass_are_told_at_most_once(void **state)
{
    (void)state;
    struct link_pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    link_pair_begin(&p, NEVER_MS);
    link_pair_hear_step(&p, -1); /* the first word, which might have had steps */
    for (int64_t step = 1; step <= 1000; step++)
        tell_passing(&p, step, (double)step, step % 400 != 0);
    link_pair_publish(&p);
    assert_int_equal(hear_until(&p, 1000, steps), 3);
    assert_int_equal(steps[0], 400);
    assert_int_equal(steps[1], 800);
    assert_int_equal(steps[2], 1000);
    tell_passing(&p, 800, 1800, true); /* the world has gone back */
    link_pair_publish(&p);
    assert_int_equal(hear_until(&p, 1800, steps), 1);
    assert_int_equal(steps[0], 800);
    link_pair_end(&p);
}

/* Without a heartbeat, a quarter of the limit is sent at once; of too many the oldest are dropped.
 */
static void many_steps_do_not_wait(void **state)
{
    (void)state;
    struct link_pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    link_pair_begin(&p, NEVER_MS);
    link_pair_hear_step(&p, -1); /* the first word, which might have had some of them */
    for (int64_t step = 1; step <= DPT_PROTO_STEPS_MAX / 4; step++)
        tell(&p, step, (double)step);
    assert_int_equal(hear_until(&p, DPT_PROTO_STEPS_MAX / 4, steps), DPT_PROTO_STEPS_MAX / 4);
    tell(&p, 70, 70);
    tell(&p, 71, 71);
    tell(&p, 69, 1069); /* 69 to 71 were lost with the world */
    link_pair_publish(&p);
    assert_int_equal(hear_until(&p, 1069, steps), 1);
    assert_int_equal(steps[0], 69);
    link_pair_end(&p);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_told_once),
        cmocka_unit_test(steps_that_pass_are_told_at_most_once),
        cmocka_unit_test(many_steps_do_not_wait),
    };
    return cmocka_run_group_tests_name("link steps", tests, NULL, NULL);
}
