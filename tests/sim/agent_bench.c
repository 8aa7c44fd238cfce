/* The bench: see agent_bench.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/sim/agent_bench.h"

#include <stdio.h>
#include <string.h>

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

void bench_step(struct bench *b, struct dpt_agent_event event)
{
    struct dpt_err err;
    event.now_ms = b->now_ms;
    assert_int_equal(dpt_agent_step(b->agent, &event, &b->out, &err), DPT_OK);
    const char *broken = agent_watch_step(b->watch, b->agent, &event, &b->out);
    if (broken != NULL)
        fail_msg("%s", broken);
    assert_true(b->out.deadline_ms > b->now_ms);
    take_actions(b);
    for (size_t i = 0; i < b->out.n_logs; i++)
        b->unsaved += strncmp(b->out.logs[i].text, "NOT SAVED: the last 3 steps", 27) == 0;
    for (size_t i = 0; i < b->out.n_logs; i++) {
        if (b->out.logs[i].level < DPT_LOG_WARN)
            continue;
        b->lines++;
        (void)snprintf(b->warning, sizeof b->warning, "%.500s", b->out.logs[i].text);
    }
    for (size_t i = 0; i < b->out.n_to_ranks; i++) {
        const struct dpt_agent_send *send = &b->out.to_ranks[i];
        b->command[send->local_rank] = send->message->command;
        b->lease_ms[send->local_rank] = send->message->lease_until_ms;
        b->confirmed_ms[send->local_rank] = send->message->confirmed_ms;
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
    b->step_high = said->step_high;
    b->has_spec = said->spec != NULL;
    b->said_epoch = said->stamp->epoch;
    b->said_generation = said->stamp->generation;
    (void)snprintf(b->first_error, sizeof b->first_error, "%s", said->first_error);
    for (size_t i = 0; i < said->n_ranks; i++) {
        b->phase[i] = said->ranks[i]->phase;
        b->silent_ms[i] = said->ranks[i]->silent_ms;
        (void)snprintf(b->text[i], sizeof b->text[i], "%s", said->ranks[i]->text);
    }
}

void bench_signal(struct bench *b)
{
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SIGNAL});
}

/* Time passes as in a loop that keeps its deadlines. */
void bench_pass(struct bench *b, int64_t ms)
{
    int64_t until_ms = b->now_ms + ms;
    while (b->now_ms < until_ms) {
        int64_t next_ms = b->out.deadline_ms < until_ms ? b->out.deadline_ms : until_ms;
        b->now_ms = next_ms > b->now_ms ? next_ms : b->now_ms + 1;
        bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_TICK});
    }
}

Dpt__RunSpec bench_spec(void)
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

void bench_configure(struct bench *b)
{
    Dpt__RunSpec spec = bench_spec();
    struct dpt_agent_facts facts = {.spec = &spec,
                                    .n_ranks = RANKS,
                                    .fingerprint = "cpu",
                                    .host = "host",
                                    .log_dir_id = "logs",
                                    .data_digest = "data"};
    (void)snprintf(facts.checkpoint_dir_id, sizeof facts.checkpoint_dir_id, "%s",
                   b->no_checkpoints ? "" : "checkpoints");
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_CONFIGURED, .facts = &facts});
}

void bench_server(struct bench *b, Dpt__ServerPhase phase, uint64_t generation)
{
    b->server.phase = phase;
    b->stamp.generation = generation;
    b->server.counter = ++b->server_counter;
    b->server.counter_seen = b->agent_counter;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_MESSAGE,
                                           .server_message = &b->server});
}

void bench_rank(struct bench *b, uint32_t local, Dpt__RankPhase phase, uint64_t generation)
{
    b->rank.local_rank = local;
    b->rank.spawn = b->spawns[local];
    b->rank.phase = phase;
    b->rank.generation = generation;
    Dpt__RankToAgent message = DPT__RANK_TO_AGENT__INIT;
    message.state = &b->rank;
    message.tokens_per_s = b->tokens_per_s;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                           .local_rank = local,
                                           .spawn = b->spawns[local],
                                           .rank_message = &message});
}

void bench_ranks(struct bench *b, Dpt__RankPhase phase, uint64_t generation)
{
    for (uint32_t i = 0; i < RANKS; i++)
        bench_rank(b, i, phase, generation);
}

void bench_last_words(struct bench *b, uint32_t local, char *text, Dpt__RankToAgent *message)
{
    b->rank.text = text;
    b->rank.local_rank = local;
    message->state = &b->rank;
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_MESSAGE,
                                           .local_rank = local,
                                           .spawn = 1,
                                           .rank_message = message});
}

void bench_rank_exits(struct bench *b, uint32_t local, int code)
{
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_RANK_EXITED,
                                           .local_rank = local,
                                           .spawn = b->spawns[local],
                                           .step = b->kept_step,
                                           .exit_code = code});
}

void bench_ranks_are_gone(struct bench *b)
{
    bench_rank_exits(b, 0, 0);
    bench_rank_exits(b, 1, 0);
    assert_true(b->ended);
}

void bench_rescues(struct bench *b)
{
    b->rank.rescued_step = 3;
    bench_rank(b, 0, RANK(QUIESCED), 2);
    bench_pass(b, 100);
    assert_int_equal(b->command[0], COMMAND(EXIT));
    bench_ranks_are_gone(b);
}

int bench_open(void **state)
{
    static struct bench bench;
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
    b->watch = agent_watch_create(options.run, options.node, true);
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

int bench_close(void **state)
{
    struct bench *b = *state;
    dpt_agent_destroy(&b->agent);
    assert_null(b->agent);
    agent_watch_destroy(&b->watch);
    return 0;
}

void bench_join(struct bench *b)
{
    bench_configure(b);
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_UP});
    assert_true(b->said && b->has_spec);
    bench_server(b, SERVER(WAITING), 0);
    assert_int_equal(b->spawns[0], 1);
    assert_int_equal(b->spawns[1], 1);
    bench_ranks(b, RANK(STANDBY), 0);
}

void bench_server_goes(struct bench *b)
{
    bench_step(b, (struct dpt_agent_event){.kind = DPT_AGENT_EVENT_SERVER_DOWN});
}

void bench_wait_in(struct bench *b, Dpt__RankPhase phase, uint64_t generation, int64_t ms)
{
    for (int64_t until_ms = b->now_ms + ms; b->now_ms < until_ms && !b->ended;) {
        bench_pass(b, 500);
        for (uint32_t i = 0; i < RANKS && !b->ended; i++)
            if (b->kills[i] == 0)
                bench_rank(b, i, phase, generation);
    }
}

/* Plan of generation 1 with the first processes of both ranks as its world. */
void bench_plan_of(struct bench *b, uint64_t generation, uint32_t spawn)
{
    uint8_t nonce[DPT_PROTO_NONCE_BYTES] = {1};
    Dpt__Plan plan = DPT__PLAN__INIT;
    Dpt__PlanRank ranks[RANKS], *list[RANKS];
    plan.generation = generation;
    plan.nonce = (ProtobufCBinaryData){sizeof nonce, nonce};
    plan.world_size = RANKS;
    plan.n_nodes = plan.n_hosts = 1;
    plan.digest = "plan";
    plan.ranks = list;
    plan.n_ranks = RANKS;
    for (uint32_t i = 0; i < RANKS; i++) {
        dpt__plan_rank__init(&ranks[i]);
        ranks[i].rank = ranks[i].position = i;
        ranks[i].checkpoint_slot = -1;
        ranks[i].local_rank = (int32_t)i;
        ranks[i].spawn = spawn;
        list[i] = &ranks[i];
    }
    b->server.plan = &plan;
    bench_server(b, SERVER(PLAN), generation);
    b->server.plan = NULL;
}

/* Generation 1 with both ranks of this node as its world. */
void bench_plan(struct bench *b)
{
    bench_plan_of(b, 1, 1);
}

void bench_run(struct bench *b)
{
    bench_join(b);
    bench_server(b, SERVER(PREPARE), 1);
    assert_int_equal(b->command[0], COMMAND(PREPARE));
    bench_ranks(b, RANK(QUIESCED), 1);
    bench_plan(b);
    assert_int_equal(b->command[1], COMMAND(PLAN));
    bench_ranks(b, RANK(READY), 1);
    bench_server(b, SERVER(RUNNING), 1);
    assert_int_equal(b->command[0], COMMAND(GO));
    b->rank.step_applied = 3;
    bench_ranks(b, RANK(RUNNING), 1);
}

/* In generation 1 until step 3, which no checkpoint has, and now too few are here. */
void bench_wait_with_steps(struct bench *b)
{
    bench_run(b);
    bench_server(b, SERVER(PREPARE), 2);
    bench_ranks(b, RANK(QUIESCED), 2);
    bench_server(b, SERVER(WAITING), 2);
}
