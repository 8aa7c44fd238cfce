/* The agent's loop with real rank processes (play_rank.c) and a scripted server (script_server.h):
 * one thread, no sockets, no waiting beyond the control plane's deadlines. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "tests/worker/agent/script_server.h"
#include "worker/agent/loop.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char *play_rank; /* path of the helper */

enum { LIMIT_S = 50 };

/* ---- scripts ---- */

/* A whole run of one rank: formation, GO, finished, DONE. A leaving node is released. */
static void script_run(struct world *world, const Dpt__AgentState *said, Dpt__ServerState *reply)
{
    const Dpt__RankState *rank = script_rank(said);
    if (rank == NULL || rank->phase == DPT__RANK_PHASE__RANK_STARTING ||
        rank->phase == DPT__RANK_PHASE__RANK_DEAD)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_WAITING, 0, "");
    else if (said->leaving)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_RELEASED, GENERATION, "");
    else if (rank->phase == DPT__RANK_PHASE__RANK_STANDBY)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_PREPARE, GENERATION, "");
    else if (rank->phase == DPT__RANK_PHASE__RANK_QUIESCED)
        script_reply_plan(world, said, reply, DPT__SERVER_PHASE__SERVER_PLAN);
    else if (rank->phase == DPT__RANK_PHASE__RANK_FINISHED)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_DONE, GENERATION, "");
    else
        script_reply_plan(world, said, reply, DPT__SERVER_PHASE__SERVER_RUNNING);
}

static void script_run_and_signal(struct world *world, const Dpt__AgentState *said,
                                  Dpt__ServerState *reply)
{
    const Dpt__RankState *rank = script_rank(said);
    if (rank != NULL && rank->phase == DPT__RANK_PHASE__RANK_RUNNING && world->turns++ == 0)
        assert_int_equal(kill(getpid(), SIGTERM), 0);
    script_run(world, said, reply);
}

static void script_refuse(struct world *world, const Dpt__AgentState *said, Dpt__ServerState *reply)
{
    (void)said;
    Dpt__RunSpec spec = world->node.spec;
    spec.config_yaml = (char *)(uintptr_t) "run: theirs\n";
    reply->spec = &spec;
    reply->counter_seen = 0;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_REFUSED, 0, "other optimizer.lr");
}

static void script_other_version(struct world *world, const Dpt__AgentState *said,
                                 Dpt__ServerState *reply)
{
    (void)said;
    reply->version = DPT_PROTO_VERSION + 1;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_REFUSED, 0, "this is dpt 9");
}

static void script_fail(struct world *world, const Dpt__AgentState *said, Dpt__ServerState *reply)
{
    (void)said;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_FAILED, 0, "node b: no space left");
}

/* Junk, then cut messages, then a run. */
static void script_garbage(struct world *world, const Dpt__AgentState *said,
                           Dpt__ServerState *reply)
{
    static const uint8_t junk[] = {0xff, 0x00, 0x12, 0x99};
    if (world->turns++ == 0) {
        script_push(world, junk, sizeof junk);
        script_push(world, junk, 0);
    }
    script_run(world, said, reply);
    if (world->turns == 2)
        world->queue[world->queued - 1].n /= 2;
}

/* Expels the first incarnation while it trains; the next one finishes. */
static void script_expel_once(struct world *world, const Dpt__AgentState *said,
                              Dpt__ServerState *reply)
{
    const Dpt__RankState *rank = script_rank(said);
    bool running = rank != NULL && rank->phase == DPT__RANK_PHASE__RANK_FINISHED;
    if (running && said->stamp->incarnation == 5)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_EXPELLED, GENERATION, "silent");
    else
        script_run(world, said, reply);
}

static void script_until_two_deaths(struct world *world, const Dpt__AgentState *said,
                                    Dpt__ServerState *reply)
{
    if (world->deaths >= 2 && world->spawn >= 2)
        script_reply(world, reply, DPT__SERVER_PHASE__SERVER_FAILED, 0, "two deaths");
    else
        script_run(world, said, reply);
}

/* Has a config to give, and asks for all else first. */
static void script_give_config(struct world *world, const Dpt__AgentState *said,
                               Dpt__ServerState *reply)
{
    if (said->spec != NULL || said->n_ranks > 0) {
        script_run(world, said, reply);
        return;
    }
    reply->counter_seen = 0;
    reply->spec = &world->node.spec;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_WAITING, 0, "");
}

/* No config at first, then as above. */
static void script_give_config_late(struct world *world, const Dpt__AgentState *said,
                                    Dpt__ServerState *reply)
{
    enum { LATE_TURNS = 3 };
    if (world->turns++ >= LATE_TURNS) {
        script_give_config(world, said, reply);
        return;
    }
    reply->counter_seen = 0;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_WAITING, 0, "");
}

/* The run that is asked for is not here; another one is. */
static void script_no_config(struct world *world, const Dpt__AgentState *said,
                             Dpt__ServerState *reply)
{
    assert_null(said->spec);
    reply->only_run = (char *)(uintptr_t) "theirs";
    reply->counter_seen = 0;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_WAITING, 0, "");
}

/* The run that is asked for is not here; several others are. */
static void script_no_config_of_several(struct world *world, const Dpt__AgentState *said,
                                        Dpt__ServerState *reply)
{
    assert_null(said->spec);
    reply->n_runs = 2;
    reply->counter_seen = 0;
    script_reply(world, reply, DPT__SERVER_PHASE__SERVER_WAITING, 0, "rq1, rq2");
}

/* The run that is asked for is one of several. */
static void script_give_config_of_several(struct world *world, const Dpt__AgentState *said,
                                          Dpt__ServerState *reply)
{
    reply->n_runs = 2;
    script_give_config(world, said, reply);
}

/* ---- running the loop ---- */

static enum dpt_status world_configure(void *ctx, const Dpt__RunSpec *spec,
                                       const struct dpt_node **ret, struct dpt_err *err)
{
    struct world *world = ctx;
    world->configured++;
    if (spec == NULL)
        return dpt_fail(err, DPT_ECONFIG, "no config for the test");
    assert_string_equal(spec->config_yaml, world->node.spec.config_yaml);
    *ret = &world->node;
    return DPT_OK;
}

static void make_node(struct world *world)
{
    struct dpt_node *node = &world->node;
    struct dpt_err err;
    static char text[DPT_CONFIG_TEXT_BYTES_MAX];
    dpt_config_defaults(&node->config);
    (void)snprintf(node->config.log.dir, sizeof node->config.log.dir, "%s/log", world->dir);
    (void)snprintf(node->config.data.train, sizeof node->config.data.train, "/dev/null");
    assert_int_equal(dpt_config_print(&node->config, text, &err), DPT_OK);
    node->config_text = text;
    node->config_bytes = strlen(text);
    node->n_ranks = node->threads = 1;
    dpt__run_spec__init(&node->spec);
    node->spec.min_nodes = node->spec.max_nodes = node->spec.max_world = 1;
    node->spec.timeout_ms = 2000;
    node->spec.config_digest = node->spec.user = (char *)(uintptr_t) "test";
    node->spec.config_yaml = text;
    node->facts = (struct dpt_agent_facts){.spec = &node->spec,
                                           .n_ranks = 1,
                                           .fingerprint = "cpu",
                                           .host = "host",
                                           .log_dir_id = "log",
                                           .checkpoint_dir_id = "",
                                           .data_digest = "data"};
}

static void open_loop_world(struct world *world, script_fn script, const char *play)
{
    *world = (struct world){.script = script, .event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    assert_true(test_make_dir(world->dir, sizeof world->dir, "loop"));
    make_node(world);
    assert_int_equal(setenv("DPT_PLAY_RANK", play, 1), 0);
}

static struct dpt_loop_end run_loop(struct world *world, bool with_node, const char *program)
{
    static struct dpt_worker_options worker;
    worker = (struct dpt_worker_options){.names_run = world->needs_run, .log_level = DPT_LOG_INFO};
    struct dpt_err err;
    struct dpt_terminal *terminal;
    const struct dpt_terminal_options nowhere = {.out_fd = -1, .err_fd = -1};
    assert_int_equal(dpt_terminal_create(&nowhere, &terminal, &err), DPT_OK);
    const struct dpt_loop_options options = {.worker = &worker,
                                             .agent = {.run = "test",
                                                       .node = "a",
                                                       .software = "dpt test",
                                                       .incarnation = 5,
                                                       .timeout_ms = world->timeout_ms},
                                             .node = with_node ? &world->node : NULL,
                                             .client = (struct dpt_client *)world,
                                             .configure = world_configure,
                                             .ctx = world,
                                             .program = program,
                                             .terminal = terminal,
                                             .endpoint = "127.0.0.1:1",
                                             .source = "the test"};
    struct dpt_loop_end end;
    if (dpt_loop_run(&options, &end, &err) != DPT_OK)
        fail_msg("%s", err.text);
    dpt_terminal_destroy(&terminal);
    close(world->event_fd);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no process is left */
    assert_int_equal(errno, ECHILD);
    return end;
}

static struct world world;

static int remove_dir(void **state)
{
    (void)state;
    struct dpt_err err;
    enum dpt_status status = world.dir[0] == '\0' ? DPT_OK : dpt_fs_remove_tree(world.dir, &err);
    world.dir[0] = '\0';
    return status == DPT_OK ? 0 : -1;
}

static void test_whole_run(void **state)
{
    (void)state;
    open_loop_world(&world, script_run, "");
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_DONE);
    assert_int_equal(end.closing.step, 7);
    assert_int_equal(end.closing.generation, GENERATION);
    assert_int_equal(world.spawn, 1);
    assert_int_equal(world.configured, 0);
    assert_false(end.closing.released);
    assert_null(end.run_config);
}

static void test_first_message_is_sent_again(void **state)
{
    (void)state;
    open_loop_world(&world, script_run, "");
    world.refuse_first = true;
    assert_int_equal(run_loop(&world, true, play_rank).exit_code, DPT_EXIT_DONE);
}

static void test_sigterm_leaves(void **state)
{
    (void)state;
    open_loop_world(&world, script_run_and_signal, "run");
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_DONE);
    assert_true(world.leaving);
    assert_true(end.closing.released);
}

static void test_refused_node_ends(void **state)
{
    (void)state;
    open_loop_world(&world, script_refuse, "");
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_CONFIG);
    assert_non_null(strstr(end.text, "other optimizer.lr"));
    assert_string_equal(end.run_config, "run: theirs\n");
    free(end.run_config);
}

static void test_rank_of_other_version_is_refused(void **state)
{
    (void)state;
    open_loop_world(&world, script_other_version, "");
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_CONFIG);
    assert_non_null(strstr(end.text, "this is dpt 9"));
    free(end.run_config);
}

static void test_failed_run_ends_node(void **state)
{
    (void)state;
    open_loop_world(&world, script_fail, "");
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_FAILED);
    assert_non_null(strstr(end.text, "node b: no space left"));
}

static void test_server_sends_garbage(void **state)
{
    (void)state;
    open_loop_world(&world, script_garbage, "");
    assert_int_equal(run_loop(&world, true, play_rank).exit_code, DPT_EXIT_DONE);
}

static void test_nobody_answers(void **state)
{
    (void)state;
    open_loop_world(&world, script_run, "");
    world.silent = true;
    world.timeout_ms = 100;
    world.node.spec.timeout_ms = 100;
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_SERVER);
    assert_true(end.text[0] != '\0');
}

/* The first cause is a guess; the closing line has the newest. */
static void test_denied_node_names_newest_cause(void **state)
{
    (void)state;
    open_loop_world(&world, script_run, "");
    world.silent = true;
    world.denials[0] = "another key, or busy";
    world.denials[1] = "the server there has no keys";
    world.timeout_ms = 100;
    world.node.spec.timeout_ms = 100;
    struct dpt_loop_end end = run_loop(&world, true, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_DENIED);
    assert_string_equal(end.text, "the server there has no keys");
}

static void test_crashed_rank_has_a_successor(void **state)
{
    (void)state;
    open_loop_world(&world, script_run, "crash");
    assert_int_equal(run_loop(&world, true, play_rank).exit_code, DPT_EXIT_DONE);
    assert_true(world.deaths > 0);
    assert_int_equal(world.spawn, 2);
    assert_non_null(strstr(world.first_error, "the shard is gone"));
}

/* Each process breaks at its first report, and is replaced until the server has seen enough. */
static void test_rank_that_sends_garbage_is_ended(void **state)
{
    (void)state;
    open_loop_world(&world, script_until_two_deaths, "garbage");
    assert_int_equal(run_loop(&world, true, play_rank).exit_code, DPT_EXIT_FAILED);
    assert_true(world.spawn >= 2);
}

static void test_expelled_comes_back(void **state)
{
    (void)state;
    open_loop_world(&world, script_expel_once, "");
    assert_int_equal(run_loop(&world, true, play_rank).exit_code, DPT_EXIT_DONE);
    assert_int_equal(world.incarnation, 6);
    assert_int_equal(world.spawn, 2);
}

static void test_config_from_the_server(void **state)
{
    (void)state;
    open_loop_world(&world, script_give_config, "");
    assert_int_equal(run_loop(&world, false, play_rank).exit_code, DPT_EXIT_DONE);
    assert_int_equal(world.configured, 1);
}

/* The hook is not asked for a separate config. */
static void test_config_comes_late(void **state)
{
    (void)state;
    open_loop_world(&world, script_give_config_late, "");
    world.needs_run = true;
    assert_int_equal(run_loop(&world, false, play_rank).exit_code, DPT_EXIT_DONE);
    assert_int_equal(world.configured, 1);
}

static void test_config_never_comes(void **state)
{
    (void)state;
    open_loop_world(&world, script_no_config, "");
    world.needs_run = true;
    world.timeout_ms = 100;
    struct dpt_loop_end end = run_loop(&world, false, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_SERVER);
    assert_true(end.no_run);
    assert_string_equal(end.why, "nothing listens");
    assert_string_equal(end.other_run, "");
    assert_int_equal(world.configured, 0);
}

/* Neither a config nor a run's name was given: the loop begins nothing and names the run. */
static void test_only_run_is_meant(void **state)
{
    (void)state;
    open_loop_world(&world, script_no_config, "");
    struct dpt_loop_end end = run_loop(&world, false, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_DONE);
    assert_string_equal(end.other_run, "theirs");
    assert_int_equal(world.configured, 0);
}

static void test_several_runs_are_named(void **state)
{
    (void)state;
    open_loop_world(&world, script_no_config_of_several, "");
    struct dpt_loop_end end = run_loop(&world, false, play_rank);
    assert_int_equal(end.exit_code, DPT_EXIT_CONFIG);
    assert_string_equal(end.text, "no config given, and the server at 127.0.0.1:1 has the runs "
                                  "rq1, rq2: name one with --rdzv-id, or give --config FILE");
    assert_string_equal(end.other_run, "");
    assert_int_equal(world.configured, 0);
}

/* A run that has the demo's name is not taken for the one that is meant. */
static void test_one_of_several_runs_is_not_guessed(void **state)
{
    (void)state;
    open_loop_world(&world, script_give_config_of_several, "");
    assert_int_equal(run_loop(&world, false, play_rank).exit_code, DPT_EXIT_CONFIG);
    assert_int_equal(world.configured, 0);
}

/* A worker that names its run takes that one. */
static void test_named_run_of_several_is_joined(void **state)
{
    (void)state;
    open_loop_world(&world, script_give_config_of_several, "");
    world.needs_run = true;
    assert_int_equal(run_loop(&world, false, play_rank).exit_code, DPT_EXIT_DONE);
    assert_int_equal(world.configured, 1);
}

static void test_program_is_missing(void **state)
{
    (void)state;
    open_loop_world(&world, script_until_two_deaths, "");
    struct dpt_loop_end end = run_loop(&world, true, "/nonexistent/rank");
    assert_int_equal(end.exit_code, DPT_EXIT_FAILED);
    assert_non_null(strstr(world.first_error, "/nonexistent/rank"));
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    play_rank = argv[1];
    (void)alarm(LIMIT_S); /* the loop takes SIGTERM for itself */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_whole_run, remove_dir),
        cmocka_unit_test_teardown(test_first_message_is_sent_again, remove_dir),
        cmocka_unit_test_teardown(test_sigterm_leaves, remove_dir),
        cmocka_unit_test_teardown(test_refused_node_ends, remove_dir),
        cmocka_unit_test_teardown(test_rank_of_other_version_is_refused, remove_dir),
        cmocka_unit_test_teardown(test_failed_run_ends_node, remove_dir),
        cmocka_unit_test_teardown(test_server_sends_garbage, remove_dir),
        cmocka_unit_test_teardown(test_nobody_answers, remove_dir),
        cmocka_unit_test_teardown(test_denied_node_names_newest_cause, remove_dir),
        cmocka_unit_test_teardown(test_crashed_rank_has_a_successor, remove_dir),
        cmocka_unit_test_teardown(test_rank_that_sends_garbage_is_ended, remove_dir),
        cmocka_unit_test_teardown(test_expelled_comes_back, remove_dir),
        cmocka_unit_test_teardown(test_config_from_the_server, remove_dir),
        cmocka_unit_test_teardown(test_config_comes_late, remove_dir),
        cmocka_unit_test_teardown(test_config_never_comes, remove_dir),
        cmocka_unit_test_teardown(test_only_run_is_meant, remove_dir),
        cmocka_unit_test_teardown(test_several_runs_are_named, remove_dir),
        cmocka_unit_test_teardown(test_one_of_several_runs_is_not_guessed, remove_dir),
        cmocka_unit_test_teardown(test_named_run_of_several_is_joined, remove_dir),
        cmocka_unit_test_teardown(test_program_is_missing, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
