/* The bottleneck of times by hand. */
#include "worker/report/verdict.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 3, STEPS = 2, MS = 1000000 };

static const int rank_numbers[RANKS] = {0, 1, 5};

/* Each step of each rank: 80 ms of its own, 2 of data, 1 of saving, 3 of transfer. */
static void fill_even(struct report_step_times at[RANKS][STEPS])
{
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < STEPS; s++)
            at[r][s] = (struct report_step_times){.step_ns = 86.0 * MS,
                                                  .own_ns = 80.0 * MS,
                                                  .data_ns = 2.0 * MS,
                                                  .save_ns = 1.0 * MS,
                                                  .transfer_ns = 3.0 * MS,
                                                  .work = 512};
}

/* Rank `late` takes more time of one kind, and the others wait for it. */
static void add_lateness(struct report_step_times at[RANKS][STEPS], int late, int step, double ms)
{
    for (int r = 0; r < RANKS; r++) {
        at[r][step].step_ns += ms * MS;
        if (r != late)
            at[r][step].wait_ns += ms * MS;
    }
}

static struct dpt_report_verdict judge_as(struct report_step_times at[RANKS][STEPS],
                                          const char *strategy)
{
    struct dpt_report_verdict verdict;
    report_verdict_find(&(struct report_run_times){.at = &at[0][0],
                                                   .n_ranks = RANKS,
                                                   .n_steps = STEPS,
                                                   .rank = rank_numbers,
                                                   .strategy = strategy},
                        &verdict);
    return verdict;
}

static struct dpt_report_verdict judge(struct report_step_times at[RANKS][STEPS])
{
    return judge_as(at, "ddp");
}

static void assert_share(const struct dpt_report_verdict *v, enum dpt_report_cause cause,
                         double expected)
{
    if (fabs(v->share[cause] - expected) > 1e-6)
        fail_msg("%s: %.9g, expected %.9g", dpt_report_cause_word(cause), v->share[cause],
                 expected);
}

static void test_even_ranks_compute(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_COMPUTE);
    assert_int_equal(v.rank, -1);
    assert_share(&v, REPORT_COMPUTE, 8000.0 / 86);
    assert_share(&v, REPORT_COMMUNICATION, 300.0 / 86);
    assert_share(&v, REPORT_DATA, 200.0 / 86);
    assert_share(&v, REPORT_CHECKPOINT, 100.0 / 86);
    assert_string_equal(v.warning, "");
    assert_string_equal(v.key, "train.precision");
}

static void test_slow_rank_is_straggler(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        at[2][s].own_ns += 14.0 * MS;
        add_lateness(at, 2, s, 14);
    }
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_STRAGGLER);
    assert_int_equal(v.rank, 5);
    assert_share(&v, REPORT_STRAGGLER, 14);
    assert_true(fabs(v.wait_percent - 14.0 * (RANKS - 1) / RANKS) < 1e-6);
    assert_non_null(strstr(v.text, "rank 5, a straggler"));
}

static void test_more_work_is_imbalance(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        at[1][s].own_ns += 40.0 * MS;
        at[1][s].work *= 1.5;
        add_lateness(at, 1, s, 40);
    }
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_IMBALANCE);
    assert_int_equal(v.rank, -1);
    assert_share(&v, REPORT_IMBALANCE, 4000.0 / 126);
    assert_share(&v, REPORT_STRAGGLER, 0);
}

/* 5 % more work does not make a rank 50 % slower. */
static void test_little_more_work_is_straggler(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        at[1][s].own_ns += 40.0 * MS;
        at[1][s].work *= 1.05;
        add_lateness(at, 1, s, 40);
    }
    assert_int_equal(judge(at).cause, REPORT_STRAGGLER);
}

static void test_another_late_rank_each_step_is_imbalance(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        for (int r = 0; r < RANKS; r++)
            at[r][s].work = 0;
        at[s][s].own_ns += 30.0 * MS;
        add_lateness(at, s, s, 30);
    }
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_IMBALANCE);
    assert_non_null(strstr(v.text, "a different rank is late in each step"));
}

/* The batch is not the cause if the ranks have the same work. */
static void test_late_ranks_with_the_same_work_have_another_key(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        at[s][s].own_ns += 30.0 * MS;
        add_lateness(at, s, s, 30);
    }
    struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_IMBALANCE);
    assert_string_equal(v.key, "cluster.threads");
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < STEPS; s++)
            at[r][s].work = r == s ? 700 : 512;
    v = judge(at);
    assert_int_equal(v.cause, REPORT_IMBALANCE);
    assert_string_equal(v.key, "train.global_batch");
}

static void test_wait_for_data_of_all_or_of_one(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int s = 0; s < STEPS; s++) {
        at[0][s].data_ns += 20.0 * MS;
        add_lateness(at, 0, s, 20);
    }
    struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_DATA);
    assert_int_equal(v.rank, 0);
    assert_share(&v, REPORT_DATA, 2200.0 / 106);
    fill_even(at);
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < STEPS; s++) {
            at[r][s].data_ns += 20.0 * MS;
            at[r][s].step_ns += 20.0 * MS;
        }
    v = judge(at);
    assert_int_equal(v.cause, REPORT_DATA);
    assert_int_equal(v.rank, -1);
}

/* Rank 0 alone saves after one step of two. The others wait for it in the next step. */
static void test_save_of_one_rank_is_checkpoint(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    at[0][0].save_ns += 50.0 * MS;
    at[0][0].step_ns += 50.0 * MS;
    for (int r = 1; r < RANKS; r++) {
        at[r][1].wait_ns += 50.0 * MS;
        at[r][1].step_ns += 50.0 * MS;
    }
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_CHECKPOINT);
    assert_share(&v, REPORT_CHECKPOINT, 2600.0 / 111);
    assert_share(&v, REPORT_STRAGGLER, 0);
}

/* Every second step has an evaluation, whose computation is not the step's. */
static void test_evaluation_is_no_computation(void **state)
{
    (void)state;
    struct report_step_times at[RANKS][STEPS];
    fill_even(at);
    for (int r = 0; r < RANKS; r++) {
        at[r][0].evaluation_ns += 258.0 * MS;
        at[r][0].step_ns += 258.0 * MS;
    }
    const struct dpt_report_verdict v = judge(at);
    assert_int_equal(v.cause, REPORT_EVALUATION);
    assert_share(&v, REPORT_EVALUATION, 60);
    assert_share(&v, REPORT_COMPUTE, 8000.0 / 215);
    assert_string_equal(v.key, "train.eval_every");
    assert_non_null(strstr(v.text, "The bottleneck is the evaluation"));
}

/* Times with 23 % of exposed communication. */
static void fill_communication(struct report_step_times at[RANKS][STEPS])
{
    fill_even(at);
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < STEPS; s++) {
            at[r][s].transfer_ns += 20.0 * MS;
            at[r][s].step_ns += 20.0 * MS;
        }
}

static void test_remedy_of_communication_is_of_the_strategy(void **state)
{
    (void)state;
    static const char *const keys[][2] = {{"ddp", "strategy.compression"},
                                          {"simple", "strategy.name"},
                                          {"full_shard", "strategy.sharding"},
                                          {"zero3", "strategy.name"},
                                          {"unknown", "strategy.compression"}};
    struct report_step_times at[RANKS][STEPS];
    fill_communication(at);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct dpt_report_verdict v = judge_as(at, keys[i][0]);
        assert_int_equal(v.cause, REPORT_COMMUNICATION);
        assert_string_equal(v.key, keys[i][1]);
    }
}

static void test_one_rank_alone(void **state)
{
    (void)state;
    const struct report_step_times alone = {
        .step_ns = 100.0 * MS, .own_ns = 60.0 * MS, .data_ns = 40.0 * MS};
    struct dpt_report_verdict v;
    report_verdict_find(
        &(struct report_run_times){
            .at = &alone, .n_ranks = 1, .n_steps = 1, .rank = rank_numbers, .strategy = "ddp"},
        &v);
    assert_int_equal(v.cause, REPORT_DATA);
    assert_int_equal(v.rank, -1);
    assert_share(&v, REPORT_COMPUTE, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even_ranks_compute),
        cmocka_unit_test(test_slow_rank_is_straggler),
        cmocka_unit_test(test_more_work_is_imbalance),
        cmocka_unit_test(test_little_more_work_is_straggler),
        cmocka_unit_test(test_another_late_rank_each_step_is_imbalance),
        cmocka_unit_test(test_late_ranks_with_the_same_work_have_another_key),
        cmocka_unit_test(test_wait_for_data_of_all_or_of_one),
        cmocka_unit_test(test_save_of_one_rank_is_checkpoint),
        cmocka_unit_test(test_evaluation_is_no_computation),
        cmocka_unit_test(test_remedy_of_communication_is_of_the_strategy),
        cmocka_unit_test(test_one_rank_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
