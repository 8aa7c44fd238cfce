/* Shares of writers: every element once, by a holder, evenly, with any shards. */
#include "checkpoint/layout/writer_share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 4, NUMEL = 3 * 60 * BLOCK + 5 * BLOCK, WRITERS_MAX = 16, INTERVALS_MAX = 256 };

/* Units of 60, 5 and 120 blocks, and an empty one. */
static const int64_t offsets[] = {0, 60 * BLOCK, 65 * BLOCK, 65 * BLOCK, 185 * BLOCK};
static const struct dpt_grid grid = {.offset = offsets, .n_units = 4, .block = BLOCK};

static bool holds(struct dpt_shard shard, int64_t x)
{
    for (int u = 0; u < grid.n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(&grid, shard, u);
        if (x >= piece.first && x < piece.end)
            return true;
    }
    return false;
}

/* Counts each writer's elements, divided among the replicas in turn, and checks the extremes. */
static void check_writer_shares(const struct dpt_shard *shards, int n, int slack)
{
    struct dpt_interval intervals[INTERVALS_MAX];
    uint8_t seen[NUMEL] = {0};
    int64_t most = 0;
    int n_in = 0;
    for (int writer = 0; writer < n; writer++) {
        struct dpt_share share = {.interval = intervals}, counted = {.interval = NULL};
        dpt_writer_share(&grid, shards, n, writer, &share, INTERVALS_MAX);
        dpt_writer_share(&grid, shards, n, writer, &counted, 0);
        assert_int_equal(share.n, counted.n);
        int64_t mine = 0, at = 0;
        for (int i = 0; i < share.n; i++) {
            assert_true(intervals[i].first >= at && intervals[i].first < intervals[i].end);
            assert_int_equal(intervals[i].first % BLOCK, 0);
            at = intervals[i].end;
            for (int64_t x = intervals[i].first; x < intervals[i].end; x++) {
                assert_true(holds(shards[writer], x));
                if (x / BLOCK % share.n_replicas == share.replica) {
                    seen[x]++;
                    mine++;
                }
            }
        }
        n_in += share.n_replicas > 0;
        most = mine > most ? mine : most;
    }
    for (int64_t x = 0; x < NUMEL; x++)
        if (seen[x] != 1)
            fail_msg("element %lld is written %d times", (long long)x, seen[x]);
    assert_true(n_in > 0 && most <= NUMEL / n_in + (int64_t)slack * BLOCK);
}

static void one_cover(void **state)
{
    (void)state;
    struct dpt_shard shards[WRITERS_MAX];
    for (int of = 1; of <= 8; of++)
        for (int replicas = 1; replicas * of <= WRITERS_MAX; replicas++) {
            for (int i = 0; i < of * replicas; i++)
                shards[i] = (struct dpt_shard){(i + i / of) % of, of}; /* in any order */
            check_writer_shares(shards, of * replicas, 8);
        }
}

/* Nodes of unequal size; each holds the whole state in a different cut. */
static void several_covers(void **state)
{
    (void)state;
    for (int a = 1; a <= 5; a++)
        for (int b = 1; b <= 5; b++)
            for (int c = 0; c <= 3; c++) {
                struct dpt_shard shards[WRITERS_MAX];
                int n = 0;
                for (int i = 0; i < a; i++)
                    shards[n++] = (struct dpt_shard){i, a};
                for (int i = 0; i < b; i++)
                    shards[n++] = (struct dpt_shard){b - 1 - i, b};
                for (int i = 0; i < c; i++)
                    shards[n++] = (struct dpt_shard){i, c};
                check_writer_shares(shards, n,
                                    40); /* cuts are rounded to blocks, in each of many ranges */
            }
}

/* A writer outside of all covers writes nothing. */
static void writers_outside_of_covers(void **state)
{
    (void)state;
    const struct dpt_shard shards[] = {{0, 3}, {0, 2}, {0, 0}, {1, 2}, {2, 3}};
    check_writer_shares(shards, 5, 8);
    struct dpt_share share = {.interval = NULL};
    for (int i = 0; i < 5; i += 2) {
        dpt_writer_share(&grid, shards, 5, i, &share, 0);
        assert_int_equal(share.n, 0);
        assert_int_equal(share.n_replicas, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_cover),
                                       cmocka_unit_test(several_covers),
                                       cmocka_unit_test(writers_outside_of_covers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
