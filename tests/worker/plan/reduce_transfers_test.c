/* The canonical reduction, carried out symbolically: a partial sum is a value that depends on its
 * whole expression, so that only the one fixed tree gives the expected value. */
#include "checkpoint/layout/layout.h"
#include "worker/plan/reduce_transfers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORLD_MAX = 40, LANES_MAX = 100, TRANSFERS_MAX = 40 * 40 * 12 };

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ x >> 29;
}

static uint64_t leaf(int lane)
{
    return mix((uint64_t)lane + 1);
}

/* Neither commutative nor associative. */
static uint64_t join(uint64_t left, uint64_t right)
{
    return mix(mix(left) * 3 + right * 5 + 7);
}

/* The tree's definition, a second time. */
static uint64_t tree(int first, int end)
{
    if (end - first == 1)
        return leaf(first);
    const int split = first + (1 << (31 - __builtin_clz((unsigned)(end - first - 1))));
    return join(tree(first, split), tree(split, end));
}

/* Sums one rank holds of one piece, in lane order. */
struct stack {
    int n;
    uint64_t value[DPT_LANES_MAX];
    struct dpt_range node[DPT_LANES_MAX];
};

static void push(struct stack *s, int lanes, struct dpt_range run, struct dpt_range node,
                 uint64_t value)
{
    if (s->n > 0)
        assert_int_equal(s->node[s->n - 1].end, node.first); /* arrivals come in tree order */
    s->node[s->n] = node;
    s->value[s->n++] = value;
    for (int j = dpt_tree_joins_at(lanes, run, node); j > 0; j--) {
        assert_true(s->n >= 2);
        s->value[s->n - 2] = join(s->value[s->n - 2], s->value[s->n - 1]);
        s->node[s->n - 2].end = s->node[s->n - 1].end;
        s->n--;
    }
}

static uint64_t find_on_stack(const struct stack *s, struct dpt_range node)
{
    for (int i = 0; i < s->n; i++)
        if (s->node[i].first == node.first && s->node[i].end == node.end)
            return s->value[i];
    fail_msg("a transfer names lanes [%d, %d), which its sender does not hold", node.first,
             node.end);
    return 0;
}

static struct stack own[WORLD_MAX], gathered[WORLD_MAX], final;
static struct dpt_transfer stage1[TRANSFERS_MAX], stage2[TRANSFERS_MAX];

static int position_of(const struct dpt_world *w, int rank)
{
    for (int p = 0; p < w->size; p++)
        if (w->rank_of_position[p] == rank)
            return p;
    fail_msg("rank %d has no position", rank);
    return -1;
}

static int host_of(const struct dpt_world *w, int rank)
{
    return w->host_of_position[position_of(w, rank)];
}

static struct dpt_range run_of_host(const struct dpt_world *w, int host)
{
    struct dpt_range run = {w->lanes, 0};
    for (int p = 0; p < w->size; p++)
        if (w->host_of_position[p] == host) {
            const struct dpt_range r = dpt_position_lanes(w->lanes, w->size, p);
            run.first = r.first < run.first ? r.first : run.first;
            run.end = r.end > run.end ? r.end : run.end;
        }
    return run;
}

/* The owner of a piece gathers it on its own host, on another host rank `piece mod host's ranks`.
 */
static int gatherer(const struct dpt_world *w, int host, int piece)
{
    int of_host[WORLD_MAX], n = 0;
    for (int p = 0; p < w->size; p++)
        if (w->host_of_position[p] == host)
            of_host[n++] = w->rank_of_position[p];
    return host_of(w, piece) == host ? piece : of_host[piece % n];
}

static void play_piece(const struct dpt_world *w, int piece, int n1, int n2)
{
    for (int r = 0; r < w->size; r++)
        gathered[r].n = 0;
    for (int i = 0; i < n1; i++)
        if (stage1[i].piece == piece) {
            const struct dpt_transfer *t = &stage1[i];
            assert_int_equal(host_of(w, t->from), host_of(w, t->to));
            assert_int_equal(t->to, gatherer(w, host_of(w, t->from), piece));
            push(&gathered[t->to], w->lanes, run_of_host(w, host_of(w, t->to)), t->node,
                 find_on_stack(&own[position_of(w, t->from)], t->node));
        }
    const struct stack *owner = &gathered[piece];
    if (n2 > 0) {
        final.n = 0;
        for (int i = 0; i < n2; i++)
            if (stage2[i].piece == piece) {
                const struct dpt_transfer *t = &stage2[i];
                assert_int_equal(t->to, piece);
                assert_true(t->from == t->to || host_of(w, t->from) != host_of(w, t->to));
                push(&final, w->lanes, (struct dpt_range){0, w->lanes}, t->node,
                     find_on_stack(&gathered[t->from], t->node));
            }
        owner = &final;
    }
    assert_int_equal(owner->n, 1);
    assert_true(owner->value[0] == tree(0, w->lanes));
}

static void check_bytes(const struct dpt_world *w, int n1, int n2, int64_t numel, int64_t block)
{
    int64_t sent[WORLD_MAX] = {0}, spread[WORLD_MAX] = {0}, spread_far[WORLD_MAX] = {0},
            far[WORLD_MAX] = {0}, elements[WORLD_MAX], at = 0;
    for (int p = 0; p < w->size; p++) {
        const struct dpt_interval piece = dpt_layout_piece(numel, block, w->size, p);
        assert_true(piece.first == at && piece.end >= at &&
                    (piece.end % block == 0 || piece.end == numel));
        elements[p] = piece.end - piece.first;
        spread[p] = (w->size - 1) * elements[p];
        for (int other = 0; other < w->size; other++)
            if (host_of(w, other) != host_of(w, p))
                spread_far[p] += elements[p];
        at = piece.end;
    }
    assert_true(at == numel);
    for (int i = 0; i < n1; i++)
        if (stage1[i].from != stage1[i].to)
            sent[stage1[i].from] += elements[stage1[i].piece];
    for (int i = 0; i < n2; i++)
        if (stage2[i].from != stage2[i].to)
            far[stage2[i].from] += elements[stage2[i].piece];
    for (int r = 0; r < w->size; r++) {
        const int64_t all = sent[r] + far[r];
        assert_true(dpt_reduce_bytes_sent(w, numel, block, r, true, 4) == 4 * (all + spread[r]));
        assert_true(dpt_reduce_bytes_sent(w, numel, block, r, false, 4) == 4 * all);
        assert_true(dpt_reduce_bytes_sent(w, numel, block, r, false, 2) ==
                    4 * sent[r] + 2 * far[r]);
        assert_true(dpt_reduce_bytes_sent(w, numel, block, r, true, 2) ==
                    4 * (all + spread[r]) - 2 * (far[r] + spread_far[r]));
    }
}

static void play_reduction(const struct dpt_world *w)
{
    for (int p = 0; p < w->size; p++) {
        own[p].n = 0;
        const struct dpt_range run = dpt_position_lanes(w->lanes, w->size, p);
        for (int lane = run.first; lane < run.end; lane++)
            push(&own[p], w->lanes, run, (struct dpt_range){lane, lane + 1}, leaf(lane));
    }
    const int n1 = dpt_reduce_stage1(w, stage1, TRANSFERS_MAX);
    const int n2 = dpt_reduce_stage2(w, stage2, TRANSFERS_MAX);
    assert_true(n1 <= TRANSFERS_MAX && n2 <= TRANSFERS_MAX);
    assert_int_equal(dpt_reduce_stage1(w, NULL, 0), n1);
    assert_int_equal(dpt_reduce_stage2(w, NULL, 0), n2);
    const bool one_host = w->host_of_position[0] == w->host_of_position[w->size - 1];
    assert_int_equal(n2 == 0, one_host);
    for (int piece = 0; piece < w->size; piece++)
        play_piece(w, piece, n1, n2);
    check_bytes(w, n1, n2, 1000, 7);
    check_bytes(w, n1, n2, 3, 7); /* less blocks than ranks: empty pieces */
    check_bytes(w, n1, n2, 0, 7);
}

/* Ranks in order, reversed, and shuffled by a stride: positions and ranks are not the same thing.
 */
static void play_ranks(int lanes, int size, const int *hosts)
{
    for (int kind = 0; kind < 3; kind++) {
        int ranks[WORLD_MAX];
        for (int p = 0; p < size; p++)
            ranks[p] = kind == 0 ? p : size - 1 - p;
        if (kind == 2)
            for (int p = 0; p < size; p++) {
                const int other = (p * 7 + 3) % size, kept = ranks[p];
                ranks[p] = ranks[other];
                ranks[other] = kept;
            }
        play_reduction(&(struct dpt_world){lanes, size, ranks, hosts, NULL, NULL});
    }
}

static void every_world_and_layout_of_hosts(void **state)
{
    (void)state;
    for (int lanes = 1; lanes <= 17; lanes++)
        for (int size = 1; size <= lanes && size <= 7; size++)
            for (unsigned cuts = 0; cuts < 1u << (size - 1); cuts++) {
                int hosts[WORLD_MAX] = {0};
                for (int p = 1; p < size; p++)
                    hosts[p] = hosts[p - 1] + (cuts >> (p - 1) & 1 ? 2 : 0);
                play_ranks(lanes, size, hosts);
            }
}

static void larger_worlds(void **state)
{
    (void)state;
    static const int lanes[] = {8, 13, 16, 17, 31, 64, 100};
    for (size_t l = 0; l < sizeof lanes / sizeof lanes[0]; l++)
        for (int size = 8; size <= lanes[l] && size <= WORLD_MAX; size += size < 18 ? 1 : 11)
            for (int per_host = 1; per_host <= size; per_host = per_host * 2 + 1) {
                int hosts[WORLD_MAX];
                for (int p = 0; p < size; p++)
                    hosts[p] = p / per_host;
                play_ranks(lanes[l], size, hosts);
            }
}

static void even_worlds_send_what_a_ring_does(void **state)
{
    (void)state;
    const int ranks[] = {0, 1, 2, 3}, hosts[] = {0, 0, 0, 0};
    const struct dpt_world w = {8, 4, ranks, hosts, NULL, NULL};
    for (int r = 0; r < 4; r++) /* 2 (n - 1) / n of the vector, as a ring does */
        assert_true(dpt_reduce_bytes_sent(&w, 4096, 64, r, true, 4) == 2 * 3 * 1024 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_and_layout_of_hosts),
        cmocka_unit_test(larger_worlds),
        cmocka_unit_test(even_worlds_send_what_a_ring_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
