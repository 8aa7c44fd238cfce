/* A server that hears nobody: cut off, or starved of the processor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

static void break_all(void)
{
    for (int i = 0; i < 2; i++)
        stage_step(&stage,
                   (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = two[i]->conn});
}

/* Nobody is heard at all: it is the server that is cut off, or starved, and when all are back
 * nobody was lost. */
static void test_deaf_server(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    stage_pass(&stage, 2000);
    break_all();
    stage_pass(&stage, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 2);
    a.conn = 3000;
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 1, 200); /* b has its grace from now on */
    assert_int_equal(stage.view.nodes, 2);
    b.conn = 3001;
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    stage_pass_speaking(&stage, two, 1, 4600); /* and leases are as ever */
    assert_int_equal(stage.view.nodes, 1);
}

/* What had been sent before the connections broke may be read after that, and be followed by the
 * word that they broke. */
static void test_last_words_of_broken_connections(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    break_all();
    for (int i = 0; i < 3; i++) {
        stage_pass(&stage, 1);
        fake_say(&a, &stage);
        stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = a.conn});
        stage_pass(&stage, 1);
        fake_say(&b, &stage);
        stage_step(&stage, (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
    }
    stage_pass(&stage, 3000);
    assert_int_equal(stage.view.nodes, 2);
    a.conn = 3000;
    b.conn = 3001;
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* However long it takes, nobody is lost: who should go on without them? */
static void test_deaf_for_long(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    break_all();
    stage_pass(&stage, 60000);
    assert_int_equal(stage.view.nodes, 2);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two + 1, 1, 200);
    fake_say(&a, &stage);
    stage_pass_speaking(&stage, two, 2, 5000);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* All are gone in earnest: that is found when somebody comes. */
static void test_deaf_for_good(void **state)
{
    (void)state;
    struct fake *const comes[1] = {&c};
    trio_start();
    break_all();
    stage_pass(&stage, 20000);
    assert_int_equal(stage.view.nodes, 2);
    stage_pass_speaking(&stage, comes, 1, 600);
    assert_int_equal(stage.view.nodes, 1);
}

/* One is dead and the other is always late: the dead one is not forgiven for ever. */
static void test_deaf_now_and_then(void **state)
{
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        if (broken) {
            stage_close(&stage);
            assert_int_equal(trio_setup(NULL), 0);
        }
        trio_start();
        if (broken)
            stage_step(&stage,
                       (struct dpt_rdzv_event){.kind = DPT_RDZV_EVENT_BROKEN, .conn = b.conn});
        int64_t start_ms = stage.now_ms;
        while (stage.view.nodes == 2 && stage.now_ms - start_ms < 30000) {
            stage_pass(&stage, 600);
            fake_say(&a, &stage);
        }
        assert_int_equal(stage.view.nodes, 1);
        assert_in_range(stage.now_ms - start_ms, 0, 2 * 4500 + 1200);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_deaf_server, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_last_words_of_broken_connections, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(test_deaf_for_long, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_deaf_for_good, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(test_deaf_now_and_then, trio_setup, trio_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
