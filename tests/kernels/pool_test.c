/* The thread pool: every item once, with any number of threads and loops, also when there are more
 * threads than cores; a worker's hooks; several pools side by side; pools that change their width
 * between loops. */
#include "kernels/cpu/pool.h"

#include "base/rng.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { ITEMS_MAX = 1000 };

struct loop {
    _Atomic int runs[ITEMS_MAX];
    int plain[ITEMS_MAX]; /* written without atomics: the sanitizer sees a lost happens-before */
    int threads;
    atomic_int bad_thread;
};

static void count_item(void *ctx, int64_t item, int thread)
{
    struct loop *l = ctx;
    atomic_fetch_add(&l->runs[item], 1);
    l->plain[item]++;
    if (thread < 0 || thread >= l->threads)
        atomic_store(&l->bad_thread, 1);
}

static void exercise(int threads, int loops)
{
    struct dpt_pool *pool = NULL;
    struct dpt_err err;
    static _Thread_local struct loop l;
    const struct dpt_pool_hooks hooks = {NULL, NULL};
    memset(&l, 0, sizeof l);
    l.threads = threads;
    assert_int_equal(dpt_pool_create(threads, hooks, &pool, &err), DPT_OK);
    assert_int_equal(dpt_pool_threads(pool), threads);
    static const int sizes[] = {0, 1, 2, 3, 7, 64, ITEMS_MAX};
    int expected[ITEMS_MAX] = {0};
    for (int i = 0; i < loops; i++) {
        int items = sizes[i % (int)(sizeof sizes / sizeof *sizes)];
        dpt_pool_run(pool, items, count_item, &l);
        for (int k = 0; k < items; k++)
            expected[k]++;
    }
    for (int k = 0; k < ITEMS_MAX; k++) {
        assert_int_equal(atomic_load(&l.runs[k]), expected[k]);
        assert_int_equal(l.plain[k], expected[k]);
    }
    assert_int_equal(atomic_load(&l.bad_thread), 0);
    dpt_pool_destroy(&pool);
    assert_null(pool);
}

static void test_every_item_once(void **state)
{
    (void)state;
    static const int widths[] = {1, 2, 3, 4, 8, 17};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        exercise(widths[i], 2000);
}

static void *exercise_thread(void *arg)
{
    (void)arg;
    exercise(3, 1000);
    return NULL;
}

static void test_pools_side_by_side(void **state)
{
    (void)state;
    enum { POOLS = 3 };
    pthread_t threads[POOLS];
    for (int i = 0; i < POOLS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, exercise_thread, NULL), 0);
    for (int i = 0; i < POOLS; i++)
        pthread_join(threads[i], NULL);
}

/* The width changes between loops, at times right after one, while workers are still on their way
 * to sleep; no thread beyond it runs an item, and none is lost. */
static void exercise_widths(uint64_t seed, int loops)
{
    enum { MOST = 6, ITEMS = 64 };
    struct dpt_pool *pool = NULL;
    struct dpt_err err;
    static _Thread_local struct loop l;
    const struct dpt_pool_hooks hooks = {NULL, NULL};
    memset(&l, 0, sizeof l);
    assert_int_equal(dpt_pool_create(MOST, hooks, &pool, &err), DPT_OK);
    int expected = 0;
    for (int i = 0; i < loops; i++) {
        uint32_t drawn[4];
        dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 0, 0, 0), (uint64_t)i, drawn);
        l.threads = 1 + (int)(drawn[0] % MOST);
        dpt_pool_set_threads(pool, l.threads);
        assert_int_equal(dpt_pool_threads(pool), l.threads);
        for (uint32_t k = 0; k < drawn[1] % 4; k++, expected++)
            dpt_pool_run(pool, ITEMS, count_item, &l);
    }
    for (int k = 0; k < ITEMS; k++) {
        assert_int_equal(atomic_load(&l.runs[k]), expected);
        assert_int_equal(l.plain[k], expected);
    }
    assert_int_equal(atomic_load(&l.bad_thread), 0);
    dpt_pool_set_threads(pool, 1); /* the parked are woken to end */
    dpt_pool_destroy(&pool);
}

static void test_width_changes(void **state)
{
    (void)state;
    exercise_widths(1, 1500);
}

static void *exercise_widths_thread(void *arg)
{
    exercise_widths(*(const uint64_t *)arg, 300);
    return NULL;
}

static void test_widths_change_side_by_side(void **state)
{
    (void)state;
    uint64_t seeds[] = {2, 3};
    enum { POOLS = sizeof seeds / sizeof seeds[0] };
    pthread_t threads[POOLS];
    for (int i = 0; i < POOLS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, exercise_widths_thread, &seeds[i]), 0);
    for (int i = 0; i < POOLS; i++)
        pthread_join(threads[i], NULL);
}

/* Every item waits until as many threads as the pool is wide are in the loop: whoever has a part in
 * it comes. */
struct meeting {
    atomic_int there, strangers;
    int wanted;
};

static void meet(void *ctx, int64_t item, int thread)
{
    struct meeting *m = ctx;
    (void)item;
    atomic_fetch_add(&m->strangers, thread >= m->wanted);
    atomic_fetch_add(&m->there, 1);
    while (atomic_load(&m->there) < m->wanted)
        sched_yield();
}

/* Only threads within the width take part, and all parked threads come back: otherwise this hangs
 * until the test's timeout. */
static void test_the_parked_come_back(void **state)
{
    (void)state;
    enum { MOST = 5, ROUNDS = 12 };
    struct dpt_pool *pool = NULL;
    struct dpt_err err;
    const struct dpt_pool_hooks hooks = {NULL, NULL};
    assert_int_equal(dpt_pool_create(MOST, hooks, &pool, &err), DPT_OK);
    for (int i = 0; i < ROUNDS; i++) {
        static const int widths[] = {MOST, 2, 1, 3};
        const int width = widths[i % 4];
        dpt_pool_set_threads(pool, width);
        struct meeting m = {.wanted = width};
        dpt_pool_run(pool, width, meet, &m);
        assert_int_equal(atomic_load(&m.there), width);
        assert_int_equal(atomic_load(&m.strangers), 0);
    }
    dpt_pool_destroy(&pool);
}

static atomic_int begun, ended;

static void on_begin(void)
{
    atomic_fetch_add(&begun, 1);
}

static void on_end(void)
{
    atomic_fetch_add(&ended, 1);
}

static void test_hooks_run_on_each_thread(void **state)
{
    (void)state;
    struct dpt_pool *pool = NULL;
    struct dpt_err err;
    const struct dpt_pool_hooks hooks = {on_begin, on_end};
    assert_int_equal(dpt_pool_create(5, hooks, &pool, &err), DPT_OK);
    assert_int_equal(atomic_load(&begun), 4);
    static const int widths[] = {1, 4, 2, 5};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        dpt_pool_set_threads(pool, widths[i]);
    assert_int_equal(atomic_load(&begun), 4); /* no thread ends or begins for that */
    assert_int_equal(atomic_load(&ended), 0);
    dpt_pool_destroy(&pool);
    assert_int_equal(atomic_load(&ended), 4);
    dpt_pool_destroy(&pool); /* nothing to do */
}

static void test_bad_sizes(void **state)
{
    (void)state;
    struct dpt_pool *pool = NULL;
    struct dpt_err err;
    const struct dpt_pool_hooks hooks = {NULL, NULL};
    assert_int_equal(dpt_pool_create(0, hooks, &pool, &err), DPT_EINVAL);
    assert_int_equal(dpt_pool_create(DPT_POOL_THREADS_MAX + 1, hooks, &pool, &err), DPT_EINVAL);
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_once),
        cmocka_unit_test(test_pools_side_by_side),
        cmocka_unit_test(test_width_changes),
        cmocka_unit_test(test_widths_change_side_by_side),
        cmocka_unit_test(test_the_parked_come_back),
        cmocka_unit_test(test_hooks_run_on_each_thread),
        cmocka_unit_test(test_bad_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
