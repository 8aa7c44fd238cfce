/* When a rank takes part in a checkpoint that an operator wants. */
#include "worker/train/save/save.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The linker sends the calls of save_schedule.c here (--wrap), by this name.
   NOLINTBEGIN(bugprone-reserved-identifier) */
int64_t __wrap_dpt_link_save_from(const struct dpt_link *link);
static int64_t wanted_from;
int64_t __wrap_dpt_link_save_from(const struct dpt_link *link)
{
    (void)link;
    return wanted_from;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static struct dpt_config config = {.checkpoint.dir = "/checkpoints"};
static struct rank_save save;
static struct dpt_rank rank = {.config = &config, .save = &save};

static bool is_wanted(uint64_t generation, int64_t completed_steps)
{
    rank.gen.number = generation;
    rank.state.step = completed_steps;
    return rank_save_is_wanted(&rank);
}

static void a_request_counts_from_its_step(void **state)
{
    (void)state;
    wanted_from = 0;
    assert_false(is_wanted(1, 500));
    wanted_from = 501;
    assert_false(is_wanted(1, 499));
    assert_true(is_wanted(1, 500));
    save.begun_generation = 1;
    save.begun_step = 501;
    assert_false(is_wanted(1, 501));
}

/* The ranks went back from step 501. They do not save at each step until they are there again. */
static void a_request_is_for_no_earlier_step_of_a_later_generation(void **state)
{
    (void)state;
    wanted_from = 501;
    save.begun_generation = 1;
    save.begun_step = 501;
    for (int64_t step = 400; step < 500; step++)
        assert_false(is_wanted(2, step));
    assert_true(is_wanted(2, 500));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_counts_from_its_step),
        cmocka_unit_test(a_request_is_for_no_earlier_step_of_a_later_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
