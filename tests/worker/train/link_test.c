/* The rank's link to its agent: reports, commands, the fence and the grants. */
#include "tests/worker/train/link_pair.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/agent/rank_protocol.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Commands with shorter names. */
enum {
    STANDBY = DPT__RANK_COMMAND__COMMAND_STANDBY,
    PREPARE = DPT__RANK_COMMAND__COMMAND_PREPARE,
    PREPARE_SOFT = DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT,
    GO = DPT__RANK_COMMAND__COMMAND_GO,
    EXIT = DPT__RANK_COMMAND__COMMAND_EXIT
};

static void command(struct link_pair *p, int what, uint64_t generation)
{
    assert_true(agent_end_send(p->agent, (Dpt__RankCommand)what, generation, -1,
                               dpt_now_ms() + AGENT_END_LEASE_MS, false));
}

static enum dpt_status wait_for(struct link_pair *p, int wait_ms)
{
    struct dpt_err err;
    return dpt_link_wait(p->link, wait_ms, &err);
}

/* The main thread has heard the newest command. */
static void follow(struct link_pair *p, int what, uint64_t generation)
{
    command(p, what, generation);
    assert_int_equal(wait_for(p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_int_equal(dpt_link_command(p->link)->command, what);
    assert_int_equal(dpt_link_command(p->link)->generation, generation);
}

static void a_state_is_said(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    link_pair_hear_step(&p, -1); /* without being asked */
    struct dpt_report *report = dpt_link_edit(p.link);
    report->state.step_applied = 3;
    memcpy(report->outcome, "four", 4);
    report->state.outcome.len = 4;
    report->state.n_shards = 2;
    for (int i = 0; i < 2; i++)
        dpt__shard__init(&report->shards[i]);
    report->shards[0].index = 3;
    report->shards[0].of = 5;
    report->shards[1].index = 1;
    report->shards[1].of = 4;
    report->shards[1].pending = true;
    report->state.gradient = true;
    report->state.pending_generation = 9;
    report->state.ran_generation = 8;
    report->state.rebuilding = true;
    dpt_report_set_text(report, "a text");
    dpt_link_publish(p.link, false);
    link_pair_hear_step(&p, 3); /* with the next heartbeat */
    Dpt__RankToAgent *said = link_pair_hear(&p);
    assert_int_equal(said->state->outcome.len, 4);
    assert_memory_equal(said->state->outcome.data, "four", 4);
    assert_int_equal(said->state->n_shards, 2);
    assert_int_equal(said->state->shards[0]->index, 3);
    assert_int_equal(said->state->shards[0]->of, 5);
    assert_false(said->state->shards[0]->pending);
    assert_int_equal(said->state->shards[1]->of, 4);
    assert_true(said->state->shards[1]->pending);
    assert_true(said->state->gradient);
    assert_int_equal(said->state->pending_generation, 9);
    assert_int_equal(said->state->ran_generation, 8);
    assert_true(said->state->rebuilding);
    assert_string_equal(said->state->text, "a text");
    assert_false(said->fatal);
    dpt_message_free_rank_to_agent(&said);
    link_pair_end(&p);
}

static void news_do_not_wait_for_a_heartbeat(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, NEVER_MS);
    link_pair_hear_step(&p, -1);
    dpt_link_edit(p.link)->state.step_applied = 5;
    dpt_link_publish(p.link, true);
    link_pair_hear_step(&p, 5);
    link_pair_end(&p);
}

static void fatal_error_arrives_before_the_end(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct link_pair p;
        link_pair_begin(&p, NEVER_MS);
        struct dpt_report *report = dpt_link_edit(p.link);
        report->message.fatal = true;
        report->message.exit_code = 4;
        dpt_link_publish(p.link, round % 2 == 0);
        dpt_link_destroy(&p.link);
        bool heard = false;
        Dpt__RankToAgent *said;
        while ((said = agent_end_receive(p.agent, AGENT_END_DEADLINE_MS))) {
            heard = said->fatal && said->exit_code == 4;
            dpt_message_free_rank_to_agent(&said);
        }
        assert_true(heard);
        assert_int_equal(atomic_load(&p.closes), 0);
        assert_int_equal(close(p.agent), 0);
    }
}

/* Frames for a full queue are lost; the newest state arrives. */
static void an_agent_that_does_not_listen(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    for (int i = 0; i < 3000; i++) {
        Dpt__RankState *said = &dpt_link_edit(p.link)->state;
        said->outcome.len = DPT_PROTO_OUTCOME_BYTES_MAX / 2;
        said->step_applied = i;
        dpt_link_publish(p.link, true);
    }
    link_pair_hear_step(&p, 2999);
    command(&p, GO, 1);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    link_pair_end(&p);
}

static void a_command_is_told_once(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    assert_null(dpt_link_command(p.link));
    assert_int_equal(wait_for(&p, 0), DPT_INPROGRESS);
    assert_int_equal(wait_for(&p, 5), DPT_INPROGRESS);
    follow(&p, PREPARE, 1);
    for (int i = 0; i < 5; i++)
        command(&p, PREPARE, 1);
    assert_int_equal(wait_for(&p, 50), DPT_INPROGRESS);
    follow(&p, PREPARE, 2);
    follow(&p, PREPARE_SOFT, 2);
    /* Of several the newest counts, and one that came back is not news. */
    command(&p, GO, 2);
    command(&p, EXIT, 2);
    while (dpt_link_command(p.link)->command != DPT__RANK_COMMAND__COMMAND_EXIT)
        assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    link_pair_end(&p);
}

static void nonsense_is_dropped(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    follow(&p, STANDBY, 1);
    static const uint8_t junk[][8] = {{0xff, 0xff, 0xff}, {0}, {0x0a, 0x7f, 1}, {0x08, 0x7f}};
    for (size_t i = 0; i < sizeof junk / sizeof junk[0]; i++)
        assert_int_equal(send(p.agent, junk[i], sizeof junk[i], 0), sizeof junk[i]);
    /* A PLAN without a plan, and a grant below -1. */
    command(&p, DPT__RANK_COMMAND__COMMAND_PLAN, 1);
    assert_true(agent_end_send(p.agent, DPT__RANK_COMMAND__COMMAND_GO, 1, -2, 0, false));
    static uint8_t large[DPT_RANK_FRAME_BYTES_MAX + 1];
    (void)send(p.agent, large, sizeof large, 0);
    follow(&p, GO, 1);
    assert_int_equal(atomic_load(&p.closes), 0);
    link_pair_end(&p);
}

static void a_prepare_and_the_end_interrupt(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    follow(&p, GO, 4);
    assert_false(dpt_link_interrupted(p.link, 4));
    assert_false(dpt_link_reform_wanted(p.link, 4));
    follow(&p, PREPARE_SOFT, 5);
    assert_false(dpt_link_interrupted(p.link, 4));
    assert_true(dpt_link_reform_wanted(p.link, 4));
    assert_int_equal(atomic_load(&p.prepares), 0);
    follow(&p, PREPARE, 5);
    assert_true(dpt_link_interrupted(p.link, 4));
    assert_false(dpt_link_interrupted(p.link, 5));
    assert_false(dpt_link_reform_wanted(p.link, 5));
    assert_int_equal(atomic_load(&p.prepares), 1);
    assert_int_equal(atomic_load(&p.prepared), 5);
    follow(&p, PREPARE, 3); /* a late one takes nothing back */
    assert_true(dpt_link_interrupted(p.link, 4));
    assert_false(dpt_link_interrupted(p.link, 5));
    follow(&p, EXIT, 3); /* the end interrupts every generation */
    assert_true(dpt_link_interrupted(p.link, 5));
    assert_int_equal(atomic_load(&p.prepared), UINT64_MAX);
    link_pair_end(&p);
}

static void an_agent_that_goes(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, NEVER_MS);
    follow(&p, GO, 4);
    assert_true(dpt_link_may_write(p.link));
    assert_int_equal(close(p.agent), 0);
    p.agent = -1;
    assert_int_equal(wait_for(&p, -1), DPT_EPEER);
    assert_int_equal(wait_for(&p, 0), DPT_EPEER);
    assert_int_equal(atomic_load(&p.closes), 1);
    assert_false(dpt_link_may_write(p.link));
    assert_true(dpt_link_interrupted(p.link, UINT64_MAX));
    link_pair_publish(&p);
    link_pair_end(&p);
    assert_int_equal(atomic_load(&p.closes), 1);
}

static void no_writing_without_lease(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    assert_false(dpt_link_may_write(p.link)); /* no message yet */
    follow(&p, GO, 1);
    assert_true(dpt_link_may_write(p.link));
    assert_false(dpt_link_leaving(p.link));
    assert_true(
        agent_end_send(p.agent, DPT__RANK_COMMAND__COMMAND_GO, 2, -1, dpt_now_ms() - 1, true));
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_false(dpt_link_may_write(p.link));
    assert_true(dpt_link_leaving(p.link));
    /* A lease ends without a message: an agent that was stopped cannot take it back. */
    int64_t until = dpt_now_ms() + 30;
    assert_true(agent_end_send(p.agent, DPT__RANK_COMMAND__COMMAND_GO, 3, -1, until, false));
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    while (dpt_now_ms() < until)
        (void)sched_yield();
    assert_false(dpt_link_may_write(p.link));
    link_pair_end(&p);
}

static void grant(struct link_pair *p, int what, uint64_t generation, int64_t step)
{
    assert_true(agent_end_send(p->agent, (Dpt__RankCommand)what, generation, step,
                               dpt_now_ms() + AGENT_END_LEASE_MS, false));
}

static void grants_are_of_one_generation_and_step(void **state)
{
    (void)state;
    struct link_pair p;
    link_pair_begin(&p, HEARTBEAT_MS);
    dpt_link_edit(p.link)->state.generation = 1;
    dpt_link_publish(p.link, true);
    grant(&p, GO, 1, 10);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_true(dpt_link_granted(p.link, 1, 10));
    assert_false(dpt_link_granted(p.link, 1, 11));
    assert_false(dpt_link_granted(p.link, 2, 10));
    /* While the generation that runs is asked to stop, its grants still count. */
    grant(&p, PREPARE_SOFT, 2, 20);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_true(dpt_link_granted(p.link, 1, 20));
    assert_false(dpt_link_granted(p.link, 2, 20));
    assert_false(dpt_link_granted(p.link, 1, 10));
    /* Taken back. */
    grant(&p, PREPARE, 2, -1);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_false(dpt_link_granted(p.link, 1, 20));
    assert_false(dpt_link_granted(p.link, 2, 20));
    link_pair_end(&p);
}

struct waiter {
    struct dpt_link *link;
    atomic_bool cancel;
    pthread_t thread;
    enum dpt_status status;
};

static bool is_cancelled(void *ctx)
{
    struct waiter *w = ctx;
    return atomic_load(&w->cancel);
}

static void *await(void *arg)
{
    struct waiter *w = arg;
    struct dpt_err err;
    w->status = dpt_link_await_grant(w->link, 1, 10, is_cancelled, w, &err);
    return NULL;
}

static void begin_waiting(struct waiter *w, struct link_pair *p)
{
    *w = (struct waiter){.link = p->link};
    assert_int_equal(pthread_create(&w->thread, NULL, await, w), 0);
}

static enum dpt_status end_waiting(struct waiter *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
    return w->status;
}

static void waiting_for_a_grant(void **state)
{
    (void)state;
    struct link_pair p;
    struct waiter w;
    link_pair_begin(&p, HEARTBEAT_MS);
    begin_waiting(&w, &p);
    grant(&p, GO, 1, 9);
    grant(&p, GO, 2, 10);
    grant(&p, GO, 1, 10);
    assert_int_equal(end_waiting(&w), DPT_OK);
    grant(&p, GO, 1, -1);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    while (dpt_link_granted(p.link, 1, 10))
        (void)sched_yield();
    /* Cancelled while the agent says nothing: a stopped agent must not hold it. */
    begin_waiting(&w, &p);
    atomic_store(&w.cancel, true);
    assert_int_equal(end_waiting(&w), DPT_EABORTED);
    begin_waiting(&w, &p);
    assert_int_equal(close(p.agent), 0);
    p.agent = -1;
    assert_int_equal(end_waiting(&w), DPT_EABORTED);
    link_pair_end(&p);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_said),
        cmocka_unit_test(news_do_not_wait_for_a_heartbeat),
        cmocka_unit_test(fatal_error_arrives_before_the_end),
        cmocka_unit_test(an_agent_that_does_not_listen),
        cmocka_unit_test(a_command_is_told_once),
        cmocka_unit_test(nonsense_is_dropped),
        cmocka_unit_test(a_prepare_and_the_end_interrupt),
        cmocka_unit_test(an_agent_that_goes),
        cmocka_unit_test(no_writing_without_lease),
        cmocka_unit_test(grants_are_of_one_generation_and_step),
        cmocka_unit_test(waiting_for_a_grant),
    };
    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
