/* The hash table of the server's machine against a plain list. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/index.h"

enum { PAIRS_MAX = 200, STEPS = 20000 };

struct pair {
    uint64_t key;
    char *value;
};

static char values[PAIRS_MAX];

static size_t count_of(const struct pair *pairs, size_t n, uint64_t key, const void *value)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += pairs[i].key == key && (value == NULL || pairs[i].value == value);
    return found;
}

/* Keys are few and end in equal bits, so that searches pass one another's entries. */
static void test_agrees_with_a_list(void **state)
{
    (void)state;
    struct index index = {0};
    struct pair pairs[PAIRS_MAX];
    size_t n = 0;
    uint64_t random = 1;
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint64_t key = (random >> 33) % 60 << 40;
        char *value = &values[(random >> 50) % PAIRS_MAX];
        if ((random >> 60) < 9 && n < PAIRS_MAX) {
            assert_true(dpt_rdzv_index_add(&index, key, value));
            pairs[n++] = (struct pair){key, value};
        } else if (n > 0) {
            const size_t at = (random >> 40) % n;
            dpt_rdzv_index_remove(&index, pairs[at].key, pairs[at].value);
            pairs[at] = pairs[--n];
        }
        const void *found = dpt_rdzv_index_find(&index, key);
        assert_int_equal(found != NULL, count_of(pairs, n, key, NULL) > 0);
        if (found != NULL)
            assert_true(count_of(pairs, n, key, found) > 0);
        assert_int_equal(index.n, n);
    }
    while (n > 0) {
        n--;
        dpt_rdzv_index_remove(&index, pairs[n].key, pairs[n].value);
        assert_int_equal(dpt_rdzv_index_find(&index, pairs[n].key) != NULL,
                         count_of(pairs, n, pairs[n].key, NULL) > 0);
    }
    dpt_rdzv_index_fini(&index);
    assert_null(dpt_rdzv_index_find(&index, 1));
}

static void test_removal_of_an_absent_value_changes_nothing(void **state)
{
    (void)state;
    struct index index = {0};
    dpt_rdzv_index_remove(&index, 1, &values[0]);
    assert_true(dpt_rdzv_index_add(&index, 1, &values[0]));
    dpt_rdzv_index_remove(&index, 1, &values[1]);
    dpt_rdzv_index_remove(&index, 2, &values[0]);
    assert_ptr_equal(dpt_rdzv_index_find(&index, 1), &values[0]);
    assert_int_equal(index.n, 1);
    dpt_rdzv_index_fini(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agrees_with_a_list),
        cmocka_unit_test(test_removal_of_an_absent_value_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
