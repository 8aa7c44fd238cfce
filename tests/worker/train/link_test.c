/* The rank's link to its agent: what is said, what is heard, the fence and the grants. */
#include "tests/worker/train/agent_end.h"
#include "worker/train/link/link.h"

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

enum { HEARTBEAT_MS = 20, NEVER_MS = 60000 };

/* Commands with shorter names. */
enum {
    STANDBY = DPT__RANK_COMMAND__COMMAND_STANDBY,
    PREPARE = DPT__RANK_COMMAND__COMMAND_PREPARE,
    PREPARE_SOFT = DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT,
    GO = DPT__RANK_COMMAND__COMMAND_GO,
    EXIT = DPT__RANK_COMMAND__COMMAND_EXIT
};

struct pair {
    int agent; /* fd */
    struct dpt_link *link;
    atomic_int prepares, closes;
    _Atomic uint64_t prepared;
};

static void on_interrupt(void *ctx, uint64_t generation)
{
    struct pair *p = ctx;
    atomic_store(&p->prepared, generation);
    atomic_fetch_add(&p->prepares, 1);
}

static void on_closed(void *ctx)
{
    struct pair *p = ctx;
    atomic_fetch_add(&p->closes, 1);
}

static void begin(struct pair *p, int heartbeat_ms)
{
    struct dpt_err err;
    int fds[2];
    *p = (struct pair){.agent = -1};
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    p->agent = fds[0];
    const struct dpt_link_options options = {.fd = fds[1],
                                             .heartbeat_ms = heartbeat_ms,
                                             .on_interrupt = on_interrupt,
                                             .on_closed = on_closed,
                                             .ctx = p};
    const struct dpt_link_rank rank = {.spawn = 1, .shm_addr = "@shm", .tcp_addr = "127.0.0.1:1"};
    if (dpt_link_create(&options, &rank, &p->link, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void end(struct pair *p)
{
    dpt_link_destroy(&p->link);
    assert_null(p->link);
    if (p->agent >= 0)
        assert_int_equal(close(p->agent), 0);
}

static void command(struct pair *p, int what, uint64_t generation)
{
    assert_true(agent_end_send(p->agent, (Dpt__RankCommand)what, generation, -1,
                               dpt_now_ms() + AGENT_END_LEASE_MS, false));
}

static Dpt__RankToAgent *hear(struct pair *p)
{
    Dpt__RankToAgent *said = agent_end_receive(p->agent, AGENT_END_DEADLINE_MS);
    assert_non_null(said);
    return said;
}

/* Hears until the rank says this step. */
static void hear_step(struct pair *p, int64_t step)
{
    int64_t deadline = dpt_now_ms() + AGENT_END_DEADLINE_MS;
    int64_t heard = -2;
    while (heard != step) {
        assert_true(dpt_now_ms() < deadline);
        Dpt__RankToAgent *said = hear(p);
        heard = said->state->step_applied;
        dpt_message_free_rank_to_agent(&said);
    }
}

static void tell_passing(struct pair *p, int64_t step, double loss, bool passes)
{
    Dpt__StepRecord record = DPT__STEP_RECORD__INIT;
    record.step = step;
    record.loss = loss;
    record.world_size = 2;
    dpt_link_tell_step(p->link, &record, passes);
}

/* Tells a step, of which the loss is a mark. */
static void tell(struct pair *p, int64_t step, double loss)
{
    tell_passing(p, step, loss, false);
}

/* Sends the report as it is. */
static void publish(struct pair *p)
{
    (void)dpt_link_edit(p->link);
    dpt_link_publish(p->link, true);
}

/* Takes messages until a step told with `loss` has come; returns how many steps came. */
static int hear_until(struct pair *p, double loss, int64_t ret_steps[DPT_PROTO_STEPS_MAX])
{
    int n = 0;
    for (bool found = false; !found;) {
        Dpt__RankToAgent *said = hear(p);
        for (size_t i = 0; i < said->n_steps; i++) {
            assert_true(n < DPT_PROTO_STEPS_MAX);
            ret_steps[n++] = said->steps[i]->step;
            found = found || said->steps[i]->loss == loss;
        }
        dpt_message_free_rank_to_agent(&said);
    }
    return n;
}

/* Steps wait for a heartbeat, come once and in order; those made again take the place of lost ones.
 */
static void steps_are_told_once(void **state)
{
    (void)state;
    struct pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    begin(&p, HEARTBEAT_MS);
    for (int64_t step = 1; step <= 5; step++)
        tell(&p, step, (double)step);
    assert_int_equal(hear_until(&p, 5, steps), 5);
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(steps[i], i + 1);
    tell(&p, 6, 6);
    assert_int_equal(hear_until(&p, 6, steps), 1);
    end(&p);
}

/* Steps that have no line make room for a newer one; the others come all the same. */
static void steps_that_pass_are_told_at_most_once(void **state)
{
    (void)state;
    struct pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    begin(&p, NEVER_MS);
    hear_step(&p, -1); /* the first word, which might have had steps */
    for (int64_t step = 1; step <= 1000; step++)
        tell_passing(&p, step, (double)step, step % 400 != 0);
    publish(&p);
    assert_int_equal(hear_until(&p, 1000, steps), 3);
    assert_int_equal(steps[0], 400);
    assert_int_equal(steps[1], 800);
    assert_int_equal(steps[2], 1000);
    tell_passing(&p, 800, 1800, true); /* the world has gone back */
    publish(&p);
    assert_int_equal(hear_until(&p, 1800, steps), 1);
    assert_int_equal(steps[0], 800);
    end(&p);
}

/* With no heartbeat at all, a quarter of what fits is told by itself; of too many the oldest go. */
static void many_steps_do_not_wait(void **state)
{
    (void)state;
    struct pair p;
    int64_t steps[DPT_PROTO_STEPS_MAX];
    begin(&p, NEVER_MS);
    hear_step(&p, -1); /* the first word, which might have had some of them */
    for (int64_t step = 1; step <= DPT_PROTO_STEPS_MAX / 4; step++)
        tell(&p, step, (double)step);
    assert_int_equal(hear_until(&p, DPT_PROTO_STEPS_MAX / 4, steps), DPT_PROTO_STEPS_MAX / 4);
    tell(&p, 70, 70);
    tell(&p, 71, 71);
    tell(&p, 69, 1069); /* 69 to 71 were lost with the world */
    publish(&p);
    assert_int_equal(hear_until(&p, 1069, steps), 1);
    assert_int_equal(steps[0], 69);
    end(&p);
}

static enum dpt_status wait_for(struct pair *p, int wait_ms)
{
    struct dpt_err err;
    return dpt_link_wait(p->link, wait_ms, &err);
}

/* The main thread has heard the newest command. */
static void follow(struct pair *p, int what, uint64_t generation)
{
    command(p, what, generation);
    assert_int_equal(wait_for(p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_int_equal(dpt_link_command(p->link)->command, what);
    assert_int_equal(dpt_link_command(p->link)->generation, generation);
}

static void a_state_is_said(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
    hear_step(&p, -1); /* without being asked */
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
    hear_step(&p, 3); /* with the next heartbeat */
    Dpt__RankToAgent *said = hear(&p);
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
    end(&p);
}

static void news_do_not_wait_for_a_heartbeat(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, NEVER_MS);
    hear_step(&p, -1);
    dpt_link_edit(p.link)->state.step_applied = 5;
    dpt_link_publish(p.link, true);
    hear_step(&p, 5);
    end(&p);
}

static void the_last_words_arrive(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct pair p;
        begin(&p, NEVER_MS);
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

/* Frames that find the queue full are lost; the newest state is what counts and arrives. */
static void an_agent_that_does_not_listen(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
    for (int i = 0; i < 3000; i++) {
        Dpt__RankState *said = &dpt_link_edit(p.link)->state;
        said->outcome.len = DPT_PROTO_OUTCOME_BYTES_MAX / 2;
        said->step_applied = i;
        dpt_link_publish(p.link, true);
    }
    hear_step(&p, 2999);
    command(&p, GO, 1);
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    end(&p);
}

static void a_command_is_told_once(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
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
    end(&p);
}

static void nonsense_is_dropped(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
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
    end(&p);
}

static void a_prepare_and_the_end_interrupt(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
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
    follow(&p, EXIT, 3); /* nothing that goes on outlives the end */
    assert_true(dpt_link_interrupted(p.link, 5));
    assert_int_equal(atomic_load(&p.prepared), UINT64_MAX);
    end(&p);
}

static void an_agent_that_goes(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, NEVER_MS);
    follow(&p, GO, 4);
    assert_true(dpt_link_may_write(p.link));
    assert_int_equal(close(p.agent), 0);
    p.agent = -1;
    assert_int_equal(wait_for(&p, -1), DPT_EPEER);
    assert_int_equal(wait_for(&p, 0), DPT_EPEER);
    assert_int_equal(atomic_load(&p.closes), 1);
    assert_false(dpt_link_may_write(p.link));
    assert_true(dpt_link_interrupted(p.link, UINT64_MAX));
    publish(&p);
    end(&p);
    assert_int_equal(atomic_load(&p.closes), 1);
}

static void the_fence(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
    assert_false(dpt_link_may_write(p.link)); /* nobody has said so yet */
    follow(&p, GO, 1);
    assert_true(dpt_link_may_write(p.link));
    assert_false(dpt_link_leaving(p.link));
    assert_true(
        agent_end_send(p.agent, DPT__RANK_COMMAND__COMMAND_GO, 2, -1, dpt_now_ms() - 1, true));
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    assert_false(dpt_link_may_write(p.link));
    assert_true(dpt_link_leaving(p.link));
    /* A lease runs out by itself: an agent that was stopped does not take it back. */
    int64_t until = dpt_now_ms() + 30;
    assert_true(agent_end_send(p.agent, DPT__RANK_COMMAND__COMMAND_GO, 3, -1, until, false));
    assert_int_equal(wait_for(&p, AGENT_END_DEADLINE_MS), DPT_OK);
    while (dpt_now_ms() < until)
        (void)sched_yield();
    assert_false(dpt_link_may_write(p.link));
    end(&p);
}

static void grant(struct pair *p, int what, uint64_t generation, int64_t step)
{
    assert_true(agent_end_send(p->agent, (Dpt__RankCommand)what, generation, step,
                               dpt_now_ms() + AGENT_END_LEASE_MS, false));
}

static void grants_are_of_one_generation_and_step(void **state)
{
    (void)state;
    struct pair p;
    begin(&p, HEARTBEAT_MS);
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
    end(&p);
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

static void begin_waiting(struct waiter *w, struct pair *p)
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
    struct pair p;
    struct waiter w;
    begin(&p, HEARTBEAT_MS);
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
    end(&p);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_said),
        cmocka_unit_test(news_do_not_wait_for_a_heartbeat),
        cmocka_unit_test(the_last_words_arrive),
        cmocka_unit_test(an_agent_that_does_not_listen),
        cmocka_unit_test(a_command_is_told_once),
        cmocka_unit_test(nonsense_is_dropped),
        cmocka_unit_test(a_prepare_and_the_end_interrupt),
        cmocka_unit_test(an_agent_that_goes),
        cmocka_unit_test(the_fence),
        cmocka_unit_test(grants_are_of_one_generation_and_step),
        cmocka_unit_test(waiting_for_a_grant),
        cmocka_unit_test(steps_are_told_once),
        cmocka_unit_test(steps_that_pass_are_told_at_most_once),
        cmocka_unit_test(many_steps_do_not_wait),
    };
    return cmocka_run_group_tests_name("link", tests, NULL, NULL);
}
