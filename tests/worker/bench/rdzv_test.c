/* Parts of dpt-bench rdzv: quantiles, and the course of a modelled rank. */
#include "worker/bench/bench_rdzv_figures.h"
#include "worker/bench/bench_rdzv_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void quantiles_are_values_that_came(void **state)
{
    (void)state;
    double values[200];
    for (int n = 1; n <= 200; n++) {
        for (int i = 0; i < n; i++)
            values[i] = n - i;
        const struct rdzv_times times = rdzv_times_of(values, n);
        assert_int_equal((int)times.p50, (n + 1) / 2);
        assert_int_equal((int)times.p99, n - n / 100);
        assert_int_equal((int)times.max, n);
    }
    const struct rdzv_times none = rdzv_times_of(values, 0);
    assert_true(none.p50 == 0 && none.p99 == 0 && none.max == 0);
}

static void command(struct rdzv_rank *rank, Dpt__RankCommand kind, uint64_t generation,
                    Dpt__Plan *plan, int64_t now_ms)
{
    Dpt__AgentToRank message = DPT__AGENT_TO_RANK__INIT;
    message.command = kind;
    message.generation = generation;
    message.plan = plan;
    rdzv_rank_command(rank, 1, &message, now_ms);
}

/* Local rank 1, which gets rank 3 of a world of 4 from step 7. */
static void rank_goes_through_a_generation(void **state)
{
    (void)state;
    struct rdzv_rank rank;
    struct rdzv_rank_report report;
    Dpt__PlanRank own = DPT__PLAN_RANK__INIT, other = DPT__PLAN_RANK__INIT;
    Dpt__PlanRank *ranks[] = {&other, &own};
    Dpt__Plan plan = DPT__PLAN__INIT;
    other.rank = 2;
    other.local_rank = -1;
    own.rank = 3;
    own.local_rank = 1;
    plan.ranks = ranks;
    plan.n_ranks = 2;
    plan.world_size = 4;
    plan.resume_step = 7;

    rdzv_rank_start(&rank, 1, false);
    command(&rank, DPT__RANK_COMMAND__COMMAND_PREPARE, 1, NULL, 0);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_STARTING);
    rdzv_rank_make_ready(&rank);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_STANDBY);
    command(&rank, DPT__RANK_COMMAND__COMMAND_PREPARE, 1, NULL, 0);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_QUIESCED);
    rank.due = false;
    command(&rank, DPT__RANK_COMMAND__COMMAND_PREPARE, 1, NULL, 0);
    command(&rank, DPT__RANK_COMMAND__COMMAND_GO, 1, NULL, 0);
    command(&rank, DPT__RANK_COMMAND__COMMAND_PLAN, 2, &plan, 0);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_QUIESCED);
    assert_false(rank.due);
    command(&rank, DPT__RANK_COMMAND__COMMAND_PLAN, 1, &plan, 0);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_READY);
    assert_true(rank.due);
    assert_int_equal(rank.plan_rank, 3);
    assert_int_equal(rank.world, 4);
    command(&rank, DPT__RANK_COMMAND__COMMAND_GO, 1, NULL, 1000);
    assert_int_equal(rank.phase, DPT__RANK_PHASE__RANK_RUNNING);

    rdzv_rank_break(&rank, 2);
    rdzv_rank_print(&rank, 258, 1, 1000 + 5 * RDZV_STEP_MS, &report);
    assert_int_equal(report.state.step_applied, 12);
    assert_int_equal(report.state.failed_generation, 1);
    assert_int_equal(report.state.suspect, 2);
    assert_string_equal(report.state.tcp_addr, "10.1.2.1:20001");
    command(&rank, DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT, 2, NULL, 1000 + 6 * RDZV_STEP_MS);
    rdzv_rank_print(&rank, 258, 1, 9000, &report);
    assert_int_equal(report.state.step_applied, 13);
    assert_int_equal(report.state.phase, DPT__RANK_PHASE__RANK_QUIESCED);
    rdzv_rank_break(&rank, 0); /* its connections are closed already */
    assert_int_equal(rank.suspect, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_values_that_came),
        cmocka_unit_test(rank_goes_through_a_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
