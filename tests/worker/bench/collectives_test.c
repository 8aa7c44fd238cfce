/* The arithmetic and the pictures of dpt-bench collectives. */
#include "worker/bench/collective_math.h"
#include "worker/bench/collectives_table.h"
#include "worker/bench/pattern_picture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMEL = 4 * 4 * 300, LINE_BYTES = 512 };

static void bus_factors_of_nccl_tests(void **state)
{
    (void)state;
    static const struct {
        enum dpt_collective collective;
        int n_ranks;
        double factor;
    } cases[] = {{DPT_COLLECTIVE_ALL_REDUCE, 2, 1},        {DPT_COLLECTIVE_ALL_REDUCE, 4, 1.5},
                 {DPT_COLLECTIVE_ALL_REDUCE, 8, 1.75},     {DPT_COLLECTIVE_ALL_GATHER, 4, 0.75},
                 {DPT_COLLECTIVE_REDUCE_SCATTER, 8, .875}, {DPT_COLLECTIVE_BROADCAST, 8, 1},
                 {DPT_COLLECTIVE_SEND_RECV, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_true(collective_bus_factor(cases[i].collective, cases[i].n_ranks) ==
                    cases[i].factor);
}

static void sizes_are_read(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes;
    } right[] = {{"1024", 1024}, {"1K", 1024}, {"26M", 26 << 20}, {"1G", 1 << 30}};
    static const char *const wrong[] = {"",    "K",   "1k",   "1.5M",
                                        "-1K", "1T",  "K1",   "99999999999999999999",
                                        "1 K", "1KM", "1023", "9000000000000G"};
    struct dpt_err err;
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        int64_t bytes = 0;
        assert_int_equal(collective_parse_size(right[i].text, 1024, INT64_C(1) << 40, &bytes, &err),
                         DPT_OK);
        assert_int_equal(bytes, right[i].bytes);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t bytes = 7;
        if (collective_parse_size(wrong[i], 1024, INT64_C(1) << 40, &bytes, &err) != DPT_EINVAL ||
            bytes != 7)
            fail_msg("'%s' is taken for %lld bytes", wrong[i], (long long)bytes);
    }
    assert_string_equal(err.text, "expected bytes from 1024 to 1099511627776 such as 4096, 1K, 26M "
                                  "or 1G, got '9000000000000G'");
}

static void sizes_grow_by_the_factor(void **state)
{
    (void)state;
    int64_t sizes[4];
    assert_int_equal(collective_sizes(1024, 1 << 20, 8, sizes, 4), 4);
    assert_int_equal(sizes[3], 512 * 1024);
    assert_int_equal(collective_sizes(1024, 1 << 30, 2, sizes, 4), 4);
    assert_int_equal(collective_sizes(1000, 1000, 2, sizes, 4), 1);
}

static void counts_are_those_of_nccl_tests(void **state)
{
    (void)state;
    assert_int_equal(collective_numel(DPT_COLLECTIVE_ALL_REDUCE, 3, 1024), 256);
    assert_int_equal(collective_count(DPT_COLLECTIVE_ALL_REDUCE, 3, 256), 256);
    /* Shares of 16 bytes: 1024 bytes are 21 shares of 16 bytes for each of three ranks. */
    assert_int_equal(collective_numel(DPT_COLLECTIVE_ALL_GATHER, 3, 1024), 252);
    assert_int_equal(collective_count(DPT_COLLECTIVE_REDUCE_SCATTER, 3, 252), 84);
}

/* What a rank must have, made by the definition of each collective. */
static void make_result(struct collective_result *result, float *vector)
{
    static float of_rank[NUMEL];
    const int n = result->n_ranks;
    memset(vector, 0, NUMEL * sizeof *vector);
    for (int rank = 0; rank < n; rank++) {
        collective_fill(of_rank, NUMEL, rank);
        for (int i = 0; i < NUMEL; i++) {
            const int chunk = i / (NUMEL / n);
            const bool sums =
                result->collective == DPT_COLLECTIVE_ALL_REDUCE ||
                (result->collective == DPT_COLLECTIVE_REDUCE_SCATTER && chunk == result->rank);
            if (sums)
                vector[i] += of_rank[i];
            if ((result->collective == DPT_COLLECTIVE_ALL_GATHER && chunk == rank) ||
                (result->collective == DPT_COLLECTIVE_BROADCAST && rank == result->root) ||
                (result->collective == DPT_COLLECTIVE_SEND_RECV && (rank + 1) % n == result->rank))
                vector[i] = of_rank[i];
        }
    }
}

static void wrong_elements_are_counted(void **state)
{
    (void)state;
    static float vector[NUMEL];
    for (int c = 0; c < DPT_COLLECTIVE_COUNT; c++)
        for (int n = 2; n <= 4; n++)
            for (int rank = 0; rank < n; rank++) {
                struct collective_result result = {.collective = (enum dpt_collective)c,
                                                   .n_ranks = n,
                                                   .rank = rank,
                                                   .root = n - 1,
                                                   .vector = vector,
                                                   .numel = NUMEL};
                const int own = NUMEL / n * rank;
                make_result(&result, vector);
                assert_int_equal(collective_wrong(&result), 0);
                vector[own] += 1;
                vector[own + 17] = NAN;
                assert_int_equal(collective_wrong(&result), 2);
                make_result(&result, vector);
                /* A chunk that is moved by one place. */
                memmove(vector + own + 1, vector + own, 99 * sizeof *vector);
                assert_int_equal(collective_wrong(&result), 99);
            }
}

static void other_chunks_of_a_reduce_scatter_are_free(void **state)
{
    (void)state;
    static float vector[NUMEL];
    struct collective_result result = {.collective = DPT_COLLECTIVE_REDUCE_SCATTER,
                                       .n_ranks = 4,
                                       .rank = 2,
                                       .vector = vector,
                                       .numel = NUMEL};
    make_result(&result, vector);
    vector[0] = 12345;
    vector[NUMEL - 1] = 12345;
    assert_int_equal(collective_wrong(&result), 0);
}

/* All-reduce of 4 MiB in 1 ms by four ranks: 4.19 GB/s and 1.5 times that. */
static void a_row_has_the_columns_of_nccl_tests(void **state)
{
    (void)state;
    const struct collective_row row = {
        .collective = DPT_COLLECTIVE_ALL_REDUCE,
        .n_ranks = 4,
        .numel = 1 << 20,
        .form = {{.measured = false}, {.measured = true, .us = 1000, .wrong = 3}}};
    struct collective_total total = {.n = 0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    collective_print_row(out, &row);
    collective_total_add(&total, &row);
    collective_print_total(out, &total);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, "     4194304       1048576     float     sum      -1"
                              "      N/A     N/A     N/A    N/A   1000.0    4.19    6.29      3\n"
                              "# Out of bounds values : 3 FAILED\n"
                              "# Avg bus bandwidth    : 6.29146\n#\n");
    free(text);
}

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at += strlen(word))
        n++;
    return n;
}

static void make_world(int n, int *ranks, int *hosts, struct dpt_world *ret)
{
    for (int i = 0; i < n; i++) {
        ranks[i] = i;
        hosts[i] = 0;
    }
    *ret = (struct dpt_world){
        .lanes = n, .size = n, .rank_of_position = ranks, .host_of_position = hosts};
}

/* A frame for the beginning and each step, an arrow for each move, a node for each rank. */
static void pictures_have_every_move(void **state)
{
    (void)state;
    for (int kind = 0; kind < DPT_COLLECTIVE_COUNT * DPT_ALGORITHM_COUNT; kind++)
        for (int n = 2; n <= PATTERN_PICTURE_RANKS_MAX; n += 3) {
            int ranks[PATTERN_PICTURE_RANKS_MAX], hosts[PATTERN_PICTURE_RANKS_MAX];
            struct dpt_world world;
            struct dpt_pattern pattern;
            struct dpt_err err;
            char *text = NULL;
            size_t bytes = 0;
            make_world(n, ranks, hosts, &world);
            const struct dpt_pattern_spec spec = {
                .collective = (enum dpt_collective)(kind % DPT_COLLECTIVE_COUNT),
                .algorithm = (enum dpt_algorithm)(kind / DPT_COLLECTIVE_COUNT),
                .world = &world};
            assert_int_equal(dpt_pattern_init(&pattern, &spec, &err), DPT_OK);
            FILE *out = open_memstream(&text, &bytes);
            assert_non_null(out);
            assert_int_equal(pattern_picture_write(out, &pattern, &err), DPT_OK);
            assert_int_equal(fclose(out), 0);
            const int frames = pattern.n_steps + 1;
            assert_int_equal(count_of(text, "class=\"step-frame\""), frames);
            assert_int_equal(count_of(text, "class=\"node host"), frames * n);
            /* Two more are in the legend. */
            assert_int_equal(count_of(text, "<path class=\"move"),
                             pattern.first_move[pattern.n_steps] + 2);
            free(text);
            dpt_pattern_fini(&pattern);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bus_factors_of_nccl_tests),
        cmocka_unit_test(sizes_are_read),
        cmocka_unit_test(sizes_grow_by_the_factor),
        cmocka_unit_test(counts_are_those_of_nccl_tests),
        cmocka_unit_test(wrong_elements_are_counted),
        cmocka_unit_test(other_chunks_of_a_reduce_scatter_are_free),
        cmocka_unit_test(a_row_has_the_columns_of_nccl_tests),
        cmocka_unit_test(pictures_have_every_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
