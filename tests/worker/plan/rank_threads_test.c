/* Cores assigned to ranks: nearly equal, none left over, none given twice. */
#include "worker/plan/rank_threads.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 128 };

static void expect_threads(const struct dpt_rank_cores *ranks, int n, const int *threads)
{
    for (int i = 0; i < n; i++)
        assert_int_equal(dpt_rank_threads(ranks, n, i, MOST), threads[i]);
}

static void eight_cores_and_three_ranks(void **state)
{
    (void)state;
    const struct dpt_rank_cores ranks[] = {{0, 1, 8, 0}, {0, 1, 8, 0}, {0, 1, 8, 0}};
    expect_threads(ranks, 3, (const int[]){3, 3, 2});
    expect_threads(ranks, 2, (const int[]){4, 4});
    expect_threads(ranks, 1, (const int[]){8});
    assert_int_equal(dpt_rank_threads_near(ranks, 3, &ranks[1], MOST), 8);
}

/* All cores are given out, or one each where there are too few, larger shares first. */
static void every_count(void **state)
{
    (void)state;
    for (int cores = 1; cores <= 40; cores++)
        for (int n = 1; n <= 12; n++) {
            struct dpt_rank_cores ranks[12];
            for (int i = 0; i < n; i++)
                ranks[i] = (struct dpt_rank_cores){.id = 5, .cores = cores};
            int sum = 0;
            for (int i = 0; i < n; i++) {
                const int threads = dpt_rank_threads(ranks, n, i, MOST);
                const int even = cores / n > 0 ? cores / n : 1;
                assert_true(threads == even || (threads == even + 1 && cores > n));
                assert_true(i == 0 || threads <= dpt_rank_threads(ranks, n, i - 1, MOST));
                sum += threads;
            }
            assert_int_equal(sum, cores > n ? cores : n);
            assert_int_equal(dpt_rank_threads_near(ranks, n, &ranks[0], MOST), sum);
        }
}

/* Ranks are interleaved over two hosts of different size; one of them was asked for its own. */
static void hosts_and_those_who_were_asked(void **state)
{
    (void)state;
    const struct dpt_rank_cores ranks[] = {
        {0, 7, 4, 0}, {1, 7, 9, 0}, {0, 7, 4, 3}, {1, 7, 9, 0}, {0, 7, 4, 0}};
    expect_threads(ranks, 5, (const int[]){2, 5, 3, 4, 1});
    assert_int_equal(dpt_rank_threads_near(ranks, 5, &ranks[0], MOST), 6);
    assert_int_equal(dpt_rank_threads_near(ranks, 5, &ranks[1], MOST), 9);
    const struct dpt_rank_cores idle = {2, 7, 4, 0};
    assert_int_equal(dpt_rank_threads_near(ranks, 5, &idle, MOST), 0);
    assert_int_equal(dpt_rank_threads_sharers(ranks, 5, 2), 3);
}

/* Workers of one host with separate cores keep them. */
static void cores_of_their_own(void **state)
{
    (void)state;
    const struct dpt_rank_cores ranks[] = {
        {0, 11, 4, 0}, {0, 22, 2, 0}, {0, 11, 4, 0}, {0, 22, 2, 0}, {0, 33, 6, 0}};
    expect_threads(ranks, 5, (const int[]){2, 1, 2, 1, 6});
    assert_int_equal(dpt_rank_threads_sharers(ranks, 5, 4), 1);
    assert_int_equal(dpt_rank_threads_near(ranks, 5, &ranks[2], MOST), 4);
    assert_int_equal(dpt_rank_threads_near(ranks, 5, &ranks[4], MOST), 6);
}

static void test_thread_limits(void **state)
{
    (void)state;
    const struct dpt_rank_cores ranks[] = {{0, 1, 1000, 0}, {0, 2, 0, 0}, {0, 2, 4, 500}};
    expect_threads(ranks, 3, (const int[]){MOST, 1, MOST});
    assert_int_equal(dpt_rank_threads(ranks, 3, 0, 2), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_cores_and_three_ranks),
        cmocka_unit_test(every_count),
        cmocka_unit_test(hosts_and_those_who_were_asked),
        cmocka_unit_test(cores_of_their_own),
        cmocka_unit_test(test_thread_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
