/* What is said while no server answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/agent/progress_scene.h"

#include <stdio.h>

/* The connection ends, and for longer than the patience there is no other one. */
static void lose_server(struct scene *s)
{
    s->view.server_up = s->progress.answers = false;
    update(s);
    s->now_ms += DPT_PROGRESS_PATIENCE_MS;
    update_more(s);
}

static void connect_to_server(struct scene *s, bool answers)
{
    s->view.server_up = true;
    s->progress.answers = answers;
    update(s);
}

static void set_why(struct scene *s, const char *why)
{
    (void)snprintf(s->progress.why, sizeof s->progress.why, "%s", why);
}

static void lack_of_a_server_is_said_with_its_reason(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.view = (struct dpt_agent_view){.cause = "", .cause_kind = "", .timing = {.join_ms = 60000}};
    update(&s);
    assert_string_equal(said, ""); /* it may come in a moment */
    s.now_ms += DPT_PROGRESS_PATIENCE_MS;
    set_why(&s, "nothing listens");
    update(&s);
    assert_string_equal(said, "waiting for a server at head:1 (from the test; --rdzv-endpoint "
                              "HOST:PORT changes it) for at most 60 s: nothing listens\n");
    update(&s);
    assert_string_equal(said, "");
    s.now_ms += DPT_PROGRESS_AGAIN_MS;
    update(&s);
    assert_int_equal(count_of("nothing listens"), 1);
}

/* An error is never quiet. */
static void reason_is_said_though_it_should_be_quiet(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.progress.options.quiet = true;
    s.view = (struct dpt_agent_view){.cause = "", .cause_kind = "", .timing = {.join_ms = 60000}};
    update(&s);
    s.now_ms += DPT_PROGRESS_LOOKING_MS;
    update(&s);
    assert_string_equal(said, ""); /* a server that is late is no error */
    set_why(&s, "the name 'head' has no address");
    update(&s);
    assert_int_equal(count_of("waiting for a server at head:1 "), 1);
    assert_int_equal(count_of(": the name 'head' has no address\n"), 1);
}

/* A connection alone is no server that is back: it may take connections and answer nobody. */
static void server_that_comes_back_is_said(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    lose_server(&s);
    assert_string_equal(said, "the server at head:1 is gone; training goes on, reconnecting\n");
    connect_to_server(&s, false);
    assert_string_equal(said, "");
    connect_to_server(&s, true);
    assert_string_equal(said, "the server at head:1 is back\n");
    lose_server(&s);
    assert_int_equal(count_of("is gone"), 1);
}

static void short_interruption_is_not_said(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    s.view.server_up = s.progress.answers = false;
    update(&s);
    assert_string_equal(said, "");
    connect_to_server(&s, true);
    assert_string_equal(said, "");
}

/* The planned change of the server's key ends the connection for about a second. */
static void change_of_the_servers_key_is_not_said(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    s.progress.awaits_new_key = true;
    lose_server(&s);
    assert_string_equal(said, "");
    connect_to_server(&s, true);
    assert_string_equal(said, "");
    lose_server(&s); /* for good */
    s.now_ms += DPT_PROGRESS_NEW_KEY_MS;
    update(&s);
    assert_string_equal(said, "the server at head:1 is gone; training goes on, reconnecting\n");
}

/* The line states what this node does without the server. */
static void what_goes_on_is_said(void **state)
{
    (void)state;
    static const struct {
        bool trained, paused, spare;
        const char *text;
    } rows[] = {
        {true, true, false, "the run stays paused"},  {false, true, false, "the run stays paused"},
        {true, false, false, "training is paused"},   {true, false, true, "nothing trains here"},
        {false, false, false, "nothing trains here"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[256];
        struct scene s;
        open_scene(&s, true);
        s.view.timing.join_ms = 60000;
        s.view.trains = rows[i].trained;
        update(&s);
        stand_still(
            &s, rows[i].spare ? DPT__SERVER_PHASE__SERVER_SPARE : DPT__SERVER_PHASE__SERVER_WAITING,
            1);
        s.view.paused = rows[i].paused;
        lose_server(&s);
        (void)snprintf(line, sizeof line,
                       "the server at head:1 is gone; %s, reconnecting for at most 60 s: start "
                       "dpt-rdzv there\n",
                       rows[i].text);
        assert_string_equal(said, line);
    }
}

/* Connections stand, are given up for their silence, and are made again. */
static void silent_server_is_said_once(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.view = (struct dpt_agent_view){.cause = "", .cause_kind = "", .timing = {.join_ms = 60000}};
    s.progress.answers = false;
    update(&s);
    s.now_ms += DPT_PROGRESS_LOOKING_MS;
    connect_to_server(&s, false);
    assert_string_equal(said, ""); /* it may answer in a moment */
    set_why(&s, DPT_CLIENT_SILENT);
    for (int i = 0; i < 8; i++) {
        s.view.server_up = !s.view.server_up;
        update_more(&s);
    }
    assert_string_equal(said, "waiting for a server at head:1 (from the test; --rdzv-endpoint "
                              "HOST:PORT changes it) for at most 60 s: the server there takes "
                              "connections but does not answer: see its log (a full disk of its "
                              "state folder has this effect)\n");
}

static void server_that_falls_silent_is_said(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    lose_server(&s);
    connect_to_server(&s, false);
    set_why(&s, DPT_CLIENT_SILENT);
    update(&s);
    assert_string_equal(said, "the server at head:1 takes connections but does not answer; "
                              "training goes on: see its log (a full disk of its state folder has "
                              "this effect)\n");
    s.view.computing = false;
    s.view.step = 7;
    s.view.unsaved_steps = 4;
    update(&s);
    assert_int_equal(count_of("does not answer and training is paused: this node keeps step 7"), 1);
    assert_int_equal(count_of("waits without limit: see its log"), 1);
    set_why(&s, "");
    connect_to_server(&s, true);
    assert_int_equal(count_of("the server at head:1 is back\n"), 1);
}

/* The server is there, and the node does not wait without limit. */
static void denied_node_says_what_it_does(void **state)
{
    (void)state;
    static const struct {
        bool computing;
        int64_t unsaved;
        enum dpt_agent_rescue rescue;
        const char *text;
    } rows[] = {
        {true, 4, DPT_AGENT_RESCUE_COMPLETE, "training goes on without the server: it denies\n"},
        {false, 0, DPT_AGENT_RESCUE_NONE,
         "training is paused, and this node waits to be let in again, for 60 s in all; then it "
         "ends: it denies\n"},
        {false, 4, DPT_AGENT_RESCUE_PART,
         "training is paused, and this node waits to be let in again, for 60 s in all; then it "
         "saves its step 7, because no checkpoint has the last 4 steps, and ends: it denies\n"},
        {false, 4, DPT_AGENT_RESCUE_NONE,
         "training is paused, and this node waits to be let in again, for 60 s in all; then it "
         "ends, and the last 4 steps here, which no checkpoint has, are lost: checkpoint.dir names "
         "no folder: it denies\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene s;
        open_scene(&s, true);
        s.progress.options.quiet = true; /* a line that asks for an action */
        s.view.timing.join_ms = 60000;
        s.view.step = 7;
        update(&s);
        (void)snprintf(s.progress.denial, sizeof s.progress.denial, "it denies");
        s.view.computing = rows[i].computing;
        s.view.unsaved_steps = rows[i].unsaved;
        s.view.rescue = rows[i].rescue;
        lose_server(&s);
        assert_string_equal(said, rows[i].text);
        s.progress.denial[0] = '\0'; /* admitted again */
        connect_to_server(&s, false);
        assert_string_equal(said, "");
    }
}

/* Quiet or not, and again and again: it waits for a person. */
static void steps_that_wait_for_a_server_are_said(void **state)
{
    (void)state;
    for (int quiet = 0; quiet < 2; quiet++) {
        struct scene s;
        open_scene(&s, true);
        s.progress.options.quiet = quiet;
        update(&s);
        s.view.step = 7;
        s.view.unsaved_steps = 4;
        lose_server(&s);
        assert_int_equal(count_of("training goes on"), !quiet);
        s.view.computing = false;
        update(&s);
        assert_int_equal(count_of("keeps step 7, no checkpoint has the last 4 steps"), 1);
        update(&s);
        assert_string_equal(said, "");
        s.now_ms += DPT_PROGRESS_AGAIN_MS;
        update(&s);
        assert_int_equal(count_of("it waits without limit: start dpt-rdzv there"), 1);
    }
}

static void steps_that_others_keep_are_said(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.progress.options.quiet = true;
    update(&s);
    s.view.computing = false;
    s.view.steps_elsewhere = 4;
    lose_server(&s);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(said,
                            "the server at head:1 is gone and training is paused: the last 4 steps "
                            "died with rank processes here, no checkpoint has them, other nodes "
                            "keep them, and this node waits without limit: start dpt-rdzv there "
                            "(or SIGTERM: it ends)\n");
        s.now_ms += DPT_PROGRESS_AGAIN_MS;
        update(&s);
    }
}

/* The line states the real effect of SIGTERM. */
static void way_out_is_said(void **state)
{
    (void)state;
    static const struct {
        enum dpt_agent_rescue rescue;
        const char *text;
    } rows[] = {
        {DPT_AGENT_RESCUE_COMPLETE, "there (or SIGTERM: saves what is held and ends)"},
        {DPT_AGENT_RESCUE_PART, "(or SIGTERM on all nodes within 2.5 s: each saves its part and "
                                "ends)"},
        {DPT_AGENT_RESCUE_NONE, "(SIGTERM ends and loses them: checkpoint.dir names no folder)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct scene s;
        open_scene(&s, true);
        update(&s);
        s.view.computing = false;
        s.view.unsaved_steps = 4;
        s.view.timing.drain_ms = 2500;
        s.view.rescue = rows[i].rescue;
        lose_server(&s);
        assert_int_equal(count_of(rows[i].text), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lack_of_a_server_is_said_with_its_reason),
        cmocka_unit_test(reason_is_said_though_it_should_be_quiet),
        cmocka_unit_test(server_that_comes_back_is_said),
        cmocka_unit_test(short_interruption_is_not_said),
        cmocka_unit_test(change_of_the_servers_key_is_not_said),
        cmocka_unit_test(what_goes_on_is_said),
        cmocka_unit_test(silent_server_is_said_once),
        cmocka_unit_test(server_that_falls_silent_is_said),
        cmocka_unit_test(denied_node_says_what_it_does),
        cmocka_unit_test(steps_that_wait_for_a_server_are_said),
        cmocka_unit_test(steps_that_others_keep_are_said),
        cmocka_unit_test(way_out_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
