/* The notes of a rank's threads about their present work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "worker/trace/present_work.h"

#include <pthread.h>

static void note_keeps_unit_slot_and_time(void **state)
{
    (void)state;
    struct dpt_present_work activity = {0};
    const int64_t before_ns = dpt_now_ns();
    dpt_present_work_attach(&activity, DPT_PRESENT_WORK_MAIN);
    assert_ptr_equal(dpt_present_work_here(), &activity);
    dpt_present_work_note(DPT_WORK_BACKWARD, 5, 1000000);
    struct dpt_present_work_view view = dpt_present_work_read(&activity, DPT_PRESENT_WORK_MAIN);
    assert_int_equal(view.work, DPT_WORK_BACKWARD);
    assert_int_equal(view.unit, 5);
    assert_int_equal(view.slot, 1000000);
    assert_true(view.since_ns >= before_ns && view.since_ns <= dpt_now_ns());
    /* The largest values, and none. */
    dpt_present_work_note(DPT_WORK_AWAIT_OWN, (1 << 23) - 1, INT32_MAX);
    view = dpt_present_work_read(&activity, DPT_PRESENT_WORK_MAIN);
    assert_int_equal(view.work, DPT_WORK_AWAIT_OWN);
    assert_int_equal(view.unit, (1 << 23) - 1);
    assert_int_equal(view.slot, INT32_MAX);
    dpt_present_work_note(DPT_WORK_COMMIT, -1, -1);
    view = dpt_present_work_read(&activity, DPT_PRESENT_WORK_MAIN);
    assert_int_equal(view.work, DPT_WORK_COMMIT);
    assert_int_equal(view.unit, -1);
    assert_int_equal(view.slot, -1);
    dpt_present_work_attach(NULL, DPT_PRESENT_WORK_MAIN);
}

/* A wait is noted in each turn of its loop; it began with the first note. */
static void same_work_keeps_its_beginning(void **state)
{
    (void)state;
    struct dpt_present_work activity = {0};
    dpt_present_work_attach(&activity, DPT_PRESENT_WORK_COMM);
    dpt_present_work_note(DPT_WORK_GATHER, 3, -1);
    const int64_t since_ns = dpt_present_work_read(&activity, DPT_PRESENT_WORK_COMM).since_ns;
    while (dpt_now_ns() == since_ns)
        continue;
    dpt_present_work_note(DPT_WORK_GATHER, 3, -1);
    assert_int_equal(dpt_present_work_read(&activity, DPT_PRESENT_WORK_COMM).since_ns, since_ns);
    dpt_present_work_note(DPT_WORK_GATHER, 4, -1);
    assert_true(dpt_present_work_read(&activity, DPT_PRESENT_WORK_COMM).since_ns > since_ns);
    dpt_present_work_attach(NULL, DPT_PRESENT_WORK_COMM);
}

static void *note_as_communication_thread(void *arg)
{
    dpt_present_work_attach(arg, DPT_PRESENT_WORK_COMM);
    for (int i = 0; i < 100000; i++)
        dpt_present_work_note(DPT_WORK_SCATTER, i % 7, -1);
    return NULL;
}

/* Another thread reads at any time, and sees a whole note. */
static void notes_are_read_by_another_thread(void **state)
{
    (void)state;
    struct dpt_present_work activity = {0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, note_as_communication_thread, &activity), 0);
    for (int i = 0; i < 100000; i++) {
        const struct dpt_present_work_view view =
            dpt_present_work_read(&activity, DPT_PRESENT_WORK_COMM);
        assert_true(
            view.work == DPT_WORK_NONE ||
            (view.work == DPT_WORK_SCATTER && view.unit >= 0 && view.unit < 7 && view.slot == -1));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(dpt_present_work_read(&activity, DPT_PRESENT_WORK_MAIN).work, DPT_WORK_NONE);
}

static void thread_that_is_not_attached_notes_nothing(void **state)
{
    (void)state;
    struct dpt_present_work activity = {0};
    dpt_present_work_note(DPT_WORK_APPLY, -1, -1);
    assert_null(dpt_present_work_here());
    const struct dpt_present_work_view view =
        dpt_present_work_read(&activity, DPT_PRESENT_WORK_MAIN);
    assert_int_equal(view.work, DPT_WORK_NONE);
    assert_int_equal(view.unit, -1);
    assert_int_equal(view.slot, -1);
    assert_int_equal(view.since_ns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(note_keeps_unit_slot_and_time),
        cmocka_unit_test(same_work_keeps_its_beginning),
        cmocka_unit_test(notes_are_read_by_another_thread),
        cmocka_unit_test(thread_that_is_not_attached_notes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
