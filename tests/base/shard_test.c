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

/* ---- against a plain search ---- */

static int plain_whole(const struct dpt_shard *shards, int n)
{
    for (int i = 0; i < n; i++) {
        int index = 0;
        if (shards[i].of == 0 || shards[i].index != 0)
            continue;
        while (index < shards[i].of &&
               dpt_shard_is_among(shards, n, (struct dpt_shard){index, shards[i].of}))
            index++;
        if (index == shards[i].of)
            return shards[i].of;
    }
    return 0;
}

static int plain_found(const struct dpt_shard *shards, int n, int of)
{
    int found = 0;
    for (int index = 0; index < of; index++)
        found += dpt_shard_is_among(shards, n, (struct dpt_shard){index, of});
    return found;
}

/* Random sets of shards of a few divisions, with the special shards among them. */
static void test_agrees_with_a_plain_search(void **state)
{
    (void)state;
    uint64_t random = 7;
    for (int round = 0; round < 20000; round++) {
        struct dpt_shard shards[12];
        random = random * 6364136223846793005u + 1442695040888963407u;
        const int n = (int)(random >> 60) % 12;
        for (int i = 0; i < n; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const int of = (int)(random >> 61) % 6;
            shards[i] = of == 5   ? DPT_SHARD_EMPTY
                        : of == 0 ? (struct dpt_shard){0, 0}
                                  : (struct dpt_shard){(int)(random >> 40) % of, of};
        }
        const int whole = dpt_shards_whole(shards, n);
        assert_int_equal(whole, plain_whole(shards, n));
        const struct dpt_shard missing = dpt_shards_missing(shards, n);
        if (whole > 0) {
            assert_true(dpt_shard_is_none(missing));
            continue;
        }
        assert_false(dpt_shard_is_among(shards, n, missing) && !dpt_shard_is_none(missing));
        for (int of = 1; of < 5; of++)
            assert_true(missing.of == 0 || plain_found(shards, n, of) * missing.of <=
                                               plain_found(shards, n, missing.of) * of);
    }
}

/* The largest world: its shards are counted without a search for each. */
static void test_many_shards(void **state)
{
    (void)state;
    static struct dpt_shard shards[DPT_WORLD_MAX];
    for (int i = 0; i < DPT_WORLD_MAX; i++)
        shards[i] = (struct dpt_shard){DPT_WORLD_MAX - 1 - i, DPT_WORLD_MAX};
    assert_int_equal(dpt_shards_whole(shards, DPT_WORLD_MAX), DPT_WORLD_MAX);
    shards[1] = shards[0];
    assert_false(dpt_shards_cover(shards, DPT_WORLD_MAX));
    const struct dpt_shard missing = dpt_shards_missing(shards, DPT_WORLD_MAX);
    assert_int_equal(missing.index, DPT_WORLD_MAX - 2);
    assert_int_equal(missing.of, DPT_WORLD_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_cover_whole),
        cmocka_unit_test(test_empty_shards),
        cmocka_unit_test(test_largest_missing_shard),
        cmocka_unit_test(test_agrees_with_a_plain_search),
        cmocka_unit_test(test_many_shards),
    };
    return cmocka_run_group_tests_name("base_shard", tests, NULL, NULL);
}
