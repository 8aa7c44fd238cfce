/* Stacks of threads that answer, that block the signal, or that answer late. */
#include "worker/train/link/stacks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LONG_MS = 60000 };

/* A thread that waits for the end of the test. */
struct waiter {
    pthread_t thread;
    pid_t id;
    bool blocks; /* the signal */
    sem_t begun, end;
};

/* The thread whose next answer waits; 0: none. */
static _Atomic pid_t late;
static sem_t late_may_go, late_is_done;

/* The linker sends the calls of stacks.c here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
int __real_backtrace(void **frames, int n);
int __wrap_backtrace(void **frames, int n);
int __wrap_backtrace(void **frames, int n)
{
    pid_t expected = (pid_t)syscall(SYS_gettid);
    const bool waits = atomic_compare_exchange_strong(&late, &expected, 0);
    while (waits && sem_wait(&late_may_go) != 0) {
    }
    const int ret = __real_backtrace(frames, n);
    if (waits)
        (void)sem_post(&late_is_done);
    return ret;
}
/* NOLINTEND(bugprone-reserved-identifier) */

static void *wait_for_the_end(void *arg)
{
    struct waiter *waiter = arg;
    sigset_t signals;
    (void)sigfillset(&signals);
    if (waiter->blocks)
        (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
    waiter->id = (pid_t)syscall(SYS_gettid);
    (void)sem_post(&waiter->begun);
    while (sem_wait(&waiter->end) != 0) {
    }
    return NULL;
}

static void begin(struct waiter *waiter, bool blocks)
{
    waiter->blocks = blocks;
    (void)sem_init(&waiter->begun, 0, 0);
    (void)sem_init(&waiter->end, 0, 0);
    assert_int_equal(pthread_create(&waiter->thread, NULL, wait_for_the_end, waiter), 0);
    while (sem_wait(&waiter->begun) != 0) {
    }
}

static void end(struct waiter *waiter)
{
    (void)sem_post(&waiter->end);
    (void)pthread_join(waiter->thread, NULL);
}

/* The thread's line, without its head. */
static void print(const struct waiter *waiter, int64_t answer_ms, int64_t time_ms, char ret[512])
{
    char text[8192], head[64];
    dpt_stacks_print(text, sizeof text, answer_ms, time_ms);
    (void)snprintf(head, sizeof head, "thread %d: ", (int)waiter->id);
    const char *line = strstr(text, head);
    if (line == NULL)
        fail_msg("no '%s' in: %s", head, text);
    line += strlen(head);
    (void)snprintf(ret, 512, "%.*s", (int)strcspn(line, "\n"), line);
}

/* A thread that has just answered may still be in its handler, which blocks the signal until it
   returns. The thread is asked again until it can be asked; then it must answer. */
static void expect_answer_soon(const struct waiter *waiter)
{
    char line[512];
    do
        print(waiter, LONG_MS, LONG_MS, line);
    while (strstr(line, "is not asked") != NULL);
    if (strstr(line, " < ") == NULL)
        fail_msg("%s", line);
}

static void a_thread_answers(void **state)
{
    (void)state;
    struct waiter waiter;
    char line[512];
    begin(&waiter, false);
    print(&waiter, LONG_MS, LONG_MS, line);
    assert_non_null(strstr(line, " < "));
    end(&waiter);
}

static void a_thread_that_blocks_signals_is_not_asked(void **state)
{
    (void)state;
    struct waiter waiter;
    char line[512];
    begin(&waiter, true);
    print(&waiter, LONG_MS, LONG_MS, line);
    assert_string_equal(line, "is not asked: it blocks signals");
    end(&waiter);
}

static void no_thread_is_asked_after_the_time(void **state)
{
    (void)state;
    struct waiter waiter;
    char line[512];
    begin(&waiter, false);
    print(&waiter, LONG_MS, 0, line);
    assert_string_equal(line, "is not asked: the time for the dump is over");
    end(&waiter);
}

/* The post of a late answer does not end the wait for the next one. */
static void a_late_answer_spoils_no_later_one(void **state)
{
    (void)state;
    struct waiter waiter, other;
    char line[512];
    begin(&waiter, false);
    atomic_store(&late, waiter.id);
    print(&waiter, DPT_STACKS_ANSWER_MS, LONG_MS, line);
    assert_non_null(strstr(line, "does not answer"));
    begin(&other, false);
    print(&other, LONG_MS, LONG_MS, line);
    assert_non_null(strstr(line, "another thread has not completed its answer"));
    (void)sem_post(&late_may_go);
    while (sem_wait(&late_is_done) != 0) {
    }
    expect_answer_soon(&waiter);
    expect_answer_soon(&other);
    end(&waiter);
    end(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_answers),
        cmocka_unit_test(a_thread_that_blocks_signals_is_not_asked),
        cmocka_unit_test(no_thread_is_asked_after_the_time),
        cmocka_unit_test(a_late_answer_spoils_no_later_one),
    };
    (void)sem_init(&late_may_go, 0, 0);
    (void)sem_init(&late_is_done, 0, 0);
    dpt_stacks_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
