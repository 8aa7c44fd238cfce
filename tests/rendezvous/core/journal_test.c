/* A server that is killed and started again with its journal. The stage compares, after each step
 * of every test, the durable state with the one that the records give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/rendezvous/core/trio.h"

#include <stdio.h>
#include <string.h>

enum { LEASE_MS = 4500 };

/* a and b connect to the next server, when they send. */
static void connect_again(void)
{
    memset(stage.records, 0, sizeof stage.records);
    stage_tick(&stage, 0);
    a.conn += 100;
    b.conn += 100;
    c.conn += 100;
    if (fake_place(&a) != NULL)
        a.ranks[0].plan_rank = (int32_t)fake_place(&a)->rank;
    if (fake_place(&b) != NULL)
        b.ranks[0].plan_rank = (int32_t)fake_place(&b)->rank;
}

/* The next server has the journal. */
static void restart(uint64_t epoch)
{
    stage_restart_with_journal(&stage, epoch);
    connect_again();
}

static void generation_goes_on(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    restart(99);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    assert_int_equal(stage.view.generation, 1);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_ADOPTED], 1);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_JOINED], 0); /* they were never removed */
    /* And again, by the third server. */
    restart(100);
    fake_say(&b, &stage);
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

/* A plan was decided and no rank has it: when both members are here, the next generation is formed
 * at once, for the reason of the first, and no number comes twice. */
static void formation_is_completed_without_a_lease(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
    b.ranks[0].text = "killed by signal 9";
    fake_say(&b, &stage);
    b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
    b.ranks[0].spawn = 2;
    b.ranks[0].step_applied = -1;
    b.ranks[0].text = "";
    assert_int_equal(stage.view.generation, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    restart(99);
    const int64_t began_ms = stage.now_ms;
    for (int i = 0; i < 5; i++)
        fakes_settle(&stage, (struct fake *[]){&a}, 1); /* b is awaited */
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_true(stage.now_ms - began_ms < LEASE_MS / 10);
    assert_int_equal(stage.view.generation, 3);
    assert_int_equal(a.plan->resume_step, 5);
    assert_string_equal(a.plan->cause_kind, "rank_lost");
    assert_non_null(strstr(a.plan->cause, "signal 9"));
    assert_non_null(strstr(a.plan->cause, "the server was restarted before the generation ran"));
}

/* The first formation of all. */
static void first_formation_waits_for_all_who_were_there(void **state)
{
    (void)state;
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    stage_pass_speaking(&stage, two, 2, 1100);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    restart(99);
    fakes_settle(&stage, (struct fake *[]){&a}, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    fakes_settle(&stage, two, 2);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->world_size, 2);
    assert_true(stage.view.generation > 1);
}

static void absent_member_is_lost_after_a_lease(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    restart(99);
    stage_pass_speaking(&stage, two, 1, LEASE_MS - 500);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    stage_pass_speaking(&stage, two, 1, 700);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_REMOVED], 1);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(a.plan->world_size, 1);
    assert_int_equal(a.plan->resume_step, 5);
    /* It was cut off only, but the others went on. */
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

/* An absent member keeps its id: a process that does not know its secret waits. */
static void absent_member_keeps_its_id(void **state)
{
    (void)state;
    static uint8_t other[DPT_PROTO_SECRET_BYTES] = {9};
    trio_start();
    restart(99);
    (void)snprintf(c.id, sizeof c.id, "b");
    c.state.secret = (ProtobufCBinaryData){sizeof other, other};
    c.stamp.incarnation = 50;
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    assert_int_equal(c.counter_seen, 0);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 1);
}

static void expelled_incarnation_stays_out(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    b.state.fatal = true;
    b.state.first_error = "no such device";
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    b.state.fatal = false;
    b.state.first_error = "";
    restart(99);
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.nodes, 1);
    /* An earlier incarnation of a member that is not back yet, too. */
    a.stamp.incarnation = 7;
    a.epoch = 0;
    fake_say(&a, &stage);
    restart(100);
    a.stamp.incarnation = 6;
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_EXPELLED);
}

/* A node with state of another server, which the journal does not know: its generation is newer, so
 * the nodes rule, and the whole lease is waited for. */
static void newer_generation_than_the_journal(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(5);
    restart(99);
    for (int i = 0; i < 2; i++) {
        two[i]->generation = two[i]->ranks[0].generation = two[i]->ranks[0].ran_generation = 40;
        two[i]->state.plan_digest = "of another server";
        two[i]->ranks[0].step_applied = 50;
    }
    fake_say(&a, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_WAITING);
    two[1]->generation = 40;
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.view.generation, 40);
}

/* The journal is a copy from the time of a formation, and `later` generations have run since. The
 * server forms at once, under a number that the nodes have already if `later` is 2, or that is
 * below theirs. No node and no step is lost. */
static void expect_older_copy_loses_nothing(uint64_t later)
{
    trio_start();
    trio_step_to(5);
    fake_breaks_off(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    const size_t copied = kept_records_count(stage.journal);
    for (uint64_t i = 0; i < later; i++) {
        if (i > 0)
            fake_breaks_off(&b, &stage);
        fakes_settle(&stage, two, 2);
        trio_step_to(6 + (int64_t)i);
    }
    assert_int_equal(a.generation, 1 + later);
    stage_restart_with_older_journal(&stage, 99, copied);
    connect_again();
    assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
    assert_int_equal(stage.view.generation, 3);
    const int64_t began_ms = stage.now_ms;
    fakes_settle(&stage, two, 1);
    assert_int_equal(stage.view.generation, later == 1 ? 3 : 2 + later);
    fakes_settle(&stage, two, 2);
    if (later > 1) { /* another node may have newer steps, which the journal does not know */
        assert_int_equal(stage.view.phase, DPT_RDZV_PREPARING);
        stage_pass_speaking(&stage, two, 2, LEASE_MS);
        fakes_settle(&stage, two, 2);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_REMOVED], 0);
    assert_int_equal(a.plan->world_size, 2);
    assert_int_equal(a.plan->resume_step, 5 + later);
    assert_true(stage.now_ms - began_ms <= (later == 1 ? 0 : LEASE_MS + 500));
}

static void older_copy_before_the_plan(void **state)
{
    (void)state;
    expect_older_copy_loses_nothing(1);
}

static void older_copy_forms_the_number_of_the_nodes(void **state)
{
    (void)state;
    expect_older_copy_loses_nothing(2);
}

static void older_copy_forms_a_lower_number(void **state)
{
    (void)state;
    expect_older_copy_loses_nothing(4);
}

static void grants_and_saved_steps_are_kept(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(10);
    a.ranks[0].grant_step = 10;
    fake_say(&a, &stage);
    a.ranks[0].checkpoint_step = 7;
    fake_say(&a, &stage);
    restart(99);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_RUNNING);
    fake_say(&a, &stage);
    assert_int_equal(a.grant_step, 10);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_GRANT], 0); /* it was granted once */
    assert_int_equal(stage.records[DPT_RDZV_RECORD_SAVED], 0);
    a.ranks[0].checkpoint_step = 10;
    fake_say(&a, &stage);
    assert_int_equal(stage.records[DPT_RDZV_RECORD_SAVED], 1);
}

/* The restart that a crash used stays used, and the run fails with the error of the first server.
 */
static void restarts_and_first_error_are_kept(void **state)
{
    (void)state;
    a.spec.max_restarts = b.spec.max_restarts = 1;
    trio_start();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(stage.view.restarts_left, 1 - i);
        b.state.crashes++;
        b.state.first_error = i == 0 ? "the first of all" : "another";
        b.state.first_error_ms_ago = 1;
        b.ranks[0].phase = DPT__RANK_PHASE__RANK_DEAD;
        fake_say(&b, &stage);
        b.ranks[0].phase = DPT__RANK_PHASE__RANK_STANDBY;
        b.ranks[0].spawn++;
        b.ranks[0].step_applied = -1;
        if (i == 0)
            fakes_settle(&stage, two, 2);
        if (i == 0)
            restart(99);
        if (i == 0)
            fakes_settle(&stage, two, 2);
    }
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    assert_non_null(strstr(stage.view.text, "the first of all"));
    /* The third server tells the end. */
    restart(100);
    assert_int_equal(stage.view.phase, DPT_RDZV_FAILED);
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_FAILED);
    assert_non_null(strstr(a.text, "the first of all"));
}

/* The members of a run that is DONE are told so by the next server. A process of the next run of
 * this name waits until they are, or for twice the timeout. */
static void end_is_told_after_a_restart(void **state)
{
    (void)state;
    trio_start();
    trio_step_to(3);
    fake_phase(&a, DPT__RANK_PHASE__RANK_FINISHED, a.generation);
    fake_phase(&b, DPT__RANK_PHASE__RANK_FINISHED, b.generation);
    fake_say(&a, &stage);
    fake_say(&b, &stage);
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    restart(99);
    assert_int_equal(stage.view.phase, DPT_RDZV_DONE);
    fake_say(&c, &stage);
    assert_int_equal(c.phase, DPT__SERVER_PHASE__SERVER_WAITING);
    fake_say(&a, &stage);
    assert_int_equal(a.phase, DPT__SERVER_PHASE__SERVER_DONE);
    stage_pass_speaking(&stage, (struct fake *[]){&c}, 1, 9000);
    assert_int_equal(c.counter_seen, 0);
    stage_pass_speaking(&stage, (struct fake *[]){&c}, 1, 2000);
    assert_int_equal(stage.view.nodes, 1);
    /* b was away for long: the name has a new run, and b still learns the end of its own. */
    fake_say(&b, &stage);
    assert_int_equal(b.phase, DPT__SERVER_PHASE__SERVER_DONE);
}

/* A journal from which a record is missing, or in which one comes twice, is refused; nothing of the
 * wrong record is applied. */
static void records_out_of_order_are_refused(void **state)
{
    (void)state;
    unsigned refused = 0;
    trio_start();
    trio_save_and_lose_b();
    const size_t n = kept_records_count(stage.journal);
    assert_true(n >= 14);
    for (size_t twice = 0; twice < n; twice++) {
        const struct dpt_rdzv_record *record = kept_record_at(stage.journal, twice);
        const struct dpt_rdzv_options options = {.epoch = 5};
        struct dpt_rdzv *core = NULL;
        struct dpt_err err;
        assert_int_equal(dpt_rdzv_create(&options, &core, &err), DPT_OK);
        for (size_t i = 0; i <= twice; i++)
            assert_int_equal(dpt_rdzv_restore(core, kept_record_at(stage.journal, i), &err),
                             DPT_OK);
        const enum dpt_status status = dpt_rdzv_restore(core, record, &err);
        const bool may_repeat = record->kind == DPT_RDZV_RECORD_START ||
                                record->kind == DPT_RDZV_RECORD_ERROR ||
                                record->kind == DPT_RDZV_RECORD_CRASH;
        assert_int_equal(status, may_repeat ? DPT_OK : DPT_ECORRUPT);
        refused += status != DPT_OK;
        dpt_rdzv_destroy(&core);
        /* Without the run, nothing about it is accepted. */
        assert_int_equal(dpt_rdzv_create(&options, &core, &err), DPT_OK);
        if (record->kind != DPT_RDZV_RECORD_RUN && record->kind != DPT_RDZV_RECORD_START)
            assert_int_equal(dpt_rdzv_restore(core, record, &err), DPT_ECORRUPT);
        dpt_rdzv_destroy(&core);
    }
    assert_true(refused >= 10);
}

/* Heartbeats without news cause no record. */
static void heartbeats_are_not_recorded(void **state)
{
    (void)state;
    trio_start();
    memset(stage.records, 0, sizeof stage.records);
    for (int64_t step = 1; step < 50; step++)
        trio_step_to(step);
    stage_pass_speaking(&stage, two, 2, 20000);
    for (int kind = 0; kind < DPT_RDZV_RECORD_COUNT; kind++)
        assert_int_equal(stage.records[kind], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(generation_goes_on, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(formation_is_completed_without_a_lease, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(first_formation_waits_for_all_who_were_there, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(absent_member_is_lost_after_a_lease, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(absent_member_keeps_its_id, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(expelled_incarnation_stays_out, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(newer_generation_than_the_journal, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(older_copy_before_the_plan, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(older_copy_forms_the_number_of_the_nodes, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(older_copy_forms_a_lower_number, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(grants_and_saved_steps_are_kept, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(restarts_and_first_error_are_kept, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(end_is_told_after_a_restart, trio_setup, trio_teardown),
        cmocka_unit_test_setup_teardown(records_out_of_order_are_refused, trio_setup,
                                        trio_teardown),
        cmocka_unit_test_setup_teardown(heartbeats_are_not_recorded, trio_setup, trio_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
