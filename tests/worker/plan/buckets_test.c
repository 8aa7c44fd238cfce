/* Buckets cover the flat gradient from its end, on tensor starts, within their size. */
#include "worker/plan/buckets.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_recorded_buckets(void **state)
{
    (void)state;
    /* 6 tensors of 10 elements with padding to 12 after the third; sizes in bytes: x 4. */
    const int64_t offset[] = {0, 10, 20, 32, 42, 52};
    struct dpt_bucket b[6];
    assert_int_equal(dpt_buckets_make(offset, 6, 64, 4 * 12, 4 * 22, b), 4);
    const struct dpt_bucket expected[] = {
        {5, 1, 52, 64}, {3, 2, 32, 52}, {1, 2, 10, 32}, {0, 1, 0, 10}};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(b[i].first_tensor, expected[i].first_tensor);
        assert_int_equal(b[i].n_tensors, expected[i].n_tensors);
        assert_int_equal(b[i].first, expected[i].first);
        assert_int_equal(b[i].end, expected[i].end);
    }
}

static void one_bucket_when_all_fits(void **state)
{
    (void)state;
    const int64_t offset[] = {0, 5, 9};
    struct dpt_bucket b[3];
    assert_int_equal(dpt_buckets_make(offset, 3, 16, 1 << 20, 1 << 20, b), 1);
    assert_int_equal(b[0].n_tensors, 3);
    assert_int_equal(b[0].end, 16);
}

static void random_tensors(void **state)
{
    (void)state;
    enum { TENSORS = 50 };
    srand(1);
    for (int round = 0; round < 2000; round++) {
        const int n = 1 + rand() % TENSORS;
        int64_t offset[TENSORS], total = 0;
        for (int t = 0; t < n; t++) {
            offset[t] = total;
            total += 1 + rand() % (rand() % 5 == 0 ? 1000 : 50);
        }
        const int64_t limit0 = 4 * (1 + rand() % 100), limit = 4 * (1 + rand() % 400);
        struct dpt_bucket b[TENSORS];
        const int buckets = dpt_buckets_make(offset, n, total, limit0, limit, b);
        assert_in_range(buckets, 1, n);
        int tensor = n;
        int64_t end = total;
        for (int i = 0; i < buckets; i++) {
            const int64_t bytes_max = i == 0 ? limit0 : limit;
            assert_true(b[i].n_tensors >= 1);
            assert_int_equal(b[i].first_tensor + b[i].n_tensors, tensor);
            assert_int_equal(b[i].end, end);
            assert_int_equal(b[i].first, offset[b[i].first_tensor]);
            assert_true(b[i].n_tensors == 1 || 4 * (b[i].end - b[i].first) <= bytes_max);
            if (b[i].first_tensor > 0) /* one more would not have fitted */
                assert_true(4 * (b[i].end - offset[b[i].first_tensor - 1]) > bytes_max);
            tensor = b[i].first_tensor;
            end = b[i].first;
        }
        assert_int_equal(tensor, 0);
        assert_int_equal(end, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_buckets),
        cmocka_unit_test(one_bucket_when_all_fits),
        cmocka_unit_test(random_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
