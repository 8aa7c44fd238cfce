/* Parts of dpt-bench rdzv: quantiles, the course of a modelled rank, unit costs, light nodes. */
#include "worker/bench/bench_rdzv_crowd.h"
#include "worker/bench/bench_rdzv_figures.h"
#include "worker/bench/bench_rdzv_lost.h"
#include "worker/bench/bench_rdzv_rank.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

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

/* Ranks 1,000 to 1,007 of 2,000 are lost: the ring has 999 and 1,008, the tree the parents 499 to
 * 503. In a mesh each rank has lost a neighbour. */
static void neighbours_name_the_lost_rank(void **state)
{
    (void)state;
    enum { WORLD = 2000, FIRST = 1000, N = 8, OTHER = FIRST + 3 };
    bool lost_ranks[WORLD] = {0};
    struct rdzv_lost lost = {.world = WORLD, .ranks = lost_ranks, .first = OTHER};
    int neighbours = 0;
    for (int i = 0; i < N; i++)
        lost_ranks[FIRST + i] = true;
    for (uint32_t rank = 0; rank < WORLD; rank++) {
        const int32_t named = rdzv_lost_neighbour(&lost, rank);
        assert_true(named == -1 || lost_ranks[named]);
        neighbours += named >= 0 && !lost_ranks[rank];
    }
    assert_int_equal(neighbours, 7);
    assert_int_equal(rdzv_lost_neighbour(&lost, FIRST - 1), FIRST);
    assert_int_equal(rdzv_lost_neighbour(&lost, FIRST + N), FIRST + N - 1);
    assert_int_equal(rdzv_lost_neighbour(&lost, 499), FIRST); /* 2 x 499 + 2 */
    lost.world = N;
    assert_int_equal(rdzv_lost_neighbour(&lost, 0), OTHER);
}

/* ---- the model ---- */

static void assert_near(double value, double expected)
{
    assert_true(fabs(value - expected) < 1e-6 * (1 + fabs(expected)));
}

/* Ten nodes: in the steady state a message takes 100 us, 20 us of them in core and
 * codec. */
static struct rdzv_figures ten_measured(void)
{
    const struct rdzv_phase formation = {.nodes = 10,
                                         .server_cpu_ms = 50,
                                         .ms = {.max = 130},
                                         .counts = {.sent = 420, .received = 380, .beats = 20}};
    struct rdzv_figures figures = {.setup = {.nodes = 10, .ranks = 1, .timeout_ms = 5000},
                                   .steady = {.seconds = 2,
                                              .server_cpu_percent = 5,
                                              .counts = {.sent = 1000,
                                                         .sent_bytes = 200000,
                                                         .received = 1000,
                                                         .received_bytes = 100000}},
                                   .base_bytes = 10000000,
                                   .peak_bytes = 12000000,
                                   .resident_bytes = 11000000};
    for (int i = 0; i < RDZV_PHASES; i++)
        figures.phases[i] = formation;
    figures.phases[RDZV_PHASE_CONNECT] =
        (struct rdzv_phase){.nodes = 10,
                            .server_cpu_ms = 100,
                            .ms = {.max = 90},
                            .counts = {.sent = 80, .received = 80, .beats = 50}};
    return figures;
}

static struct rdzv_figures ten_in_core(void)
{
    struct rdzv_figures figures = {
        .steady = {.seconds = 1, .server_cpu_percent = 1, .counts = {.sent = 500}},
        .peak_bytes = 500000,
        .resident_bytes = 400000};
    for (int i = 0; i < RDZV_PHASES; i++)
        figures.phases[i] = (struct rdzv_phase){
            .nodes = 10, .server_cpu_ms = 10, .ms = {.max = 40}, .counts = {.sent = 400}};
    figures.phases[RDZV_PHASE_CONNECT] =
        (struct rdzv_phase){.nodes = 10, .server_cpu_ms = 2, .counts = {.sent = 30}};
    return figures;
}

static void unit_costs_are_what_the_core_leaves(void **state)
{
    (void)state;
    struct rdzv_figures measured = ten_measured(), core = ten_in_core();
    struct rdzv_costs costs = rdzv_costs_of(&measured, &core);
    assert_int_equal(costs.habits.hellos, 3);   /* (80 - 50) / 10 */
    assert_int_equal(costs.habits.reports, 10); /* (420 - 20) / 10 / 4 */
    assert_near(costs.steady.beat_us, 100);
    assert_near(costs.steady.socket_us, 40); /* (100 - 20) / 2 */
    assert_near(costs.steady.beat_bytes, 200);
    assert_near(costs.steady.beat_back_bytes, 100);
    const struct rdzv_pace *formation = &costs.phases[RDZV_PHASE_FORMATION];
    assert_near(formation->socket_us, 49.5); /* (50000 - 10000 - 20 beats of 20) / 800 */
    assert_near(formation->beat_us, 20 + 2 * 49.5);
    const struct rdzv_pace *connect = &costs.phases[RDZV_PHASE_CONNECT];
    assert_near(connect->socket_us, 49.5);
    assert_near(connect->beat_us, 119);
    /* (100000 - 2000 - 50 beats of 20 - 160 messages of 49.5) / 10 */
    assert_near(connect->handshake_us, 8908);
    assert_near(formation->handshake_us, 8908);
    assert_near(costs.base_bytes, 1e7);
    assert_near(costs.peak_bytes, 1.5e5); /* (12e6 - 10e6 - 5e5 of the state machine) / 10 */
    assert_near(costs.steady_bytes, 6e4);

    core.phases[RDZV_PHASE_LOSS].server_cpu_ms = 60; /* noise: more than was measured */
    core.steady.server_cpu_percent = 6;
    costs = rdzv_costs_of(&measured, &core);
    assert_near(costs.phases[RDZV_PHASE_LOSS].socket_us, 0);
    assert_near(costs.steady.socket_us, 0);
}

/* The heartbeats of the check are those that came; their price is the model's. */
static void check_counts_the_heartbeats_that_came(void **state)
{
    (void)state;
    const struct rdzv_pace pace = {.beat_us = 200, .beat_bytes = 7, .beat_back_bytes = 3};
    struct rdzv_figures measured = ten_measured(), model = measured;
    struct rdzv_phase *join = &model.phases[RDZV_PHASE_JOIN];
    rdzv_add_beats(join, &pace, 50);
    assert_near(join->server_cpu_ms, 60);
    assert_int_equal(join->counts.sent, 470);
    assert_int_equal(join->counts.received, 430);
    assert_int_equal(join->counts.beats, 70);
    assert_int_equal(join->counts.sent_bytes, 350);
    assert_int_equal(join->counts.received_bytes, 150);
    assert_near(rdzv_cpu_error(&model, &measured, RDZV_PHASE_JOIN), 20);
    assert_near(rdzv_cpu_error(&model, &measured, RDZV_PHASE_LOSS), 0);
    model.steady.server_cpu_percent *= 3; /* of three times as many heartbeats */
    model.steady.counts.sent *= 3;
    assert_near(rdzv_cpu_error(&model, &measured, RDZV_PHASES), 0);
    model.steady.server_cpu_percent /= 2;
    assert_near(rdzv_cpu_error(&model, &measured, RDZV_PHASES), -50);
}

/* Each phase is that of another run. */
static void median_is_taken_in_each_phase(void **state)
{
    (void)state;
    struct rdzv_figures runs[3] = {ten_measured(), ten_measured(), ten_measured()};
    for (int i = 0; i < 3; i++) {
        runs[i].phases[RDZV_PHASE_CONNECT].server_cpu_ms = 100 + 10 * i;
        runs[i].phases[RDZV_PHASE_LOSS].server_cpu_ms = i == 0 ? 75 : 50;
        runs[i].phases[RDZV_PHASE_JOIN].nodes = i;
        runs[i].steady.server_cpu_percent = 5 - i;
        runs[i].peak_bytes = 12000000 + i * i;
    }
    struct rdzv_figures median = rdzv_median_of(runs, 3);
    assert_near(median.phases[RDZV_PHASE_CONNECT].server_cpu_ms, 110);
    assert_near(median.phases[RDZV_PHASE_LOSS].server_cpu_ms, 50);
    assert_int_equal(median.phases[RDZV_PHASE_JOIN].nodes, 0); /* of equal ones the first */
    assert_near(median.steady.server_cpu_percent, 4);
    assert_int_equal(median.peak_bytes, 12000001);
    assert_near(rdzv_spread_percent(runs, 3, RDZV_PHASE_CONNECT), 100 * 20.0 / 110);
    assert_near(rdzv_spread_percent(runs, 3, RDZV_PHASE_LOSS), 50);
    assert_near(rdzv_spread_percent(runs, 3, RDZV_PHASE_FORMATION), 0);
    assert_near(rdzv_spread_percent(runs, 3, RDZV_PHASES), 50);
    median = rdzv_median_of(runs, 2); /* the lower one */
    assert_near(median.phases[RDZV_PHASE_CONNECT].server_cpu_ms, 100);
    median = rdzv_median_of(&runs[2], 1);
    assert_near(median.phases[RDZV_PHASE_CONNECT].server_cpu_ms, 120);
    assert_near(rdzv_spread_percent(runs, 1, RDZV_PHASE_CONNECT), 0);
}

static void heartbeats_slow_a_phase_down(void **state)
{
    (void)state;
    struct rdzv_pace pace = {.beat_us = 100, .beats_a_second = 1000};
    assert_near(rdzv_beat_cores(&pace), 0.1);
    assert_near(rdzv_elapsed_us(&pace, 900, 1), 1000);
    assert_near(rdzv_elapsed_us(&pace, 900, 0), 900);
    pace.beats_a_second = 5000;
    assert_near(rdzv_elapsed_us(&pace, 900, 0.5), 1200); /* 900 / (1 - 0.25) */
    pace.beats_a_second = 20000;
    assert_near(rdzv_beat_cores(&pace), 2);
    assert_near(rdzv_beats_a_second(5000, 0, 100), 1000);        /* T / 50 */
    assert_near(rdzv_beats_a_second(5000, 0, 250), 2500);        /* 125 ms: at the next heartbeat */
    assert_near(rdzv_beats_a_second(5000, 0, 2000), 2000 / 0.9); /* 1 s: nine heartbeats later */
    /* 1 s, an eighth of the drain time: */
    assert_near(rdzv_beats_a_second(5000, 0, 90000), 90000 / 0.9);
    assert_near(rdzv_beats_a_second(60000, 0, 333), 333.0 / 0.2); /* at most 0.2 s */
}

/* A bench of many nodes sets the times that the server would ask for. */
static void many_nodes_have_long_times(void **state)
{
    (void)state;
    struct rdzv_setup setup = {.nodes = 1000};
    rdzv_set_timing(&setup);
    assert_int_equal(setup.timeout_ms, 5000);
    assert_int_equal(setup.drain_ms, DPT_PROTO_DRAIN_MS_DEFAULT);
    setup.nodes = 10000;
    rdzv_set_timing(&setup);
    assert_int_equal(setup.timeout_ms, 23000);
    assert_int_equal(setup.drain_ms, 40000);
    assert_near(rdzv_beats_a_second(setup.timeout_ms, setup.drain_ms, setup.nodes),
                10000 / 4.8); /* 24 x 0.2 s */
}

static void answers_wait_for_those_before(void **state)
{
    (void)state;
    enum { N = 10000 };
    static double values[N];
    struct rdzv_times times = rdzv_answer_times(1, 1000, 100, values);
    assert_near(times.p50, 0.1);
    assert_near(times.max, 0.1);
    times = rdzv_answer_times(2, 1000, 400, values);
    assert_true(times.p50 >= 0.4 - 1e-9 && times.max <= 0.8 + 1e-9);
    times = rdzv_answer_times(2, 1000, 500, values); /* no time is left */
    assert_true(times.max == 0);
    /* Half of a server: one half of the heartbeats come while it is free. */
    times = rdzv_answer_times(N, 2.0 * N, 1, values);
    assert_true(times.p50 >= 0.001 - 1e-9 && times.p50 < 0.0015);
    assert_true(times.p99 > 2 * times.p50 && times.max >= times.p99 && times.max < 0.1);
    times = rdzv_answer_times(0, 1000, 1, values);
    assert_true(times.max == 0);
}

static void many_nodes_make_several_runs(void **state)
{
    (void)state;
    assert_int_equal(rdzv_crowd_runs(10000, 8), 1);
    assert_int_equal(rdzv_crowd_first_run(10000, 8), 10000);
    assert_int_equal(rdzv_crowd_runs(100000, 8), 7); /* 16,384 nodes of 8 ranks at most */
    assert_int_equal(rdzv_crowd_first_run(100000, 8), 14285);
    assert_int_equal(rdzv_crowd_runs(100000, 1), 2); /* 65,536 nodes at most */
    assert_int_equal(rdzv_crowd_first_run(100000, 1), 50000);
}

static struct rdzv_phase crowd_goes(struct rdzv_crowd *crowd, struct rdzv_command command,
                                    const struct rdzv_pace *pace)
{
    struct dpt_err err = {0};
    struct rdzv_phase phase = {.name = "phase"};
    if (rdzv_crowd_phase(crowd, &command, pace, &phase, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_true(0 < phase.ms.p50 && phase.ms.p50 <= phase.ms.p99 && phase.ms.p99 <= phase.ms.max);
    return phase;
}

/* 40 nodes of 2 ranks. A message costs a millisecond, so that the core's own time hardly counts. */
static void light_nodes_go_through_all_phases(void **state)
{
    (void)state;
    enum { NODES = 40, RACK = 4, HELLOS = 2, REPORTS = 3 };
    const struct rdzv_setup setup = {.nodes = NODES, .ranks = 2, .rack = RACK, .timeout_ms = 5000};
    const struct rdzv_habits habits = {.hellos = HELLOS, .reports = REPORTS};
    const struct rdzv_pace pace = {.socket_us = 1000, .handshake_us = 5000};
    struct rdzv_crowd *crowd = NULL;
    struct dpt_err err;
    double beat_us = 0;
    assert_int_equal(rdzv_crowd_create(&setup, &habits, &crowd, &err), DPT_OK);

    struct rdzv_phase phase = crowd_goes(crowd, (struct rdzv_command){.kind = RDZV_CONNECT}, &pace);
    assert_int_equal(phase.nodes, NODES);
    assert_int_equal(phase.generations, 0);
    assert_int_equal(phase.counts.sent, NODES * HELLOS);
    double least_ms = (double)(phase.counts.sent + phase.counts.received) + 5.0 * NODES;
    assert_true(phase.server_cpu_ms >= least_ms && phase.server_cpu_ms < 1.5 * least_ms);
    assert_true(phase.ms.max <= phase.server_cpu_ms);

    phase = crowd_goes(crowd, (struct rdzv_command){.kind = RDZV_READY}, &pace);
    assert_int_equal(phase.nodes, NODES);
    assert_int_equal(phase.world, 2 * NODES);
    assert_int_equal(phase.generations, 1);
    assert_int_equal(phase.counts.sent, 4 * NODES * REPORTS);
    assert_true(phase.counts.received >= phase.counts.sent && phase.counts.beats == 0);
    least_ms = (double)(phase.counts.sent + phase.counts.received);
    assert_true(phase.server_cpu_ms >= least_ms && phase.server_cpu_ms < 1.5 * least_ms);

    assert_int_equal(rdzv_crowd_beat(crowd, &beat_us, &err), DPT_OK);
    assert_true(beat_us > 0 && beat_us < 1e5);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they hide the heap */
    int64_t now_bytes = 0, peak_bytes = 0;
    rdzv_crowd_memory(crowd, &now_bytes, &peak_bytes);
    assert_true(now_bytes > NODES * 2000 && now_bytes < 100 * NODES * 2000);
    assert_true(peak_bytes >= now_bytes);
#endif

    phase = crowd_goes(
        crowd, (struct rdzv_command){.kind = RDZV_LOSE, .first = NODES - 1, .count = 1}, &pace);
    assert_int_equal(phase.nodes, NODES - 1);
    assert_int_equal(phase.generations, 1);
    assert_int_equal(phase.counts.sent, 4 * (NODES - 1) * REPORTS);

    /* 100 heartbeats in a second, which take a tenth of the server. */
    const struct rdzv_pace busy = {
        .socket_us = 1000, .beat_us = 1000, .beats_a_second = 100, .beat_bytes = 10};
    phase = crowd_goes(
        crowd, (struct rdzv_command){.kind = RDZV_JOIN, .first = NODES - 1, .count = 1}, &busy);
    assert_int_equal(phase.nodes, NODES);
    assert_int_equal(phase.generations, 1);
    assert_true(phase.counts.beats > 0);
    assert_int_equal(phase.counts.sent - phase.counts.beats,
                     HELLOS + REPORTS + 3 * NODES * REPORTS);
    assert_true(phase.server_cpu_ms >
                (double)(phase.counts.sent + phase.counts.received) - (double)phase.counts.beats);

    phase = crowd_goes(crowd, (struct rdzv_command){.kind = RDZV_LOSE, .first = 0, .count = RACK},
                       &pace);
    assert_int_equal(phase.nodes, NODES - RACK);
    assert_int_equal(phase.world, 2 * (NODES - RACK));
    assert_int_equal(phase.generations, 1);

    /* Fewer than the run needs: no generation can come. */
    struct rdzv_phase none = {.name = "none"};
    const struct rdzv_command too_many = {.kind = RDZV_LOSE, .first = RACK, .count = 1};
    assert_int_equal(rdzv_crowd_phase(crowd, &too_many, &pace, &none, &err), DPT_EPROTO);
    assert_non_null(strstr(err.text, "0 of 35 nodes have got there"));
    assert_int_equal(
        rdzv_crowd_phase(crowd, &(struct rdzv_command){.kind = RDZV_END}, &pace, &none, &err),
        DPT_EINVAL);
    rdzv_crowd_destroy(&crowd);
    assert_null(crowd);
}

/* 2,048 nodes of 64 ranks are the most of a run. The last node of the first run dies and comes
 * back; the second run does not notice. */
static void light_nodes_of_two_runs(void **state)
{
    (void)state;
    enum { NODES = 2049, RANKS = 64, FIRST = NODES / 2 };
    const struct rdzv_setup setup = {.nodes = NODES, .ranks = RANKS, .rack = 1, .timeout_ms = 5000};
    const struct rdzv_habits habits = {.hellos = 1, .reports = 1};
    const struct rdzv_pace pace = {0};
    struct rdzv_crowd *crowd = NULL;
    struct dpt_err err;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* 131,136 ranks take too long */
#endif
    assert_int_equal(rdzv_crowd_runs(NODES, RANKS), 2);
    assert_int_equal(rdzv_crowd_create(&setup, &habits, &crowd, &err), DPT_OK);
    struct rdzv_phase phase = crowd_goes(crowd, (struct rdzv_command){.kind = RDZV_CONNECT}, &pace);
    assert_int_equal(phase.nodes, NODES);
    phase = crowd_goes(crowd, (struct rdzv_command){.kind = RDZV_READY}, &pace);
    assert_int_equal(phase.nodes, NODES);
    phase = crowd_goes(
        crowd, (struct rdzv_command){.kind = RDZV_LOSE, .first = FIRST - 1, .count = 1}, &pace);
    assert_int_equal(phase.nodes, FIRST - 1);
    /* Three nodes have links to the lost one. They alone report the failure before they stop. */
    assert_int_equal(phase.counts.sent, 3 * (FIRST - 1) + 3);
    phase = crowd_goes(
        crowd, (struct rdzv_command){.kind = RDZV_JOIN, .first = FIRST - 1, .count = 1}, &pace);
    assert_int_equal(phase.nodes, FIRST);
    assert_int_equal(phase.world, RANKS * FIRST);
    assert_int_equal(phase.generations, 1);
    rdzv_crowd_destroy(&crowd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_values_that_came),
        cmocka_unit_test(rank_goes_through_a_generation),
        cmocka_unit_test(neighbours_name_the_lost_rank),
        cmocka_unit_test(unit_costs_are_what_the_core_leaves),
        cmocka_unit_test(check_counts_the_heartbeats_that_came),
        cmocka_unit_test(median_is_taken_in_each_phase),
        cmocka_unit_test(heartbeats_slow_a_phase_down),
        cmocka_unit_test(many_nodes_have_long_times),
        cmocka_unit_test(answers_wait_for_those_before),
        cmocka_unit_test(many_nodes_make_several_runs),
        cmocka_unit_test(light_nodes_go_through_all_phases),
        cmocka_unit_test(light_nodes_of_two_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
