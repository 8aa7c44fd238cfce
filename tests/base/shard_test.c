/* Sets of shards that cover a state, and the parts that a cover lacks. */
#include "base/shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_shards_cover_whole(void **state)
{
    (void)state;
    const struct dpt_shard whole[] = {{1, 3}, {0, 1}};
    assert_true(dpt_shards_cover(whole, 2));
    const struct dpt_shard all_three[] = {{2, 3}, {0, 3}, {0, 2}, {1, 3}, {1, 3}};
    assert_true(dpt_shards_cover(all_three, 5));
    assert_int_equal(dpt_shards_whole(all_three, 5), 3);
    assert_false(dpt_shards_cover(all_three, 3));
    /* Pieces of different cuts do not fit each other. */
    const struct dpt_shard mixed[] = {{0, 2}, {2, 4}, {3, 4}};
    assert_false(dpt_shards_cover(mixed, 3));
    const struct dpt_shard none[] = {{0, 0}, {0, 0}};
    assert_false(dpt_shards_cover(none, 2));
    assert_false(dpt_shards_cover(NULL, 0));
    assert_int_equal(dpt_shards_whole(mixed, 3), 0);
}

/* Ranks with the empty shard train for a rank that holds the whole state. */
static void test_empty_shards(void **state)
{
    (void)state;
    const struct dpt_shard together[] = {DPT_SHARD_EMPTY, {0, 1}, DPT_SHARD_EMPTY};
    assert_int_equal(dpt_shards_whole(together, 3), 1);
    assert_true(dpt_shard_is_none(dpt_shards_missing(together, 3)));
    const struct dpt_shard alone[] = {DPT_SHARD_EMPTY, DPT_SHARD_EMPTY};
    assert_false(dpt_shards_cover(alone, 2));
    const struct dpt_shard lost = dpt_shards_missing(alone, 2);
    assert_true(dpt_shard_equal(lost, (struct dpt_shard){0, 1}));
    const struct dpt_shard mixed[] = {DPT_SHARD_EMPTY, {1, 2}};
    assert_true(dpt_shard_equal(dpt_shards_missing(mixed, 2), (struct dpt_shard){0, 2}));
    assert_false(dpt_shard_is_none(DPT_SHARD_EMPTY));
}

static void test_largest_missing_shard(void **state)
{
    (void)state;
    const struct dpt_shard of_three[] = {{2, 3}, {0, 3}, {0, 2}};
    const struct dpt_shard lost = dpt_shards_missing(of_three, 3);
    assert_int_equal(lost.index, 1); /* two thirds are more than one half */
    assert_int_equal(lost.of, 3);
    const struct dpt_shard first = dpt_shards_missing(&(struct dpt_shard){3, 4}, 1);
    assert_int_equal(first.index, 0);
    assert_int_equal(first.of, 4);
    const struct dpt_shard whole[] = {{1, 3}, {0, 1}};
    assert_true(dpt_shard_is_none(dpt_shards_missing(whole, 2)));
    assert_true(dpt_shard_is_none(dpt_shards_missing(NULL, 0)));
    assert_true(dpt_shard_is_none(dpt_shards_missing(&(struct dpt_shard){0, 0}, 1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_cover_whole),
        cmocka_unit_test(test_empty_shards),
        cmocka_unit_test(test_largest_missing_shard),
    };
    return cmocka_run_group_tests_name("base_shard", tests, NULL, NULL);
}
