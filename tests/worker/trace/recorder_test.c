/* Rings of events: windows, overflow, and threads that record while a window is read. */
#include "worker/trace/recorder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { ROOM = 16 };

static struct dpt_trace_recorder *recorder;

static int setup(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_trace_recorder_create(ROOM, &recorder, &err) == DPT_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    dpt_trace_attach(NULL, DPT_TRACE_MAIN);
    dpt_trace_recorder_destroy(&recorder);
    return 0;
}

static void add_event(int64_t number)
{
    dpt_trace_end(dpt_trace_begin(),
                  &(struct dpt_trace_span){.name = "work", .key = {"number"}, .value = {number}});
}

static struct dpt_trace_events read_track(enum dpt_trace_track track)
{
    struct dpt_trace_events events;
    dpt_trace_recorder_read(recorder, track, &events);
    return events;
}

static void test_thread_without_recorder_records_nothing(void **state)
{
    (void)state;
    assert_null(dpt_trace_recorder_here());
    dpt_trace_recorder_begin(recorder);
    assert_int_equal(dpt_trace_begin(), 0);
    add_event(1);
    dpt_trace_recorder_end(recorder);
    assert_int_equal(read_track(DPT_TRACE_MAIN).n, 0);
    assert_int_equal(read_track(DPT_TRACE_MAIN).thread, 0);
}

static void test_only_windows_are_recorded(void **state)
{
    (void)state;
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    assert_ptr_equal(dpt_trace_recorder_here(), recorder);
    add_event(1);
    dpt_trace_recorder_begin(recorder);
    add_event(2);
    add_event(3);
    const int64_t open = dpt_trace_begin();
    dpt_trace_recorder_end(recorder);
    dpt_trace_end_named(open, "ends after the window");
    const struct dpt_trace_events events = read_track(DPT_TRACE_MAIN);
    assert_int_equal(events.n, 2);
    assert_int_equal(events.dropped, 0);
    assert_true(events.thread > 0);
    assert_string_equal(events.event[0].span.name, "work");
    assert_int_equal(events.event[0].span.value[0], 2);
    assert_int_equal(events.event[1].span.value[0], 3);
    assert_true(events.event[0].begin_ns <= events.event[0].end_ns);
    assert_true(events.event[0].end_ns <= events.event[1].begin_ns);
}

static void test_next_window_is_empty(void **state)
{
    (void)state;
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_trace_recorder_begin(recorder);
    for (int i = 0; i < ROOM + 1; i++)
        add_event(i);
    dpt_trace_recorder_end(recorder);
    dpt_trace_recorder_begin(recorder);
    dpt_trace_recorder_end(recorder);
    assert_int_equal(read_track(DPT_TRACE_MAIN).n, 0);
    assert_int_equal(read_track(DPT_TRACE_MAIN).dropped, 0);
    dpt_trace_recorder_begin(recorder);
    add_event(7);
    dpt_trace_recorder_end(recorder);
    assert_int_equal(read_track(DPT_TRACE_MAIN).n, 1);
    assert_int_equal(read_track(DPT_TRACE_MAIN).dropped, 0);
}

static void test_full_ring_counts_dropped_events(void **state)
{
    (void)state;
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_trace_recorder_begin(recorder);
    for (int i = 0; i < ROOM + 5; i++)
        add_event(i);
    dpt_trace_recorder_end(recorder);
    const struct dpt_trace_events events = read_track(DPT_TRACE_MAIN);
    assert_int_equal(events.n, ROOM);
    assert_int_equal(events.dropped, 5);
    assert_int_equal(events.event[ROOM - 1].span.value[0], ROOM - 1); /* the first ones are kept */
}

/* Steps have a room of their own: a ring that is full keeps them. */
static void test_full_ring_keeps_steps(void **state)
{
    (void)state;
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_trace_recorder_begin(recorder);
    for (int i = 0; i < ROOM; i++)
        add_event(i);
    for (int i = 0; i < DPT_TRACE_STEPS_MAX + 2; i++) {
        dpt_trace_end(dpt_trace_begin(),
                      &(struct dpt_trace_span){.kind = DPT_TRACE_STEP, .value = {i}});
        add_event(i);
    }
    dpt_trace_recorder_end(recorder);
    const struct dpt_trace_events events = read_track(DPT_TRACE_MAIN);
    assert_int_equal(events.n, ROOM + DPT_TRACE_STEPS_MAX);
    assert_int_equal(events.dropped, DPT_TRACE_STEPS_MAX + 2 + 2);
    for (int i = 0; i < DPT_TRACE_STEPS_MAX; i++)
        assert_int_equal(events.event[ROOM + i].span.value[0], i);
}

/* More steps than their room take the room of other events. */
static void test_many_steps_fit(void **state)
{
    (void)state;
    dpt_trace_attach(recorder, DPT_TRACE_MAIN);
    dpt_trace_recorder_begin(recorder);
    for (int i = 0; i < DPT_TRACE_STEPS_MAX + ROOM; i++)
        dpt_trace_end(dpt_trace_begin(),
                      &(struct dpt_trace_span){.kind = DPT_TRACE_STEP, .value = {i}});
    add_event(1);
    dpt_trace_recorder_end(recorder);
    assert_int_equal(read_track(DPT_TRACE_MAIN).n, DPT_TRACE_STEPS_MAX + ROOM);
    assert_int_equal(read_track(DPT_TRACE_MAIN).dropped, 1);
}

static void test_marks_have_no_duration(void **state)
{
    (void)state;
    dpt_trace_mark(&(struct dpt_trace_span){.kind = DPT_TRACE_MEMORY});
    dpt_trace_attach(recorder, DPT_TRACE_DATA);
    dpt_trace_recorder_begin(recorder);
    dpt_trace_mark(&(struct dpt_trace_span){.kind = DPT_TRACE_MEMORY, .value = {-5}});
    dpt_trace_recorder_end(recorder);
    const struct dpt_trace_events events = read_track(DPT_TRACE_DATA);
    assert_int_equal(events.n, 1);
    assert_int_equal(events.event[0].span.value[0], -5);
    assert_int_equal(events.event[0].begin_ns, events.event[0].end_ns);
}

static void test_bytes_are_of_all_rings(void **state)
{
    (void)state;
    assert_int_equal(dpt_trace_recorder_bytes(ROOM),
                     (2 * ROOM + 2 * (ROOM / 4) + DPT_TRACE_STEPS_MAX) *
                         sizeof(struct dpt_trace_event));
}

/* ---- two threads ---- */

static atomic_bool stop;
static atomic_int rounds;

static void *record_until_stop(void *ctx)
{
    dpt_trace_attach(ctx, DPT_TRACE_DATA);
    for (int64_t i = 0; !atomic_load(&stop); i++) {
        add_event(i);
        (void)atomic_fetch_add(&rounds, 1);
    }
    return NULL;
}

/* The main thread reads windows while the other thread records: what it reads is whole. */
static void test_reader_sees_whole_events(void **state)
{
    (void)state;
    enum { WINDOWS = 50 };
    pthread_t thread;
    atomic_store(&stop, false);
    atomic_store(&rounds, 0);
    assert_int_equal(pthread_create(&thread, NULL, record_until_stop, recorder), 0);
    for (int window = 0; window < WINDOWS; window++) {
        dpt_trace_recorder_begin(recorder);
        const int before = atomic_load(&rounds);
        while (atomic_load(&rounds) < before + 3)
            (void)sched_yield();
        dpt_trace_recorder_end(recorder);
        const struct dpt_trace_events events = read_track(DPT_TRACE_DATA);
        assert_true(events.n > 0 && events.n <= ROOM / 4);
        for (size_t i = 1; i < events.n; i++) {
            assert_int_equal(events.event[i].span.value[0], events.event[0].span.value[0] + (int)i);
            assert_true(events.event[i].begin_ns >= events.event[i - 1].end_ns);
        }
    }
    atomic_store(&stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(read_track(DPT_TRACE_MAIN).n, 0);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_thread_without_recorder_records_nothing),
        T(test_only_windows_are_recorded),
        T(test_next_window_is_empty),
        T(test_full_ring_counts_dropped_events),
        T(test_full_ring_keeps_steps),
        T(test_many_steps_fit),
        T(test_marks_have_no_duration),
        T(test_bytes_are_of_all_rings),
        T(test_reader_sees_whole_events),
    };
    return cmocka_run_group_tests_name("recorder of traces", tests, NULL, NULL);
}
