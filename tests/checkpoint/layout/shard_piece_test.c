/* Shards of the flat vectors are disjoint, cover everything, and have whole blocks. */
#include "checkpoint/layout/shard_piece.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 4, NUMEL = 68 };

/* Units of 7 blocks, 1 block, none, and 9 blocks. */
static const int64_t offsets[] = {0, 28, 32, 32, 68};
static const struct dpt_grid grid = {.offset = offsets, .n_units = 4, .block = BLOCK};

static void shards_partition_every_unit(void **state)
{
    (void)state;
    for (int of = 1; of <= 12; of++) {
        uint8_t seen[NUMEL] = {0};
        int64_t total = 0;
        for (int index = 0; index < of; index++) {
            const struct dpt_shard shard = {index, of};
            int64_t numel = 0;
            for (int u = 0; u < grid.n_units; u++) {
                const struct dpt_interval piece = dpt_shard_piece(&grid, shard, u);
                assert_true(piece.first >= offsets[u] && piece.first <= piece.end &&
                            piece.end <= offsets[u + 1]);
                assert_int_equal((piece.first - offsets[u]) % BLOCK, 0);
                assert_int_equal(dpt_shard_offset(&grid, shard, u), numel);
                for (int64_t i = piece.first; i < piece.end; i++)
                    seen[i]++;
                numel += piece.end - piece.first;
            }
            assert_int_equal(dpt_shard_numel(&grid, shard), numel);
            total += numel;
        }
        assert_int_equal(total, NUMEL);
        for (int i = 0; i < NUMEL; i++)
            assert_int_equal(seen[i], 1);
    }
}

static void everything_and_nothing(void **state)
{
    (void)state;
    const struct dpt_shard all = {0, 1}, none = {0, 0};
    assert_true(dpt_shard_is_none(none));
    assert_false(dpt_shard_is_none(all));
    for (int u = 0; u < grid.n_units; u++) {
        const struct dpt_interval whole = dpt_shard_piece(&grid, all, u);
        assert_int_equal(whole.first, offsets[u]);
        assert_int_equal(whole.end, offsets[u + 1]);
        assert_int_equal(dpt_shard_offset(&grid, all, u), offsets[u]);
        const struct dpt_interval empty = dpt_shard_piece(&grid, none, u);
        assert_int_equal(empty.first, empty.end);
    }
    assert_int_equal(dpt_shard_numel(&grid, none), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_partition_every_unit),
        cmocka_unit_test(everything_and_nothing),
    };
    return cmocka_run_group_tests_name("checkpoint_shard", tests, NULL, NULL);
}
