/* Patterns of collectives, carried out symbolically (sets of lanes) and with numbers. */
#include "worker/plan/pattern.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>

enum { RANKS_MAX = 16, CELLS_MAX = RANKS_MAX * RANKS_MAX, NUMEL_MAX = 1100 };

/* A world of `n` ranks on `hosts` hosts; rank numbers run against the positions if `turned`. */
struct sample {
    int rank_of_position[RANKS_MAX], host_of_position[RANKS_MAX];
    struct dpt_world world;
};

static void make_world(struct sample *s, int n, int lanes, int hosts, bool turned)
{
    for (int p = 0; p < n; p++) {
        s->rank_of_position[p] = turned ? n - 1 - p : p;
        s->host_of_position[p] = p * hosts / n;
    }
    s->world = (struct dpt_world){.lanes = lanes,
                                  .size = n,
                                  .rank_of_position = s->rank_of_position,
                                  .host_of_position = s->host_of_position};
}

static void make_pattern(struct dpt_pattern *pattern, const struct sample *s,
                         enum dpt_collective collective, enum dpt_algorithm algorithm)
{
    const struct dpt_pattern_spec spec = {.collective = collective,
                                          .algorithm = algorithm,
                                          .world = &s->world,
                                          .root = s->world.size / 2};
    struct dpt_err err;
    if (dpt_pattern_init(pattern, &spec, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void reach_goal(const struct dpt_pattern *pattern, const char *what)
{
    static uint64_t held[CELLS_MAX], before[CELLS_MAX];
    dpt_pattern_start(pattern, held);
    for (int step = 0; step < pattern->n_steps; step++)
        if (!dpt_pattern_apply(pattern, step, held, before))
            fail_msg("%s: step %d sends what is not there or adds a lane twice", what, step);
    for (int rank = 0; rank < pattern->n_ranks; rank++)
        for (int chunk = 0; chunk < pattern->n_chunks; chunk++) {
            const uint64_t goal = dpt_pattern_goal(pattern, rank, chunk);
            if (goal != 0 && pattern->n_ranks > 1 && held[rank * pattern->n_chunks + chunk] != goal)
                fail_msg("%s: rank %d has %llx of chunk %d", what, rank,
                         (unsigned long long)held[rank * pattern->n_chunks + chunk], chunk);
        }
}

/* A rank may send from memory that it writes only if these are not the same chunk. */
static void steps_do_not_clash(const struct dpt_pattern *pattern, const char *what)
{
    for (int step = 0; step < pattern->n_steps; step++)
        for (int i = pattern->first_move[step]; i < pattern->first_move[step + 1]; i++)
            for (int j = pattern->first_move[step]; j < pattern->first_move[step + 1]; j++)
                if (pattern->moves[i].to == pattern->moves[j].from &&
                    pattern->moves[i].chunk == pattern->moves[j].chunk &&
                    pattern->spec.collective != DPT_COLLECTIVE_SEND_RECV)
                    fail_msg("%s: rank %d sends and writes chunk %d in step %d", what,
                             pattern->moves[i].to, pattern->moves[i].chunk, step);
}

static void every_pattern_reaches_its_goal(void **state)
{
    (void)state;
    static struct sample s;
    for (int n = 1; n <= RANKS_MAX; n++)
        for (int hosts = 1; hosts <= n && hosts <= 4; hosts++)
            for (int lanes = n; lanes <= n + 5; lanes++)
                for (int kind = 0; kind < DPT_COLLECTIVE_COUNT * DPT_ALGORITHM_COUNT; kind++) {
                    const enum dpt_collective collective =
                        (enum dpt_collective)(kind % DPT_COLLECTIVE_COUNT);
                    const enum dpt_algorithm algorithm =
                        (enum dpt_algorithm)(kind / DPT_COLLECTIVE_COUNT);
                    char what[96];
                    struct dpt_pattern pattern;
                    make_world(&s, n, lanes, hosts, lanes % 2 == 1);
                    make_pattern(&pattern, &s, collective, algorithm);
                    (void)snprintf(what, sizeof what, "%s %s, %d ranks, %d lanes, %d hosts",
                                   dpt_algorithm_name(algorithm), dpt_collective_name(collective),
                                   n, lanes, hosts);
                    reach_goal(&pattern, what);
                    steps_do_not_clash(&pattern, what);
                    if (n == 1)
                        assert_int_equal(pattern.n_steps, 0);
                    dpt_pattern_fini(&pattern);
                }
}

static void ring_has_its_steps_and_neighbours(void **state)
{
    (void)state;
    static struct sample s;
    for (int n = 2; n <= RANKS_MAX; n++) {
        static const int steps_per_neighbour[DPT_COLLECTIVE_COUNT] = {2, 1, 1, 1, 0};
        make_world(&s, n, n, 1, false);
        for (int c = 0; c < DPT_COLLECTIVE_COUNT; c++) {
            struct dpt_pattern pattern;
            make_pattern(&pattern, &s, (enum dpt_collective)c, DPT_ALGORITHM_RING);
            assert_int_equal(pattern.n_steps,
                             c == DPT_COLLECTIVE_SEND_RECV ? 1 : steps_per_neighbour[c] * (n - 1));
            for (int i = 0; i < pattern.first_move[pattern.n_steps]; i++)
                assert_int_equal(pattern.moves[i].to, (pattern.moves[i].from + 1) % n);
            dpt_pattern_fini(&pattern);
        }
    }
}

/* The chunk indices of four ranks, as the literature draws them. */
static void ring_all_reduce_of_four(void **state)
{
    (void)state;
    static struct sample s;
    static const int chunk_of_rank[6][4] = {{3, 0, 1, 2}, {2, 3, 0, 1}, {1, 2, 3, 0},
                                            {0, 1, 2, 3}, {3, 0, 1, 2}, {2, 3, 0, 1}};
    struct dpt_pattern pattern;
    make_world(&s, 4, 4, 1, false);
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_RING);
    assert_int_equal(pattern.n_steps, 6);
    for (int step = 0; step < 6; step++) {
        assert_int_equal(pattern.first_move[step + 1] - pattern.first_move[step], 4);
        for (int i = 0; i < 4; i++) {
            const struct dpt_move *move = &pattern.moves[pattern.first_move[step] + i];
            assert_int_equal(move->chunk, chunk_of_rank[step][move->from]);
            assert_int_equal(move->add, step < 3);
        }
    }
    dpt_pattern_fini(&pattern);
}

/* Of an all-reduce every rank sends 2(n-1) of n chunks, by a ring and directly. */
static void all_reduce_sends_the_least(void **state)
{
    (void)state;
    static struct sample s;
    for (int n = 2; n <= RANKS_MAX; n++)
        for (int algorithm = 0; algorithm < DPT_ALGORITHM_COUNT; algorithm++) {
            struct dpt_pattern pattern;
            make_world(&s, n, n, 1, false);
            make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, (enum dpt_algorithm)algorithm);
            for (int rank = 0; rank < n; rank++)
                assert_int_equal(dpt_pattern_sends(&pattern, rank), 2 * (n - 1));
            dpt_pattern_fini(&pattern);
        }
}

/* Between two hosts of two ranks the direct all-reduce has a step inside the hosts, one between
 * them, and the all-gather. */
static void direct_sums_go_through_hosts(void **state)
{
    (void)state;
    static struct sample s;
    struct dpt_pattern pattern;
    make_world(&s, 4, 4, 2, false);
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_DIRECT);
    assert_int_equal(pattern.n_steps, 3);
    for (int i = 0; i < pattern.first_move[1]; i++)
        assert_int_equal(pattern.moves[i].from / 2, pattern.moves[i].to / 2);
    for (int i = pattern.first_move[1]; i < pattern.first_move[2]; i++) {
        assert_int_not_equal(pattern.moves[i].from / 2, pattern.moves[i].to / 2);
        assert_int_equal(pattern.moves[i].lanes.end - pattern.moves[i].lanes.first, 2);
    }
    dpt_pattern_fini(&pattern);
    make_world(&s, 3, 3, 3, false); /* one rank a host: nothing to do inside */
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_DIRECT);
    assert_int_equal(pattern.n_steps, 2);
    dpt_pattern_fini(&pattern);
}

static void parts_cover_the_vector(void **state)
{
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 15, 16, 17, 1000, 1023, 4099};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int n = 1; n <= RANKS_MAX; n++)
            for (int n_parts = 1; n_parts <= 5; n_parts++) {
                int64_t at = 0;
                for (int chunk = 0; chunk < n; chunk++)
                    for (int part = 0; part < n_parts; part++) {
                        const struct dpt_interval x =
                            dpt_pattern_part(sizes[i], n, chunk, n_parts, part);
                        if (x.end == x.first)
                            continue;
                        assert_int_equal(x.first, at);
                        at = x.end;
                    }
                assert_int_equal(at, sizes[i]);
            }
}

static float value_of(int rank, int64_t i)
{
    return (float)((rank + 1) * (1 + (int)(i % 61)));
}

/* Adds vectors of `numel` floats of `n` ranks by the moves of the ring. */
static void ring_adds_vector(int n, int64_t numel)
{
    static float vector[RANKS_MAX][NUMEL_MAX], before[RANKS_MAX][NUMEL_MAX];
    static struct sample s;
    struct dpt_pattern pattern;
    make_world(&s, n, n, 1, false);
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_RING);
    for (int rank = 0; rank < n; rank++)
        for (int64_t i = 0; i < numel; i++)
            vector[rank][i] = value_of(rank, i);
    for (int step = 0; step < pattern.n_steps; step++) {
        memcpy(before, vector, sizeof before);
        for (int m = pattern.first_move[step]; m < pattern.first_move[step + 1]; m++) {
            const struct dpt_move *move = &pattern.moves[m];
            const struct dpt_interval x = dpt_pattern_part(numel, n, move->chunk, 1, 0);
            for (int64_t i = x.first; i < x.end; i++)
                vector[move->to][i] = before[move->from][i] + (move->add ? before[move->to][i] : 0);
        }
    }
    for (int rank = 0; rank < n; rank++)
        for (int64_t i = 0; i < numel; i++)
            if (vector[rank][i] != value_of(n * (n + 1) / 2 - 1, i))
                fail_msg("%d ranks, %d elements: rank %d has %g at %d", n, (int)numel, rank,
                         (double)vector[rank][i], (int)i);
    dpt_pattern_fini(&pattern);
}

static void ring_adds_vectors_of_any_size(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 1000, 1024, 1033};
    for (int n = 1; n <= RANKS_MAX; n++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            ring_adds_vector(n, sizes[i]);
}

/* The check itself finds wrong moves. */
static void wrong_moves_are_found(void **state)
{
    (void)state;
    static struct sample s;
    static uint64_t held[CELLS_MAX], before[CELLS_MAX];
    struct dpt_pattern pattern;
    make_world(&s, 3, 3, 1, false);
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_REDUCE, DPT_ALGORITHM_RING);
    dpt_pattern_start(&pattern, held);
    assert_true(dpt_pattern_apply(&pattern, 0, held, before));
    assert_false(dpt_pattern_apply(&pattern, 0, held, before)); /* the same lanes again */
    dpt_pattern_fini(&pattern);
    make_pattern(&pattern, &s, DPT_COLLECTIVE_ALL_GATHER, DPT_ALGORITHM_RING);
    dpt_pattern_start(&pattern, held);
    assert_false(dpt_pattern_apply(&pattern, 1, held, before)); /* what has not arrived */
    dpt_pattern_fini(&pattern);
}

/* A rank's own list is the part of the whole list that names it, in the same order and steps. */
static void list_of_one_rank(void **state)
{
    (void)state;
    static struct sample s;
    for (int kind = 0; kind < DPT_COLLECTIVE_COUNT * DPT_ALGORITHM_COUNT; kind++)
        for (int n = 2; n <= 7; n++) {
            struct dpt_pattern whole, own;
            struct dpt_err err;
            struct dpt_pattern_spec spec = {
                .collective = (enum dpt_collective)(kind % DPT_COLLECTIVE_COUNT),
                .algorithm = (enum dpt_algorithm)(kind / DPT_COLLECTIVE_COUNT),
                .world = &s.world};
            make_world(&s, n, n, 2, false);
            assert_int_equal(dpt_pattern_init(&whole, &spec, &err), DPT_OK);
            spec.of_rank = true;
            spec.rank = n - 1;
            assert_int_equal(dpt_pattern_init(&own, &spec, &err), DPT_OK);
            assert_int_equal(own.n_steps, whole.n_steps);
            for (int step = 0, at = 0; step < whole.n_steps; step++) {
                for (int i = whole.first_move[step]; i < whole.first_move[step + 1]; i++)
                    if (whole.moves[i].from == n - 1 || whole.moves[i].to == n - 1)
                        assert_memory_equal(&whole.moves[i], &own.moves[at++],
                                            sizeof whole.moves[i]);
                assert_int_equal(own.first_move[step + 1], at);
            }
            dpt_pattern_fini(&whole);
            dpt_pattern_fini(&own);
        }
}

/* The largest world of a run. */
static void ring_of_a_thousand_ranks(void **state)
{
    (void)state;
    enum { N = 1024 };
    static int ranks[N], hosts[N];
    struct dpt_pattern pattern;
    struct dpt_err err;
    for (int i = 0; i < N; i++)
        ranks[i] = i;
    const struct dpt_world world = {
        .lanes = N, .size = N, .rank_of_position = ranks, .host_of_position = hosts};
    const struct dpt_pattern_spec spec = {
        .algorithm = DPT_ALGORITHM_RING, .world = &world, .of_rank = true, .rank = 5};
    assert_int_equal(dpt_pattern_init(&pattern, &spec, &err), DPT_OK);
    assert_int_equal(pattern.n_steps, 2 * (N - 1));
    assert_int_equal(pattern.first_move[pattern.n_steps], 2 * pattern.n_steps);
    assert_int_equal(dpt_pattern_sends(&pattern, 5), 2 * (N - 1));
    dpt_pattern_fini(&pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_reaches_its_goal),
        cmocka_unit_test(ring_has_its_steps_and_neighbours),
        cmocka_unit_test(ring_all_reduce_of_four),
        cmocka_unit_test(all_reduce_sends_the_least),
        cmocka_unit_test(direct_sums_go_through_hosts),
        cmocka_unit_test(parts_cover_the_vector),
        cmocka_unit_test(ring_adds_vectors_of_any_size),
        cmocka_unit_test(wrong_moves_are_found),
        cmocka_unit_test(list_of_one_rank),
        cmocka_unit_test(ring_of_a_thousand_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
