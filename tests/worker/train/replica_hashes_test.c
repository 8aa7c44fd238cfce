/* The comparison of the ranks' hashes: equal hashes, the rank named for a different one, invalid
 * messages. */
#include "worker/train/step/replica_hashes.h"

#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { WORLD_MAX = 5, STEP = 12 };

static struct dpt_replica_hashes shares[WORLD_MAX];
static struct dpt_err err;

/* Every rank holds the whole state, as with ddp. */
static void replicas(int world)
{
    for (int rank = 0; rank < world; rank++)
        shares[rank] = (struct dpt_replica_hashes){
            .step = STEP, .part = {{.shard = {0, 1}, .hash = {7, 8}}, {.shard = {0, 0}}}};
}

/* Rank r holds shard r and covers for the one before it. */
static void shadows(int world)
{
    for (int rank = 0; rank < world; rank++) {
        const int other = (rank + world - 1) % world;
        shares[rank] = (struct dpt_replica_hashes){
            .step = STEP,
            .part = {{.shard = {rank, world}, .hash = {1, (uint64_t)rank}},
                     {.shard = {other, world}, .hash = {1, (uint64_t)other}}}};
    }
}

static enum dpt_status fold(int world)
{
    return dpt_replica_hashes_compare(shares, world, STEP, &err);
}

static void expect_corrupt(int world, const char *begin, const char *part)
{
    assert_int_equal(fold(world), DPT_ECORRUPT);
    if (strncmp(err.text, begin, strlen(begin)) != 0 || !strstr(err.text, part))
        fail_msg("'%s' does not begin with '%s' and say '%s'", err.text, begin, part);
}

static void equal_weights(void **state)
{
    (void)state;
    for (int world = 1; world <= WORLD_MAX; world++) {
        replicas(world);
        assert_int_equal(fold(world), DPT_OK);
        shadows(world);
        assert_int_equal(fold(world), DPT_OK);
    }
    /* A shard with one holder is not compared. */
    shadows(WORLD_MAX);
    for (int rank = 0; rank < WORLD_MAX; rank++) {
        shares[rank].part[0].hash.hi = (uint64_t)rank;
        shares[rank].part[1].shard = (struct dpt_shard){0, 0};
    }
    assert_int_equal(fold(WORLD_MAX), DPT_OK);
}

static void the_minority_is_blamed(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        replicas(3);
        shares[rank].part[0].hash.lo ^= 1;
        char begin[64];
        (void)snprintf(begin, sizeof begin,
                       "rank %d holds other weights or moments after step 12 than rank %d", rank,
                       rank == 0 ? 1 : 0);
        expect_corrupt(3, begin, "2 of the 3");
    }
    /* Two of five, with different hashes: the lower rank is named. */
    replicas(5);
    shares[4].part[0].hash.hi = 1;
    shares[1].part[0].hash.hi = 2;
    expect_corrupt(5, "rank 1 holds other weights", "than rank 0 and 3 of the 5");
}

static void of_two_none_is_blamed(void **state)
{
    (void)state;
    replicas(2);
    shares[0].part[0].hash.hi++;
    expect_corrupt(2, "rank 1 holds other weights or moments after step 12 than rank 0", "too few");
    replicas(4); /* two against two */
    shares[1].part[0].hash.hi = shares[2].part[0].hash.hi = 3;
    expect_corrupt(4, "rank 1 holds other weights or moments after step 12 than rank 0", "too few");
}

static void a_shadow_that_differs(void **state)
{
    (void)state;
    shadows(4);
    shares[3].part[1].hash.lo ^= 64; /* of shard 2 */
    expect_corrupt(4, "rank 3 holds other weights or moments after step 12 than rank 2", "too few");
}

static void another_step_is_refused(void **state)
{
    (void)state;
    replicas(3);
    shares[2].step++;
    assert_int_equal(fold(3), DPT_EPROTO);
    assert_non_null(strstr(err.text, "rank 2 compares its weights after step 13"));
}

static void shards_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct dpt_shard bad[] = {{0, -1}, {0, 4}, {3, 3}, {-1, 3}, {0, INT32_MIN}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int part = 0; part < DPT_REPLICA_PARTS; part++) {
            shadows(3);
            shares[1].part[part].shard = bad[i];
            assert_int_equal(fold(3), DPT_EPROTO);
            assert_non_null(strstr(err.text, "rank 1 holds shard"));
        }
}

static void random_bytes_do_no_harm(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        shadows(WORLD_MAX);
        assert_int_equal(fold(WORLD_MAX), DPT_OK);
        uint32_t block[4];
        dpt_philox(dpt_rng_key(seed, DPT_RNG_TEST, 4, 0, 0), 0, block);
        ((uint8_t *)shares)[block[0] % sizeof shares] ^= (uint8_t)(1 + block[1] % 255);
        const enum dpt_status status = fold(WORLD_MAX);
        assert_true(status == DPT_OK || status == DPT_EPROTO || status == DPT_ECORRUPT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_weights),
        cmocka_unit_test(the_minority_is_blamed),
        cmocka_unit_test(of_two_none_is_blamed),
        cmocka_unit_test(a_shadow_that_differs),
        cmocka_unit_test(another_step_is_refused),
        cmocka_unit_test(shards_that_cannot_be_are_refused),
        cmocka_unit_test(random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests_name("verification", tests, NULL, NULL);
}
