/* The checkpoint writer under a simulated agent: granted, refused, cancelled at each stage,
 * fenced. */
#include "tests/worker/train/saver_stage.h"

#include "base/clock.h"
#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>

static void a_granted_checkpoint_is_complete(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    const char *dir = in_root("granted");
    assert_int_equal(dpt_saver_wait(s.saver, &err), DPT_OK); /* there was none yet */
    dpt_saver_wait_written(s.saver);
    assert_false(has_saved(s.saver));
    saver_stage_save_part(&s, dir, 0, 1);
    dpt_saver_wait_written(s.saver);
    for (int i = 0; i < s.model.tensors[0].dim[0]; i++)
        s.model.tensors[0].param[i] = -1; /* the weights are free again */
    saver_stage_await_question(&s);
    assert_int_equal(atomic_load(&s.wanted), STEP);
    assert_true(dpt_saver_busy(s.saver));
    assert_int_equal(newest_checkpoint(dir), -1);
    atomic_store(&s.agent.grant, STEP);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_true(has_saved(s.saver));
    assert_int_equal(atomic_load(&s.withdrawn), 1);
    if (model_check(dir, STEP, 1, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(entries_in(dir), 1);
    saver_stage_end(&s);
}

/* What ends an attempt that waits for its grant; each must leave nothing behind. */
enum stop { BY_CANCEL, BY_PREPARE, BY_DESTROY, BY_AGENT, BY_SILENT_AGENT, STOP_COUNT };

static void a_grant_that_does_not_come(void **state)
{
    (void)state;
    for (enum stop how = 0; how < STOP_COUNT; how++) {
        struct saver_stage s;
        struct dpt_err err;
        saver_stage_begin(&s, COLLECT_MS);
        char name[32];
        (void)snprintf(name, sizeof name, "withheld-%d", (int)how);
        const char *dir = in_root(name);
        atomic_store(&s.agent.grant, STEP - 1); /* another's */
        saver_stage_save_part(&s, dir, 0, 1);
        saver_stage_await_question(&s);
        if (how == BY_PREPARE)
            saver_stage_give_up_generation(&s);
        if (how == BY_SILENT_AGENT)
            atomic_store(&s.agent.silent, true);
        if (how == BY_CANCEL || how == BY_SILENT_AGENT)
            dpt_saver_cancel(s.saver);
        if (how == BY_AGENT)
            saver_stage_end_agent(&s);
        if (how == BY_DESTROY) {
            dpt_saver_destroy(&s.saver);
        } else {
            assert_int_equal(saver_stage_wait(&s, &err), DPT_EABORTED);
            assert_int_equal(dpt_saver_wait(s.saver, &err), DPT_OK); /* reported once */
            assert_false(has_saved(s.saver));
        }
        assert_int_equal(atomic_load(&s.withdrawn), 1);
        assert_int_equal(entries_in(dir), 0);
        saver_stage_end(&s);
    }
}

static void a_part_that_does_not_come(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    const char *dir = in_root("cancelled-collect");
    saver_stage_save_part(&s, dir, 0, 2);
    dpt_saver_wait_written(s.saver);
    dpt_saver_cancel(s.saver);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_EABORTED);
    assert_int_equal(atomic_load(&s.asked), 0);
    assert_int_equal(entries_in(dir), 0);
    saver_stage_end(&s);
    saver_stage_begin(&s, 100);
    dir = in_root("late-collect");
    saver_stage_save_part(&s, dir, 0, 2);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_ETIMEOUT);
    assert_int_equal(entries_in(dir), 0);
    /* The next attempt is not marked by the last one. */
    atomic_store(&s.agent.grant, STEP);
    saver_stage_save_part(&s, dir, 0, 1);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_OK);
    assert_int_equal(newest_checkpoint(dir), STEP);
    saver_stage_end(&s);
}

static void two_writers(void **state)
{
    (void)state;
    struct saver_stage first, second;
    struct dpt_err err;
    saver_stage_begin(&first, COLLECT_MS);
    saver_stage_begin(&second, COLLECT_MS);
    const char *dir = in_root("two");
    atomic_store(&first.agent.grant, STEP);
    saver_stage_save_part(&first, dir, 0, 2);
    saver_stage_save_part(&second, dir, 1, 2);
    assert_int_equal(saver_stage_wait(&second, &err), DPT_OK);
    assert_true(has_saved(second.saver));
    assert_int_equal(atomic_load(&second.asked), 0);
    assert_int_equal(saver_stage_wait(&first, &err), DPT_OK);
    if (model_check(dir, STEP, 1, &err) != DPT_OK)
        fail_msg("%s", err.text);
    saver_stage_end(&first);
    saver_stage_end(&second);
}

/* A rank without a lease writes nothing, neither at the beginning nor, granted or not, at the end.
 */
static void nothing_is_written_without_lease(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    const char *dir = in_root("fenced");
    atomic_store(&s.agent.lease_ms, -1);
    int64_t deadline = dpt_now_ms() + SOON_MS;
    while (dpt_link_may_write(s.link))
        assert_true(dpt_now_ms() < deadline);
    atomic_store(&s.agent.grant, STEP);
    saver_stage_save_part(&s, dir, 0, 1);
    saver_stage_give_up_generation(&s);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_EABORTED);
    assert_int_equal(entries_in(dir), 0);
    saver_stage_end(&s);
    saver_stage_begin(&s, COLLECT_MS);
    saver_stage_save_part(&s, dir, 0, 1);
    saver_stage_await_question(&s);
    atomic_store(&s.agent.lease_ms, -1);
    deadline = dpt_now_ms() + SOON_MS;
    while (dpt_link_may_write(s.link))
        assert_true(dpt_now_ms() < deadline);
    atomic_store(&s.agent.grant, STEP);
    while (!dpt_link_granted(s.link, GENERATION, STEP))
        assert_true(dpt_now_ms() < deadline);
    saver_stage_give_up_generation(&s);
    assert_int_equal(saver_stage_wait(&s, &err), DPT_EABORTED);
    assert_int_equal(entries_in(dir), 0);
    saver_stage_end(&s);
}

/* Cancelled at any moment: the checkpoint is complete, or absent with nothing left. */
static void cancelled_at_any_moment(void **state)
{
    (void)state;
    struct saver_stage s;
    struct dpt_err err;
    saver_stage_begin(&s, COLLECT_MS);
    atomic_store(&s.agent.grant, STEP);
    for (int round = 0; round < 40; round++) {
        char name[32];
        (void)snprintf(name, sizeof name, "moment-%d", round);
        const char *dir = in_root(name);
        saver_stage_save_part(&s, dir, 0, 1);
        for (int spin = 0; spin < round * 2000; spin++)
            (void)dpt_saver_busy(s.saver);
        dpt_saver_cancel(s.saver);
        enum dpt_status status = saver_stage_wait(&s, &err);
        assert_true(status == DPT_OK || status == DPT_EABORTED);
        assert_int_equal(newest_checkpoint(dir), status == DPT_OK ? STEP : -1);
        assert_int_equal(entries_in(dir), status == DPT_OK ? 1 : 0);
    }
    saver_stage_end(&s);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_granted_checkpoint_is_complete),
        cmocka_unit_test(a_grant_that_does_not_come),
        cmocka_unit_test(a_part_that_does_not_come),
        cmocka_unit_test(two_writers),
        cmocka_unit_test(nothing_is_written_without_lease),
        cmocka_unit_test(cancelled_at_any_moment),
    };
    return cmocka_run_group_tests_name("saver", tests, make_fast_root, remove_root);
}
