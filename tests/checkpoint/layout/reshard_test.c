/* Resharding: every need is filled exactly once, from the nearest holder. */
#include "checkpoint/layout/reshard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 4, NUMEL = 68, RANKS_MAX = 6, PARTS = 2, SEEN_MAX = 4096 };

/* Units of 7 blocks, 1 block, none, and 9 blocks. */
static const int64_t offsets[] = {0, 28, 32, 32, 68};
static const struct dpt_grid grid = {.offset = offsets, .n_units = 4, .block = BLOCK};

struct seen {
    struct dpt_move moves[SEEN_MAX];
    int n;
};

static enum dpt_status note(void *ctx, const struct dpt_move *move, struct dpt_err *err)
{
    struct seen *seen = ctx;
    (void)err;
    assert_true(seen->n < SEEN_MAX);
    seen->moves[seen->n++] = *move;
    return DPT_OK;
}

static bool contains(struct dpt_interval outer, struct dpt_interval inner)
{
    return inner.first >= outer.first && inner.end <= outer.end && inner.first < inner.end;
}

static const struct dpt_holding *find_holding(const struct dpt_holding *list, int n, int rank,
                                              int part)
{
    for (int i = 0; i < n; i++)
        if (list[i].rank == rank && list[i].part == part)
            return &list[i];
    return NULL;
}

static bool has_moved_piece(const struct dpt_holding *have, const struct dpt_move *move)
{
    return contains(dpt_shard_piece(&grid, have->shard, move->unit), move->range);
}

/* No nearer rank holds a part of a piece that comes from a farther one. */
static void check_nearest(const struct dpt_reshard_plan *plan, const struct dpt_move *move)
{
    const struct dpt_holding *from =
        find_holding(plan->have, plan->n_have, move->from, move->from_part);
    const struct dpt_holding *to = find_holding(plan->need, plan->n_need, move->to, move->to_part);
    assert_non_null(from);
    assert_non_null(to);
    assert_true(has_moved_piece(from, move) && has_moved_piece(to, move));
    for (int i = 0; i < plan->n_have; i++) {
        const struct dpt_holding *other = &plan->have[i];
        const bool itself = other->rank == to->rank && from->rank != to->rank;
        const bool of_host = other->host == to->host && from->host != to->host;
        const struct dpt_interval common =
            dpt_interval_intersect(dpt_shard_piece(&grid, other->shard, move->unit), move->range);
        assert_false((itself || of_host) && common.first < common.end);
    }
}

static void check_moves(const struct dpt_reshard_plan *plan)
{
    static struct seen seen;
    struct dpt_err err;
    seen.n = 0;
    assert_int_equal(dpt_reshard_each(plan, note, &seen, &err), DPT_OK);
    for (int i = 0; i < plan->n_need; i++) {
        uint8_t filled[NUMEL] = {0};
        int64_t numel = 0;
        for (int k = 0; k < seen.n; k++) {
            const struct dpt_move *m = &seen.moves[k];
            if (m->to != plan->need[i].rank || m->to_part != plan->need[i].part)
                continue;
            check_nearest(plan, m);
            for (int64_t x = m->range.first; x < m->range.end; x++)
                assert_int_equal(filled[x]++, 0);
            numel += m->range.end - m->range.first;
        }
        assert_int_equal(numel, dpt_shard_numel(&grid, plan->need[i].shard));
    }
}

/* Rank r of n holds shard r in part 0; with `shadow` also the shard of rank r - 1 in part 1. */
static int deal(int n, bool shadow, int n_hosts, int lost, struct dpt_holding *ret)
{
    int at = 0;
    for (int r = 0; r < n; r++) {
        if (r == lost)
            continue;
        ret[at++] = (struct dpt_holding){r, r % n_hosts, 0, {r, n}};
        if (shadow)
            ret[at++] = (struct dpt_holding){r, r % n_hosts, 1, {(r + n - 1) % n, n}};
    }
    return at;
}

static void any_layout_from_any_other(void **state)
{
    (void)state;
    for (int from = 1; from <= RANKS_MAX; from++)
        for (int to = 1; to <= RANKS_MAX; to++)
            for (int hosts = 1; hosts <= 3; hosts++)
                for (int kind = 0; kind < 4; kind++)
                    for (int lost = -1; lost < from; lost++) {
                        struct dpt_holding have[RANKS_MAX * PARTS], need[RANKS_MAX * PARTS];
                        const bool shadow = (kind & 1) != 0;
                        if (lost >= 0 && (!shadow || from == 1))
                            continue;
                        const struct dpt_reshard_plan plan = {
                            .grid = &grid,
                            .have = have,
                            .need = need,
                            .n_have = deal(from, shadow, hosts, lost, have),
                            .n_need = deal(to, (kind & 2) != 0, hosts, -1, need)};
                        check_moves(&plan);
                    }
}

/* Two hosts, with two and with three ranks: each holds a whole replica, and each fills the other's
 * gaps. */
static void replicas_of_uneven_groups(void **state)
{
    (void)state;
    const struct dpt_holding have[] = {
        {0, 0, 0, {0, 2}}, {2, 1, 0, {0, 3}}, {3, 1, 0, {1, 3}}, {4, 1, 0, {2, 3}}};
    const struct dpt_holding need[] = {
        {0, 0, 0, {0, 2}}, {1, 0, 0, {1, 2}}, {2, 1, 0, {0, 1}}, {3, 1, 1, {1, 2}}};
    const struct dpt_reshard_plan plan = {
        .grid = &grid, .have = have, .need = need, .n_have = 4, .n_need = 4};
    check_moves(&plan);
}

/* Four ranks join, and three hold the whole state. */
static void holders_share_the_work(void **state)
{
    (void)state;
    static struct seen seen;
    struct dpt_holding have[3], need[4];
    struct dpt_err err;
    int given[7] = {0};
    for (int i = 0; i < 3; i++)
        have[i] = (struct dpt_holding){2 * i, 0, 0, {0, 1}};
    for (int i = 0; i < 4; i++)
        need[i] = (struct dpt_holding){i == 3 ? 6 : 2 * i + 1, 0, 0, {0, 1}};
    const struct dpt_reshard_plan plan = {
        .grid = &grid, .have = have, .need = need, .n_have = 3, .n_need = 4};
    seen.n = 0;
    assert_int_equal(dpt_reshard_each(&plan, note, &seen, &err), DPT_OK);
    for (int i = 0; i < seen.n; i++)
        given[seen.moves[i].from] += seen.moves[i].unit == 0;
    assert_int_equal(given[0], 2); /* of the last rank, and of the first cyclically after it */
    assert_int_equal(given[2], 1);
    assert_int_equal(given[4], 1);
}

static void piece_without_holder(void **state)
{
    (void)state;
    static struct seen seen;
    struct dpt_err err;
    const struct dpt_holding have[] = {{0, 0, 0, {0, 3}}, {2, 0, 0, {2, 3}}};
    const struct dpt_holding need[] = {{1, 0, 0, {1, 2}}};
    const struct dpt_reshard_plan plan = {
        .grid = &grid, .have = have, .need = need, .n_have = 2, .n_need = 1};
    seen.n = 0;
    assert_int_equal(dpt_reshard_each(&plan, note, &seen, &err), DPT_EPEER);
    assert_non_null(strstr(err.text, "rank 1"));
    const struct dpt_reshard_plan nothing = {.grid = &grid, .need = need, .n_need = 1};
    assert_int_equal(dpt_reshard_each(&nothing, note, &seen, &err), DPT_EPEER);
    const struct dpt_reshard_plan idle = {.grid = &grid, .have = have, .n_have = 2};
    assert_int_equal(dpt_reshard_each(&idle, note, &seen, &err), DPT_OK);
}

static enum dpt_status refuse(void *ctx, const struct dpt_move *move, struct dpt_err *err)
{
    (void)move;
    if (--*(int *)ctx == 0)
        return dpt_fail(err, DPT_EABORTED, "enough");
    return DPT_OK;
}

static void failing_move_ends_it(void **state)
{
    (void)state;
    struct dpt_err err;
    int left = 2;
    const struct dpt_holding have[] = {{0, 0, 0, {0, 2}}, {1, 0, 0, {1, 2}}};
    const struct dpt_holding need[] = {{0, 0, 1, {0, 1}}};
    const struct dpt_reshard_plan plan = {
        .grid = &grid, .have = have, .need = need, .n_have = 2, .n_need = 1};
    assert_int_equal(dpt_reshard_each(&plan, refuse, &left, &err), DPT_EABORTED);
    assert_int_equal(left, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_from_any_other), cmocka_unit_test(replicas_of_uneven_groups),
        cmocka_unit_test(holders_share_the_work),    cmocka_unit_test(piece_without_holder),
        cmocka_unit_test(failing_move_ends_it),
    };
    return cmocka_run_group_tests_name("checkpoint_reshard", tests, NULL, NULL);
}
