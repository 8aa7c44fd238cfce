/* The agent's machine by hand: what it starts, kills and says, and with which code it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/agent/core.h"

#include <stdio.h>
#include <string.h>

enum { RANKS = 2 };

struct bench {
    struct dpt_agent *agent;
    struct dpt_agent_output out;
    int64_t now_ms;
    uint64_t incarnation, server_counter, agent_counter;
    Dpt__Stamp stamp;
    Dpt__ServerState server;
    Dpt__RankState rank;
    /* gathered over the steps since the last clear */
    uint32_t spawns[RANKS], kills[RANKS];
    bool ended, asked_config, exit_has_spec, config_given;
    int exit_code;
    char exit_text[DPT_PROTO_TEXT_BYTES];
    Dpt__RankCommand command[RANKS];
    int64_t lease_ms[RANKS];
    uint64_t generation[RANKS];
    bool said;                   /* to the server, in the last step */
    Dpt__RankPhase phase[RANKS]; /* as told to the server */
    uint32_t crashes;
    bool leaving, fatal, has_spec;
    uint64_t said_epoch, said_generation;
    char first_error[DPT_PROTO_TEXT_BYTES];
};

static void take_actions(struct bench *b)
{
    for (size_t i = 0; i < b->out.n_actions; i++) {
        const struct dpt_agent_action *action = &b->out.actions[i];
        switch (action->kind) {
        case DPT_AGENT_ACTION_SPAWN:
            b->spawns[action->local_rank] = action->spawn;
            b->incarnation = action->incarnation;
            break;
        case DPT_AGENT_ACTION_KILL:
            b->kills[action->local_rank]++;
            break;
        case DPT_AGENT_ACTION_CONFIGURE:
            b->asked_config = true;
            b->config_given = action->spec != NULL;
            break;
        default:
            assert_int_equal(i, b->out.n_actions - 1);
            b->ended = true;
            b->exit_code = action->exit_code;
            b->exit_has_spec = action->spec != NULL;
            (void)snprintf(b->exit_text, sizeof b->exit_text, "%.500s", action->text);
        }
    }
}

static void step(struct bench *b, struct dpt_agent_event event)
{
    struct dpt_err err;
    event.now_ms = b->now_ms;
    assert_int_equal(dpt_agent_step(b->agent, &event, &b->out, &err), DPT_OK);
    assert_true(b->out.deadline_ms > b->now_ms);
    take_actions(b);
    for (size_t i = 0; i < b->out.n_to_ranks; i++) {
        const struct dpt_agent_send *send = &b->out.to_ranks[i];
        b->command[send->local_rank] = send->message->command;
        b->lease_ms[send->local_rank] = send->message->lease_until_ms;
        b->generation[send->local_rank] = send->message->generation;
    }
    const Dpt__AgentState *said = b->out.to_server;
    b->said = said != NULL;
    if (said == NULL)
        return;
    b->agent_counter = said->counter;
    b->crashes = said->crashes;
    b->leaving = said->leaving;
    b->fatal = said->fatal;
    b->has_spec = said->spec != NULL;
    b->said_epoch = said->stamp->epoch;
    b->said_generation = said->stamp->generation;
    (void)snprintf(b->first_error, sizeof b->first_error, "%s", said->first_error);
    for (size_t i = 0; i < said->n_ranks; i++)
        b->phase[i] = said->ranks[i]->phase;
}

static void signal_(struct bench *b)
{
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SIGNAL});
}

/* Time passes as in a loop that keeps its deadlines. */
static void pass(struct bench *b, int64_t ms)
{
    int64_t until_ms = b->now_ms + ms;
    while (b->now_ms < until_ms) {
        int64_t next_ms = b->out.deadline_ms < until_ms ? b->out.deadline_ms : until_ms;
        b->now_ms = next_ms > b->now_ms ? next_ms : b->now_ms + 1;
        step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    }
}

static Dpt__RunSpec make_spec(void)
{
    Dpt__RunSpec spec = DPT__RUN_SPEC__INIT;
    spec.min_nodes = spec.max_nodes = 1;
    spec.timeout_ms = 5000;
    spec.max_world = 16;
    spec.config_digest = "digest";
    spec.config_yaml = "run: demo\n";
    spec.user = "alice";
    return spec;
}

static void configure(struct bench *b)
{
    Dpt__RunSpec spec = make_spec();
    struct dpt_agent_facts facts = {.spec = &spec,
                                    .n_ranks = RANKS,
                                    .fingerprint = "cpu",
                                    .host = "host",
                                    .log_dir_id = "logs",
                                    .checkpoint_dir_id = "checkpoints",
                                    .data_digest = "data"};
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
}

static void from_server(struct bench *b, Dpt__ServerPhase phase, uint64_t generation)
{
    b->server.phase = phase;
    b->stamp.generation = generation;
    b->server.counter = ++b->server_counter;
    b->server.counter_seen = b->agent_counter;
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                     .server_message = &b->server});
}

static void from_rank(struct bench *b, uint32_t local, Dpt__RankPhase phase, uint64_t generation)
{
    b->rank.local_rank = local;
    b->rank.spawn = b->spawns[local];
    b->rank.phase = phase;
    b->rank.generation = generation;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.state = &b->rank;
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                     .local_rank = local,
                                     .spawn = b->spawns[local],
                                     .rank_message = &message});
}

static void from_ranks(struct bench *b, Dpt__RankPhase phase, uint64_t generation)
{
    for (uint32_t i = 0; i < RANKS; i++)
        from_rank(b, i, phase, generation);
}

static void rank_exits(struct bench *b, uint32_t local, int code)
{
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                     .local_rank = local,
                                     .spawn = b->spawns[local],
                                     .exit_code = code});
}

static struct bench bench;

static int setup(void **state)
{
    struct bench *b = &bench;
    memset(b, 0, sizeof *b);
    b->now_ms = 1000;
    struct dpt_agent_options options = {.run = "demo",
                                        .node = "a",
                                        .software = "dpt test",
                                        .incarnation = 5,
                                        .timeout_ms = 5000,
                                        .now_ms = b->now_ms};
    struct dpt_err err;
    assert_int_equal(dpt_agent_create(&options, &b->agent, &err), DPT_OK);
    dpt__stamp__init(&b->stamp);
    b->stamp.epoch = 9;
    b->stamp.run = "demo";
    b->stamp.node = "a";
    b->stamp.incarnation = 5;
    dpt__server_state__init(&b->server);
    b->server.version = DPT_PROTO_VERSION;
    b->server.stamp = &b->stamp;
    b->server.grant_step = -1;
    dpt__rank_state__init(&b->rank);
    b->rank.step_applied = b->rank.outcome_step = b->rank.checkpoint_step = b->rank.grant_step = -1;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    dpt_agent_destroy(&b->agent);
    assert_null(b->agent);
    return 0;
}

#define SERVER(name)  DPT__SERVER_PHASE__SERVER_##name
#define RANK(name)    DPT__RANK_PHASE__RANK_##name
#define COMMAND(name) DPT__RANK_COMMAND__COMMAND_##name

static void join(struct bench *b)
{
    configure(b);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    assert_true(b->said && b->has_spec);
    from_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->spawns[0], 1);
    assert_int_equal(b->spawns[1], 1);
    from_ranks(b, RANK(STANDBY), 0);
}

/* Plan of generation 1 with the first processes of both ranks as its world. */
static void plan_arrives(struct bench *b)
{
    uint8_t nonce[DPT_PROTO_NONCE_BYTES] = {1};
    Dpt__Plan plan = DPT__PLAN__INIT;
    Dpt__PlanRank ranks[RANKS], *list[RANKS];
    plan.generation = 1;
    plan.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    plan.world_size = RANKS;
    plan.n_nodes = plan.n_hosts = 1;
    plan.digest = "plan";
    plan.ranks = list;
    plan.n_ranks = RANKS;
    for (uint32_t i = 0; i < RANKS; i++) {
        dpt__plan_rank__init(&ranks[i]);
        ranks[i].rank = i;
        ranks[i].local_rank = (int32_t)i;
        ranks[i].spawn = 1;
        list[i] = &ranks[i];
    }
    b->server.plan = &plan;
    from_server(b, SERVER(PLAN), 1);
    b->server.plan = NULL;
}

/* Generation 1 with both ranks of this node as its world. */
static void run(struct bench *b)
{
    join(b);
    from_server(b, SERVER(PREPARE), 1);
    assert_int_equal(b->command[0], COMMAND(PREPARE));
    from_ranks(b, RANK(QUIESCED), 1);
    plan_arrives(b);
    assert_int_equal(b->command[1], COMMAND(PLAN));
    from_ranks(b, RANK(READY), 1);
    from_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->rank.step_applied = 3;
    from_ranks(b, RANK(RUNNING), 1);
}

/* ---- joining ---- */

static void test_no_server(void **state)
{
    struct bench *b = *state;
    configure(b);
    pass(b, 59000);
    assert_false(b->ended);
    pass(b, 2000);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_SERVER);
    assert_non_null(strstr(b->exit_text, "no rendezvous server answered within 60 s"));
    assert_int_equal(b->spawns[0], 0);
}

static void test_config_from_server(void **state)
{
    struct bench *b = *state;
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    assert_true(b->said && !b->has_spec);
    Dpt__RunSpec spec = make_spec();
    b->server.spec = &spec;
    b->agent_counter = 0; /* not counted in */
    from_server(b, SERVER(WAITING), 0);
    assert_true(b->asked_config && b->config_given);
    b->asked_config = false;
    from_server(b, SERVER(WAITING), 0);
    assert_false(b->asked_config); /* once */
    configure(b);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 0);
}

static void test_config_of_the_demo(void **state)
{
    struct bench *b = *state;
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    b->agent_counter = 0;
    from_server(b, SERVER(WAITING), 0);
    assert_true(b->asked_config && !b->config_given);
}

static void test_refused(void **state)
{
    struct bench *b = *state;
    configure(b);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    Dpt__RunSpec spec = make_spec();
    b->server.spec = &spec;
    b->server.text = "the config differs";
    b->agent_counter = 0;
    from_server(b, SERVER(REFUSED), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
    assert_true(b->exit_has_spec); /* to name the keys */
    assert_non_null(strstr(b->exit_text, "the config differs"));
}

static void test_other_version(void **state)
{
    struct bench *b = *state;
    configure(b);
    b->server.version = DPT_PROTO_VERSION + 1;
    from_server(b, SERVER(WAITING), 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
}

static void test_not_for_us(void **state)
{
    struct bench *b = *state;
    configure(b);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    b->stamp.incarnation = 4; /* to an earlier life */
    from_server(b, SERVER(EXPELLED), 0);
    b->stamp.incarnation = 5;
    b->stamp.node = "b";
    from_server(b, SERVER(FAILED), 0);
    b->stamp.node = "a";
    b->stamp.run = "other";
    from_server(b, SERVER(DONE), 0);
    assert_false(b->ended);
    assert_int_equal(b->spawns[0], 0);
}

/* ---- stale words ---- */

static void test_stale_server(void **state)
{
    struct bench *b = *state;
    run(b);
    b->server_counter = 1; /* an old PREPARE comes again */
    from_server(b, SERVER(PREPARE), 1);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->server_counter = 100;
    from_server(b, SERVER(WAITING), 0); /* says nothing about what runs */
    pass(b, 200);
    assert_int_equal(b->command[0], COMMAND(GO));
    from_server(b, SERVER(PREPARE), 2);
    assert_int_equal(b->command[0], COMMAND(PREPARE));
    assert_int_equal(b->generation[0], 2);
}

static void test_restarted_server(void **state)
{
    struct bench *b = *state;
    run(b);
    from_server(b, SERVER(RUNNING), 1);
    pass(b, 200);
    assert_false(b->has_spec);
    b->stamp.epoch = 10;
    uint64_t counter = b->agent_counter;
    b->agent_counter = 0; /* it does not know us */
    from_server(b, SERVER(WAITING), 0);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 9);
    assert_int_equal(b->said_generation, 1);
    assert_int_equal(b->command[0], COMMAND(GO)); /* training goes on */
    b->agent_counter = counter + 1;
    b->server_counter = 0;
    from_server(b, SERVER(RUNNING), 1);
    pass(b, 200);
    assert_int_equal(b->said_epoch, 10);
    /* A late word of the dead server. */
    b->stamp.epoch = 9;
    b->server_counter = 1000;
    b->agent_counter = counter - 1;
    from_server(b, SERVER(PREPARE), 7);
    assert_int_equal(b->command[0], COMMAND(GO));
}

static void test_stale_spawn(void **state)
{
    struct bench *b = *state;
    run(b);
    rank_exits(b, 0, -9);
    assert_int_equal(b->phase[0], RANK(DEAD));
    pass(b, 150);
    assert_int_equal(b->spawns[0], 2);
    b->spawns[0] = 1;
    from_rank(b, 0, RANK(RUNNING), 1); /* last words of the dead one */
    b->spawns[0] = 1;
    rank_exits(b, 0, 0);
    pass(b, 100);
    assert_int_equal(b->phase[0], RANK(STARTING));
    assert_int_equal(b->crashes, 1);
}

/* ... not even when it has quiesced for the same generation: the plan was made from the report of
 * the one before it. */
static void test_plan_names_a_process(void **state)
{
    struct bench *b = *state;
    join(b);
    from_server(b, SERVER(PREPARE), 1);
    from_ranks(b, RANK(QUIESCED), 1);
    rank_exits(b, 0, -9);
    pass(b, 150);
    from_rank(b, 0, RANK(STANDBY), 0);
    from_rank(b, 0, RANK(QUIESCED), 1);
    plan_arrives(b);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(PLAN));
}

/* A successor is not sent into the generation of its predecessor. */
static void test_successor_is_a_joiner(void **state)
{
    struct bench *b = *state;
    run(b);
    rank_exits(b, 0, 1);
    pass(b, 150);
    from_rank(b, 0, RANK(STANDBY), 0);
    pass(b, 150);
    assert_int_equal(b->command[0], COMMAND(STANDBY));
    assert_int_equal(b->command[1], COMMAND(GO));
}

/* ---- ranks ---- */

static void test_crashes_back_off(void **state)
{
    struct bench *b = *state;
    run(b);
    int64_t pause_ms = 0;
    for (uint32_t i = 1; i <= 8; i++) {
        rank_exits(b, 1, 1);
        int64_t from_ms = b->now_ms;
        while (b->spawns[1] == i) {
            b->now_ms = b->out.deadline_ms;
            from_rank(b, 0, RANK(RUNNING), 1);
            step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
        }
        assert_true(b->now_ms - from_ms >= pause_ms);
        assert_true(b->now_ms - from_ms <= 5000);
        pause_ms = b->now_ms - from_ms;
    }
    assert_true(pause_ms >= 4000);
    assert_int_equal(b->crashes, 8);
    assert_string_equal(b->first_error, "rank process 1: exited with status 1");
    b->rank.step_applied = 13; /* ten steps on: overcome */
    from_rank(b, 0, RANK(RUNNING), 1);
    pass(b, 100);
    assert_string_equal(b->first_error, "");
}

static void test_silent_rank(void **state)
{
    struct bench *b = *state;
    run(b);
    for (int i = 0; i < 44; i++) {
        pass(b, 100);
        from_rank(b, 0, RANK(RUNNING), 1);
    }
    assert_int_equal(b->kills[1], 0);
    pass(b, 300);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
    assert_int_equal(b->phase[1], RANK(DEAD));
    rank_exits(b, 1, -9);
    assert_int_equal(b->crashes, 1); /* not counted twice */
}

static void test_no_quiescence(void **state)
{
    struct bench *b = *state;
    run(b);
    from_server(b, SERVER(PREPARE), 2);
    from_rank(b, 0, RANK(QUIESCED), 2);
    for (int i = 0; i < 49; i++) {
        pass(b, 100);
        from_rank(b, 0, RANK(QUIESCED), 2);
        from_rank(b, 1, RANK(RUNNING), 1); /* lives, but its main thread hangs */
    }
    assert_int_equal(b->kills[1], 0);
    pass(b, 300);
    assert_int_equal(b->kills[1], 1);
    assert_int_equal(b->kills[0], 0);
}

static void test_fatal(void **state)
{
    struct bench *b = *state;
    run(b);
    b->rank.text = "shard is truncated";
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    b->rank.local_rank = 0;
    message.state = &b->rank;
    message.fatal = true;
    message.exit_code = DPT_EXIT_CONFIG;
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                     .local_rank = 0,
                                     .spawn = 1,
                                     .rank_message = &message});
    assert_true(b->said && b->fatal);
    assert_string_equal(b->first_error, "rank process 0: shard is truncated");
    b->server.text = "node a: rank process 0: shard is truncated";
    from_server(b, SERVER(FAILED), 1);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    rank_exits(b, 0, -9);
    rank_exits(b, 1, -9);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_CONFIG);
}

/* ---- leaving and ending ---- */

static void test_leave_while_waiting(void **state)
{
    struct bench *b = *state;
    join(b);
    signal_(b);
    assert_true(b->said && b->leaving); /* goodbye, so that it is no crash */
    assert_int_equal(b->command[0], COMMAND(EXIT));
    rank_exits(b, 0, 0);
    rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

static void test_leave_before_anything(void **state)
{
    struct bench *b = *state;
    signal_(b);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
}

static void test_leave_and_released(void **state)
{
    struct bench *b = *state;
    run(b);
    signal_(b);
    assert_true(b->said && b->leaving && !b->ended);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->server.soft = true;
    from_server(b, SERVER(PREPARE), 2);
    b->server.soft = false;
    assert_int_equal(b->command[0], COMMAND(PREPARE_SOFT));
    from_ranks(b, RANK(QUIESCED), 2);
    from_server(b, SERVER(RELEASED), 2);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    pass(b, 1100); /* they do not exit: killed */
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    rank_exits(b, 0, -9);
    rank_exits(b, 1, -9);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    assert_true(b->ended);
}

static void leave_without_drain(struct bench *b, int64_t limit_ms)
{
    int64_t from_ms = b->now_ms;
    while (!b->ended && b->now_ms - from_ms < 20000) {
        pass(b, 100);
        if (b->kills[0] == 0)
            from_ranks(b, RANK(RUNNING), 1);
    }
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
    assert_true(b->now_ms - from_ms <= limit_ms);
}

/* Nobody answers and even the killed are not reaped: gone within ten seconds all the same. */
static void test_leave_does_not_drain(void **state)
{
    struct bench *b = *state;
    run(b);
    signal_(b);
    leave_without_drain(b, 10000);
}

static void test_second_signal(void **state)
{
    struct bench *b = *state;
    run(b);
    signal_(b);
    signal_(b);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    leave_without_drain(b, 2000);
}

static void test_done(void **state)
{
    struct bench *b = *state;
    run(b);
    from_ranks(b, RANK(FINISHED), 1);
    from_server(b, SERVER(DRAINING), 1);
    assert_false(b->ended);
    from_server(b, SERVER(DONE), 1);
    assert_int_equal(b->command[1], COMMAND(EXIT));
    assert_false(b->ended);
    rank_exits(b, 0, 0);
    rank_exits(b, 1, 0);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_DONE);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK}); /* ignored from now on */
    assert_int_equal(b->out.n_actions, 0);
}

/* All steps are done, but nobody acknowledges: not 0. */
static void test_done_without_server(void **state)
{
    struct bench *b = *state;
    run(b);
    for (int i = 0; i < 620 && !b->ended; i++) {
        if (b->kills[0] == 0)
            from_ranks(b, RANK(FINISHED), 1);
        pass(b, 100);
    }
    assert_true(b->kills[0] == 1);
    pass(b, 2000);
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_SERVER);
}

/* ---- expelled, and who may write ---- */

static void test_expelled(void **state)
{
    struct bench *b = *state;
    run(b);
    b->server.text = "this incarnation was lost";
    from_server(b, SERVER(EXPELLED), 2);
    assert_int_equal(b->kills[0] + b->kills[1], 2);
    assert_false(b->said); /* nothing more is said in its name */
    rank_exits(b, 0, -9);
    rank_exits(b, 1, -9);
    assert_true(b->said && b->has_spec);
    assert_int_equal(b->said_epoch, 0);
    assert_int_equal(b->said_generation, 0);
    assert_int_equal(b->crashes, 0);
    b->stamp.incarnation = 6;
    b->server_counter = 0;
    from_server(b, SERVER(SPARE), 2);
    assert_int_equal(b->spawns[0], 2);
    assert_int_equal(b->incarnation, 6);
}

static void test_expelled_again_and_again(void **state)
{
    struct bench *b = *state;
    join(b);
    for (int i = 0; i < 20 && !b->ended; i++) {
        from_server(b, SERVER(EXPELLED), 0);
        rank_exits(b, 0, -9);
        rank_exits(b, 1, -9);
        b->stamp.incarnation++;
        from_server(b, SERVER(WAITING), 0);
    }
    assert_true(b->ended);
    assert_int_equal(b->exit_code, DPT_EXIT_EXPELLED);
}

static void test_writing(void **state)
{
    struct bench *b = *state;
    run(b);
    pass(b, 200);
    assert_true(b->lease_ms[0] > b->now_ms);
    /* The server goes away: training goes on, and so does the log. */
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
    for (int i = 0; i < 300; i++) {
        pass(b, 100);
        from_ranks(b, RANK(RUNNING), 1);
    }
    assert_true(b->lease_ms[0] > b->now_ms);
    assert_false(b->ended);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    pass(b, 100);
    /* This node is stopped for longer than a lease: what it had been given has run out, and it is
       given nothing before the server has answered a message sent afterwards. */
    int64_t given_ms = b->lease_ms[0];
    uint64_t counter = b->agent_counter;
    b->now_ms += 6000;
    assert_true(given_ms < b->now_ms);
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    assert_true(b->said); /* asks at once */
    assert_true(b->lease_ms[0] < b->now_ms);
    from_ranks(b, RANK(RUNNING), 1);
    b->agent_counter = counter;
    from_server(b, SERVER(RUNNING), 1); /* an answer to an earlier one does not count */
    pass(b, 300);
    assert_true(b->lease_ms[0] < b->now_ms);
    from_server(b, SERVER(RUNNING), 1);
    pass(b, 200);
    assert_true(b->lease_ms[0] > b->now_ms);
}

static void test_memory_of_a_gap(void **state)
{
    struct bench *b = *state;
    run(b);
    b->now_ms += 20000; /* the ranks were not heard because nobody listened */
    step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    assert_int_equal(b->kills[0] + b->kills[1], 0);
    assert_false(b->ended);
}

int main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_no_server),
        T(test_config_from_server),
        T(test_config_of_the_demo),
        T(test_refused),
        T(test_other_version),
        T(test_not_for_us),
        T(test_stale_server),
        T(test_restarted_server),
        T(test_stale_spawn),
        T(test_successor_is_a_joiner),
        T(test_plan_names_a_process),
        T(test_crashes_back_off),
        T(test_silent_rank),
        T(test_no_quiescence),
        T(test_fatal),
        T(test_leave_while_waiting),
        T(test_leave_before_anything),
        T(test_leave_and_released),
        T(test_leave_does_not_drain),
        T(test_second_signal),
        T(test_done),
        T(test_done_without_server),
        T(test_expelled),
        T(test_expelled_again_and_again),
        T(test_writing),
        T(test_memory_of_a_gap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
