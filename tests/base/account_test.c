/* Counters of memory: additions and subtractions, peaks, two separate accounts, several threads. */
#include "base/account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 20000, BYTES = 3 };

static void test_counts_by_tag(void **state)
{
    struct dpt_account account = {0};
    struct dpt_memory_use use;
    (void)state;
    dpt_account_add(&account, DPT_MEMORY_WEIGHTS, NULL, 100, 128);
    dpt_account_add(&account, DPT_MEMORY_MOMENTS, NULL, 50, 64);
    dpt_account_sub(&account, DPT_MEMORY_WEIGHTS, NULL, 100, 128);
    dpt_account_add(&account, DPT_MEMORY_WEIGHTS, NULL, 10, 64);
    dpt_account_read(&account, &use);
    assert_int_equal(use.tag[DPT_MEMORY_WEIGHTS], 10);
    assert_int_equal(use.tag_peak[DPT_MEMORY_WEIGHTS], 100);
    assert_int_equal(use.tag[DPT_MEMORY_MOMENTS], 50);
    assert_int_equal(use.tag[DPT_MEMORY_COMM], 0);
    assert_int_equal(use.all, 60);
    assert_int_equal(use.all_peak, 150);
    assert_int_equal(use.reserved, 128);
    assert_int_equal(use.reserved_peak, 192);
}

static void test_accounts_are_apart(void **state)
{
    struct dpt_account a = {0}, b = {0};
    struct dpt_memory_use use;
    (void)state;
    dpt_account_add(&a, DPT_MEMORY_DATA, NULL, 7, 7);
    dpt_account_add(NULL, DPT_MEMORY_DATA, NULL, 1000, 1000); /* no counting */
    dpt_account_sub(NULL, DPT_MEMORY_DATA, NULL, 1000, 1000);
    dpt_account_read(&b, &use);
    assert_int_equal(use.all, 0);
    assert_int_equal(use.all_peak, 0);
    dpt_account_read(&a, &use);
    assert_int_equal(use.all, 7);
}

static void *count_in_thread(void *arg)
{
    for (int i = 0; i < ROUNDS; i++) {
        dpt_account_add(arg, DPT_MEMORY_SUMS, NULL, BYTES, BYTES);
        if (i % 2)
            dpt_account_sub(arg, DPT_MEMORY_SUMS, NULL, BYTES, BYTES);
    }
    return NULL;
}

static void test_threads_count_into_one_account(void **state)
{
    struct dpt_account account = {0};
    struct dpt_memory_use use;
    pthread_t threads[THREADS];
    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_in_thread, &account), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    dpt_account_read(&account, &use);
    const int64_t left = (int64_t)THREADS * ROUNDS / 2 * BYTES;
    assert_int_equal(use.all, left);
    assert_int_equal(use.tag[DPT_MEMORY_SUMS], left);
    assert_in_range(use.all_peak, left, left + (int64_t)THREADS * BYTES);
}

static struct dpt_account_change changes[4];
static size_t n_changes;

static void keep_change(const struct dpt_account_change *change)
{
    assert_true(n_changes < sizeof changes / sizeof changes[0]);
    changes[n_changes++] = *change;
}

static void expect_change(size_t i, enum dpt_memory_tag tag, int64_t bytes, const void *address,
                          int64_t all, int64_t reserved)
{
    assert_int_equal(changes[i].tag, tag);
    assert_int_equal(changes[i].bytes, bytes);
    assert_ptr_equal(changes[i].address, address);
    assert_int_equal(changes[i].all, all);
    assert_int_equal(changes[i].reserved, reserved);
}

static void test_sink_receives_changes(void **state)
{
    struct dpt_account account = {0};
    char memory[8];
    (void)state;
    n_changes = 0;
    dpt_account_add(&account, DPT_MEMORY_SUMS, NULL, 5, 8);
    dpt_account_observe(&account, keep_change);
    dpt_account_add(&account, DPT_MEMORY_DATA, memory, 100, 128);
    dpt_account_add(&account, DPT_MEMORY_SUMS, NULL, 1, 2);
    dpt_account_sub(&account, DPT_MEMORY_DATA, memory, 100, 128);
    dpt_account_observe(&account, NULL);
    dpt_account_sub(&account, DPT_MEMORY_SUMS, NULL, 6, 10);
    assert_int_equal(n_changes, 3);
    expect_change(0, DPT_MEMORY_DATA, 100, memory, 105, 136);
    expect_change(1, DPT_MEMORY_SUMS, 1, NULL, 106, 138);
    expect_change(2, DPT_MEMORY_DATA, -100, memory, 6, 10);
}

static void test_names_are_distinct(void **state)
{
    (void)state;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(dpt_memory_tag_name((enum dpt_memory_tag)i),
                                    dpt_memory_tag_name((enum dpt_memory_tag)j));
}

/* Released for another purpose than it was taken for: the account would lie from then on. */
static void test_wrong_tag_ends_the_process(void **state)
{
    int status;
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        struct dpt_account account = {0};
        (void)close(2); /* the assertion's words are wanted */
        dpt_account_add(&account, DPT_MEMORY_WEIGHTS, NULL, 8, 8);
        dpt_account_sub(&account, DPT_MEMORY_MASTERS, NULL, 8, 8);
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* Every tag is in one category, so that the categories add up to the tags. */
static void categories_have_all_tags(void **state)
{
    (void)state;
    int64_t bytes[DPT_MEMORY_COUNT], found[DPT_MEMORY_CATEGORIES], all = 0;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        bytes[i] = INT64_C(1) << i;
    dpt_memory_by_category(bytes, found);
    for (int c = 0; c < DPT_MEMORY_CATEGORIES; c++)
        all += found[c];
    assert_int_equal(all, (INT64_C(1) << DPT_MEMORY_COUNT) - 1);
    assert_int_equal(found[DPT_MEMORY_OF_OPTIM],
                     bytes[DPT_MEMORY_MASTERS] + bytes[DPT_MEMORY_MOMENTS]);
    assert_int_equal(found[DPT_MEMORY_OF_COMM], bytes[DPT_MEMORY_COMM]);
    assert_string_equal(dpt_memory_category_name(DPT_MEMORY_OF_GRAD), "grad");
    assert_string_equal(dpt_memory_category_name(DPT_MEMORY_OF_ACTIVATIONS), "activations");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_by_tag),
        cmocka_unit_test(categories_have_all_tags),
        cmocka_unit_test(test_accounts_are_apart),
        cmocka_unit_test(test_threads_count_into_one_account),
        cmocka_unit_test(test_sink_receives_changes),
        cmocka_unit_test(test_names_are_distinct),
        cmocka_unit_test(test_wrong_tag_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
