/* The fold of an evaluation's rounds: one sum in every world, bit for bit; ranks that have gone
 * apart are refused; re-formation stops it. */
#include "worker/train/state/eval_sums.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { WORLD_MAX = 7, STEP = 40, SEQUENCES = 53, MICRO_BATCH = 4 };

static struct dpt_err err;
static const struct dpt_eval_part start = {.step = STEP};

/* A batch's loss, of sizes so different that the order of adding shows. */
static double loss_of(struct dpt_sample_range batch)
{
    double sum = 0;
    for (int64_t i = batch.first; i < batch.end; i++)
        sum += ldexp(1.0 + 1.0 / (double)(3 + i), (int)(i * 7 % 40) - 20);
    return sum;
}

/* Each third sample. */
static int64_t right_of(struct dpt_sample_range batch)
{
    int64_t right = 0;
    for (int64_t i = batch.first; i < batch.end; i++)
        right += i % 3 == 0;
    return right;
}

static struct dpt_eval_share share_of(const struct dpt_eval_sums *e, int rank)
{
    const struct dpt_sample_range batch = dpt_eval_sums_batch(e, rank);
    return (struct dpt_eval_share){.step = STEP,
                                   .round = e->round,
                                   .first = batch.first,
                                   .sum = loss_of(batch),
                                   .right = right_of(batch)};
}

static void share_all(const struct dpt_eval_sums *e, struct dpt_eval_share *all)
{
    for (int rank = 0; rank < e->world; rank++)
        all[rank] = share_of(e, rank);
}

static double whole_sum(int world)
{
    struct dpt_eval_share all[WORLD_MAX];
    struct dpt_eval_sums e;
    dpt_eval_sums_begin(&e, &start, SEQUENCES, MICRO_BATCH, world);
    while (e.round < e.rounds) {
        share_all(&e, all);
        assert_int_equal(dpt_eval_sums_combine(&e, all, &err), DPT_OK);
        assert_false(e.reform || e.all_leave);
    }
    assert_int_equal(e.right, right_of((struct dpt_sample_range){0, SEQUENCES}));
    return e.sum;
}

static void one_sum_in_every_world(void **state)
{
    (void)state;
    const double sum = whole_sum(1);
    for (int world = 2; world <= WORLD_MAX; world++) {
        const double other = whole_sum(world);
        assert_memory_equal(&other, &sum, sizeof sum);
    }
}

/* A round of one world, then of another, to the end: no batch twice, none left out, the same bits.
 */
static void through_changing_worlds(void **state)
{
    (void)state;
    const double sum = whole_sum(1);
    for (int first = 1; first <= WORLD_MAX; first++) {
        struct dpt_eval_share all[WORLD_MAX];
        struct dpt_eval_part part = start;
        struct dpt_eval_sums e;
        for (int world = first; part.batches < (SEQUENCES + MICRO_BATCH - 1) / MICRO_BATCH;
             world = world % WORLD_MAX + 1) {
            dpt_eval_sums_begin(&e, &part, SEQUENCES, MICRO_BATCH, world);
            share_all(&e, all);
            assert_int_equal(dpt_eval_sums_combine(&e, all, &err), DPT_OK);
            part = dpt_eval_sums_part(&e);
        }
        assert_int_equal(e.round, e.rounds);
        assert_int_equal(part.step, STEP);
        assert_memory_equal(&part.sum, &sum, sizeof sum);
        assert_int_equal(part.right, right_of((struct dpt_sample_range){0, SEQUENCES}));
    }
}

/* The case above can fail: in another order the sum is another. */
static void sum_in_another_order_differs(void **state)
{
    (void)state;
    double backwards = 0;
    for (int64_t first = SEQUENCES / MICRO_BATCH * MICRO_BATCH; first >= 0; first -= MICRO_BATCH) {
        const int64_t end = first + MICRO_BATCH < SEQUENCES ? first + MICRO_BATCH : SEQUENCES;
        backwards += loss_of((struct dpt_sample_range){first, end});
    }
    assert_true(backwards != whole_sum(1));
}

static void ranks_that_have_gone_apart(void **state)
{
    (void)state;
    static const struct {
        struct dpt_eval_share change; /* added to rank 1's */
        const char *said;
    } cases[] = {
        {{.step = 1}, "rank 1 is in round 0 of the evaluation at step 41"},
        {{.round = 1}, "rank 1 is in round 1"},
        {{.first = 1}, "rank 1 evaluated samples from 5 on"},
        {{.reform = 2}, "flags 2 and 0"},
        {{.leaving = 2}, "flags 0 and 2"},
        {{.right = 4}, "rank 1 predicted 5 labels of 4 samples"},
        {{.right = -2}, "rank 1 predicted -1 labels of 4 samples"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dpt_eval_share all[3];
        struct dpt_eval_sums e;
        dpt_eval_sums_begin(&e, &start, SEQUENCES, MICRO_BATCH, 3);
        share_all(&e, all);
        struct dpt_eval_share *share = &all[1];
        share->step += cases[i].change.step;
        share->round += cases[i].change.round;
        share->right += cases[i].change.right;
        share->first += cases[i].change.first;
        share->reform += cases[i].change.reform;
        share->leaving += cases[i].change.leaving;
        assert_int_equal(dpt_eval_sums_combine(&e, all, &err), DPT_EPROTO);
        assert_non_null(strstr(err.text, cases[i].said));
        assert_true(e.sum == 0 && e.round == 0);
    }
}

static void leave_of_any_rank_is_seen(void **state)
{
    (void)state;
    struct dpt_eval_share all[2];
    for (int who = 0; who < 4; who++) { /* a bit for each rank */
        struct dpt_eval_sums e;
        dpt_eval_sums_begin(&e, &start, SEQUENCES, MICRO_BATCH, 2);
        for (int rank = 0; rank < 2; rank++) {
            all[rank] = share_of(&e, rank);
            all[rank].reform = all[rank].leaving = who >> rank & 1;
        }
        assert_int_equal(dpt_eval_sums_combine(&e, all, &err), DPT_OK);
        assert_true(e.reform == (who != 0));
        assert_true(e.all_leave == (who == 3));
        assert_int_equal(e.round, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_sum_in_every_world),
        cmocka_unit_test(through_changing_worlds),
        cmocka_unit_test(sum_in_another_order_differs),
        cmocka_unit_test(ranks_that_have_gone_apart),
        cmocka_unit_test(leave_of_any_rank_is_seen),
    };
    return cmocka_run_group_tests_name("evaluation", tests, NULL, NULL);
}
