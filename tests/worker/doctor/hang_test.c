/* The verdict on a run from tables of what its ranks do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/doctor/hang.h"

#include <stdio.h>
#include <string.h>

static struct dpt_hang_view earlier, later;
static struct dpt_hang hang;
static struct dpt_findings findings;

/* Four ranks on four nodes, all in the same all-reduce of step 42, which lasts for ten medians. */
static int make_waiting(void **state)
{
    (void)state;
    memset(&findings, 0, sizeof findings);
    memset(&later, 0, sizeof later);
    later.phase = DPT__SERVER_PHASE__SERVER_RUNNING;
    later.generation = 3;
    later.world_size = later.n = 4;
    later.still_ms = 8000;
    later.limit_ms = 20000;
    later.step_ms_median = 100;
    later.heartbeat_ms = 200;
    (void)snprintf(later.run, sizeof later.run, "demo");
    for (int i = 0; i < later.n; i++) {
        struct dpt_hang_rank *rank = &later.rank[i];
        *rank = (struct dpt_hang_rank){.rank = i,
                                       .phase = DPT__RANK_PHASE__RANK_RUNNING,
                                       .step = 41,
                                       .connected = true,
                                       .heard_ms = 150,
                                       .node_ms = 100,
                                       .known = true,
                                       .main = DPT__RANK_WORK__WORK_AWAIT_GRADIENT,
                                       .main_unit = -1,
                                       .main_slot = -1,
                                       .main_ms = 7900,
                                       .comm = DPT__RANK_WORK__WORK_ALL_REDUCE,
                                       .comm_unit = 2,
                                       .comm_ms = 7900};
        (void)snprintf(rank->node, sizeof rank->node, "n%d", i);
        (void)snprintf(rank->host, sizeof rank->host, "h%d", i);
    }
    earlier = later;
    return 0;
}

static void judge(void)
{
    dpt_hang_judge(&earlier, &later, &hang);
    dpt_hang_explain(&hang, &findings);
}

static const char *text_of(const char *subject)
{
    for (int i = 0; i < findings.n; i++)
        if (strcmp(findings.item[i].subject, subject) == 0)
            return findings.item[i].text;
    return "";
}

static void expect_blamed(enum dpt_hang_kind kind, int rank)
{
    judge();
    assert_string_equal(dpt_hang_kind_word(hang.kind), dpt_hang_kind_word(kind));
    assert_true(dpt_hang_is_bad(&hang));
    assert_int_equal(hang.n_blamed, 1);
    assert_int_equal(hang.blamed[0]->rank, rank);
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 1);
}

/* The process is stopped: its agent does not hear it. Others wait in the bucket. */
static void stopped_process_is_named_with_the_collective(void **state)
{
    (void)state;
    later.rank[2].heard_ms = 7700;
    later.rank[2].main = DPT__RANK_WORK__WORK_BACKWARD;
    later.rank[2].main_unit = 5;
    later.rank[2].main_slot = 1;
    expect_blamed(DPT_HANG_PROCESS, 2);
    assert_non_null(strstr(text_of("behind"),
                           "rank 2 (node n2, host h2, local rank 0): the process "
                           "is silent for 7.7 s, its node is not; last: "
                           "backward, unit 5, slot 1, 41 steps completed"));
    assert_non_null(strstr(text_of("waiting"), "3 ranks wait; rank 0"));
    assert_non_null(
        strstr(text_of("waiting"), "all-reduce of the gradient, bucket 2, step 42, for 7.9 s"));
}

/* The machine is cut off: the server hears neither agent nor rank. The agent's knowledge is old. */
static void silent_node_is_named_before_its_process(void **state)
{
    (void)state;
    later.rank[1].heard_ms = later.rank[1].node_ms = 6000;
    expect_blamed(DPT_HANG_NODE, 1);
    assert_non_null(strstr(text_of("behind"), "its node is silent for 6.0 s"));
}

static void broken_connection_is_a_silent_node(void **state)
{
    (void)state;
    later.rank[0].connected = false;
    expect_blamed(DPT_HANG_NODE, 0);
    assert_non_null(strstr(text_of("behind"), "its node is not connected"));
}

/* The rank lives, sends heartbeats, and reads from a disk that does not answer. */
static void rank_that_reads_samples_is_behind(void **state)
{
    (void)state;
    later.rank[3].main = DPT__RANK_WORK__WORK_SAMPLES;
    later.rank[3].main_slot = 0;
    later.rank[3].main_ms = 7800;
    later.rank[3].comm = DPT__RANK_WORK__WORK_AWAIT_OWN;
    expect_blamed(DPT_HANG_BEHIND, 3);
    assert_non_null(strstr(text_of("behind"), "reads samples"));
    assert_int_equal(hang.n_waiting, 3);
}

/* A rank waits for its own computation in another thread: nobody makes it wait. */
static void rank_that_waits_for_itself_is_behind(void **state)
{
    (void)state;
    later.rank[0].comm = DPT__RANK_WORK__WORK_AWAIT_OWN;
    expect_blamed(DPT_HANG_BEHIND, 0);
}

static void rank_at_an_earlier_step_is_behind(void **state)
{
    (void)state;
    for (int i = 0; i < later.n; i++)
        later.rank[i].step = i == 1 ? 41 : 42;
    earlier = later;
    later.rank[1].main = DPT__RANK_WORK__WORK_LOG;
    expect_blamed(DPT_HANG_BEHIND, 1);
    assert_non_null(strstr(text_of("behind"), "41 steps completed"));
}

static void all_waiting_is_a_matter_of_the_connections(void **state)
{
    (void)state;
    judge();
    assert_int_equal(hang.kind, DPT_HANG_CIRCLE);
    assert_int_equal(hang.n_blamed, 0);
    assert_int_equal(hang.n_waiting, 4);
    assert_true(dpt_hang_is_bad(&hang));
    assert_non_null(strstr(text_of("all wait"), "every rank waits for others"));
}

/* Most wait in the all-gather of unit 4, one in that of unit 3. */
static void the_transfer_of_most_ranks_is_named(void **state)
{
    (void)state;
    for (int i = 0; i < later.n; i++) {
        later.rank[i].main = DPT__RANK_WORK__WORK_AWAIT_WEIGHTS;
        later.rank[i].main_unit = later.rank[i].comm_unit = i == 0 ? 3 : 4;
        later.rank[i].comm = DPT__RANK_WORK__WORK_GATHER;
    }
    judge();
    assert_non_null(strstr(text_of("waiting"), "all-gather of the weights, unit 4"));
}

static void advancing_run_is_no_hang(void **state)
{
    (void)state;
    for (int i = 0; i < later.n; i++)
        later.rank[i].step += 5;
    later.still_ms = 20;
    later.rank[2].heard_ms = 9000; /* a late message does not matter while steps are made */
    judge();
    assert_int_equal(hang.kind, DPT_HANG_ADVANCES);
    assert_int_equal(hang.steps, 5);
    assert_false(dpt_hang_is_bad(&hang));
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 0);
}

/* The last steps before the stop were reported after the first look. */
static void run_that_stops_after_the_first_look_hangs(void **state)
{
    (void)state;
    for (int i = 0; i < later.n; i++)
        earlier.rank[i].step -= 5;
    later.rank[2].heard_ms = 7700;
    expect_blamed(DPT_HANG_PROCESS, 2);
}

/* The server judges no silence while it hears no node: its clock of steps stands. */
static void silence_of_all_nodes_is_a_failure(void **state)
{
    (void)state;
    later.still_ms = 300;
    later.unheard = true;
    later.heard_ms = 61000;
    judge();
    assert_string_equal(dpt_hang_kind_word(hang.kind), "no node heard");
    assert_true(dpt_hang_is_bad(&hang));
    assert_int_equal(findings.count[DPT_FINDING_FAIL], 1);
    assert_non_null(strstr(text_of("no node heard"), "hears no node of the run for 61.0 s"));
    assert_string_equal(text_of("what follows"), "");
    later.phase = DPT__SERVER_PHASE__SERVER_WAITING;
    judge();
    assert_true(dpt_hang_is_bad(&hang));
}

static void long_step_is_no_hang_yet(void **state)
{
    (void)state;
    later.step_ms_median = 4000;
    judge();
    assert_int_equal(hang.kind, DPT_HANG_NOT_YET);
    assert_non_null(strstr(text_of("no hang yet"), "watch longer"));
}

static void formation_and_end_are_no_hang(void **state)
{
    (void)state;
    later.phase = DPT__SERVER_PHASE__SERVER_WAITING;
    judge();
    assert_int_equal(hang.kind, DPT_HANG_FORMING);
    later.phase = DPT__SERVER_PHASE__SERVER_DONE;
    judge();
    assert_int_equal(hang.kind, DPT_HANG_ENDED);
    assert_int_equal(findings.count[DPT_FINDING_FAIL] + findings.count[DPT_FINDING_WARN], 0);
    later.phase = DPT__SERVER_PHASE__SERVER_FAILED;
    (void)snprintf(later.text, sizeof later.text, "rank process 0: bad data");
    judge();
    assert_int_equal(hang.kind, DPT_HANG_ENDED);
    assert_int_equal(findings.count[DPT_FINDING_WARN], 1);
    assert_non_null(strstr(findings.item[findings.n - 1].text, "bad data"));
}

static void spares_and_dead_processes_are_not_blamed(void **state)
{
    (void)state;
    later.rank[0].rank = -1; /* a spare */
    later.rank[0].heard_ms = 9000;
    later.rank[1].phase = DPT__RANK_PHASE__RANK_DEAD;
    later.rank[1].heard_ms = 9000;
    later.rank[3].heard_ms = 5000;
    expect_blamed(DPT_HANG_PROCESS, 3);
}

static void ranks_of_an_older_version_are_not_known(void **state)
{
    (void)state;
    for (int i = 0; i < later.n; i++)
        later.rank[i].known = false;
    judge();
    assert_int_equal(hang.kind, DPT_HANG_UNKNOWN);
    assert_true(dpt_hang_is_bad(&hang));
}

static void many_silent_ranks_are_cut_to_the_limit(void **state)
{
    (void)state;
    later.n = later.world_size = 20;
    for (int i = 0; i < 20; i++) {
        later.rank[i] = later.rank[0];
        later.rank[i].rank = i;
    }
    for (int i = 0; i < 20; i++)
        later.rank[i].heard_ms = 5000;
    judge();
    assert_int_equal(hang.n_blamed, DPT_HANG_BLAMED_MAX);
}

/* ---- the server's answer ---- */

static void answer_becomes_a_view(void **state)
{
    (void)state;
    Dpt__RankActivity activity = DPT__RANK_ACTIVITY__INIT;
    Dpt__RankStatus rank = DPT__RANK_STATUS__INIT, *ranks[] = {&rank};
    Dpt__RunStatus status = DPT__RUN_STATUS__INIT;
    Dpt__ServerState answer = DPT__SERVER_STATE__INIT;
    struct dpt_err err;
    activity.main = DPT__RANK_WORK__WORK_FORWARD;
    activity.main_unit = 3; /* number + 1 */
    rank.node = (char *)"b";
    rank.host_name = (char *)"gpu7";
    rank.plan_rank = 7;
    rank.activity = &activity;
    status.run = (char *)"demo";
    status.cause = (char *)"start";
    status.ranks = ranks;
    status.n_ranks = 1;
    answer.version = DPT_PROTO_VERSION;
    answer.text = (char *)"";
    answer.status = &status;
    assert_int_equal(dpt_hang_take(&answer, &later, &err), DPT_OK);
    assert_int_equal(later.n, 1);
    assert_string_equal(later.rank[0].host, "gpu7");
    assert_int_equal(later.rank[0].main_unit, 2);
    assert_int_equal(later.rank[0].comm_unit, -1);
    rank.activity = NULL;
    assert_int_equal(dpt_hang_take(&answer, &later, &err), DPT_OK);
    assert_false(later.rank[0].known);
    /* No such run, an older server, another protocol. */
    answer.status = NULL;
    assert_int_equal(dpt_hang_take(&answer, &later, &err), DPT_EVERSION);
    answer.text = (char *)"no run 'x' is here";
    assert_int_equal(dpt_hang_take(&answer, &later, &err), DPT_ENOENT);
    assert_string_equal(err.text, "no run 'x' is here");
    answer.version = DPT_PROTO_VERSION + 1;
    assert_int_equal(dpt_hang_take(&answer, &later, &err), DPT_EVERSION);
}

#define TEST(name) cmocka_unit_test_setup(name, make_waiting)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(stopped_process_is_named_with_the_collective),
        TEST(silent_node_is_named_before_its_process),
        TEST(broken_connection_is_a_silent_node),
        TEST(rank_that_reads_samples_is_behind),
        TEST(rank_that_waits_for_itself_is_behind),
        TEST(rank_at_an_earlier_step_is_behind),
        TEST(all_waiting_is_a_matter_of_the_connections),
        TEST(the_transfer_of_most_ranks_is_named),
        TEST(advancing_run_is_no_hang),
        TEST(run_that_stops_after_the_first_look_hangs),
        TEST(silence_of_all_nodes_is_a_failure),
        TEST(long_step_is_no_hang_yet),
        TEST(formation_and_end_are_no_hang),
        TEST(spares_and_dead_processes_are_not_blamed),
        TEST(ranks_of_an_older_version_are_not_known),
        TEST(many_silent_ranks_are_cut_to_the_limit),
        TEST(answer_becomes_a_view),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
