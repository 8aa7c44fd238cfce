/* The assignment of an evaluation: every sequence once, in order, in batches that no world changes.
 */
#include "worker/plan/eval_batches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void as_many_as_fit(void **state)
{
    (void)state;
    assert_int_equal(dpt_eval_batches_samples(100, 64, 1 << 20), 100);
    assert_int_equal(dpt_eval_batches_samples(100, 64, 64 * 99), 99);
    assert_int_equal(dpt_eval_batches_samples(100, 64, 64 * 99 + 63), 99); /* whole ones only */
    assert_int_equal(dpt_eval_batches_samples(100, 64, 1), 1);
    assert_int_equal(dpt_eval_batches_samples(1, 64, 1 << 20), 1);
    assert_int_equal(dpt_eval_batches_samples(INT64_C(1) << 40, 1, INT64_C(1000000000000)),
                     INT64_C(1000000000000));
}

/* Batches of one world in the order in which they are summed: round by round, rank by rank. */
static void check_world(int64_t samples, int micro_batch, int64_t done, int world)
{
    int64_t next = done * micro_batch,
            rounds = dpt_eval_batches_rounds(samples, micro_batch, done, world);
    for (int64_t round = 0; round < rounds; round++)
        for (int rank = 0; rank < world; rank++) {
            struct dpt_sample_range s =
                dpt_eval_batches_of_rank(samples, micro_batch, done, world, round, rank);
            assert_int_equal(s.first, next);
            /* The cut is the config's: whole batches, and one short one at the very end. */
            assert_true(s.end - s.first == micro_batch || s.end == samples);
            assert_true(s.end - s.first >= 0 && s.end - s.first <= micro_batch);
            next = s.end;
        }
    assert_int_equal(next, samples);
    /* No round is without work. */
    struct dpt_sample_range last =
        dpt_eval_batches_of_rank(samples, micro_batch, done, world, rounds - 1, 0);
    assert_true(last.end > last.first);
    struct dpt_sample_range past =
        dpt_eval_batches_of_rank(samples, micro_batch, done, world, rounds, 0);
    assert_int_equal(past.first, past.end);
}

static void every_sequence_once_and_in_order(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 7, 8, 9, 63, 64, 65, 1000};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int micro_batch = 1; micro_batch <= 9; micro_batch += 4)
            for (int world = 1; world <= 16; world++)
                for (int64_t done = 0; done < dpt_eval_batches_count(counts[i], micro_batch);
                     done += 5)
                    check_world(counts[i], micro_batch, done, world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_as_fit),
        cmocka_unit_test(every_sequence_once_and_in_order),
    };
    return cmocka_run_group_tests_name("plan evaluation", tests, NULL, NULL);
}
