/* What is said of the state: a start, a loss, a standstill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/agent/progress_scene.h"

/* A loss has one line, whatever the server answers until the next generation trains. */
static void loss_has_one_line(void **state)
{
    (void)state;
    for (int is_first = 0; is_first < 2; is_first++) {
        struct scene s;
        open_scene(&s, is_first);
        update(&s);
        said[0] = '\0';
        static const Dpt__ServerPhase phases[] = {
            DPT__SERVER_PHASE__SERVER_PREPARE, DPT__SERVER_PHASE__SERVER_WAITING,
            DPT__SERVER_PHASE__SERVER_SETTLING, DPT__SERVER_PHASE__SERVER_PREPARE,
            DPT__SERVER_PHASE__SERVER_PLAN};
        for (size_t i = 0; i < sizeof phases / sizeof phases[0]; i++) {
            stand_still(&s, phases[i], 1);
            for (int k = 0; k < 3; k++)
                update_more(&s);
        }
        next_generation(&s, "rank_lost", "rank 1 (node b, host h) died: signal 9", 1);
        s.view.still_ms = 264;
        s.view.resume_step = 5;
        for (int k = 0; k < 3; k++)
            update_more(&s);
        assert_string_equal(said, "rank 1 (node b, host h) died: signal 9; training resumed after "
                                  "264 ms, 0 steps lost, world 2 -> 1\n");
    }
}

/* Training that stops for longer than the patience gives one more line; a stop that only another
 * node can end gives its own line. */
static void long_standstill_has_one_line_more(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 1);
    update(&s);
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update_more(&s);
    assert_string_equal(said, "training is paused; 1 node is here, ranks are starting\n");
    stand_still(&s, DPT__SERVER_PHASE__SERVER_PREPARE, 1);
    update_more(&s);
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update_more(&s);
    assert_int_equal(count_of("\n"), 1);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 1);
    s.config.cluster.nnodes_min = 2;
    update_more(&s);
    update_more(&s);
    assert_int_equal(count_of("\n"), 2);
    assert_int_equal(count_of("training is paused; waiting for nodes: 1 of 2 at head:1\n"), 1);
    next_generation(&s, "node_lost", "node b lost: silent", 1);
    update_more(&s);
    assert_int_equal(count_of("\n"), 3);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 1); /* the next loss has its patience anew */
    update(&s);
    assert_string_equal(said, "");
}

/* Before training has begun, the awaited event is reported at once; slow progress is not
 * reported. */
static void start_says_what_it_waits_for(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 1);
    s.config.cluster.nnodes_min = 2;
    update(&s);
    assert_string_equal(said, "waiting for nodes: 1 of 2 at head:1\n");
    stand_still(&s, DPT__SERVER_PHASE__SERVER_SETTLING, 2);
    s.view.last_call.length_ms = 400;
    update(&s);
    assert_string_equal(said, "2 nodes are here; last call for more, 0.4 s\n");
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 2);
    update(&s);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_PREPARE, 2);
    update_more(&s);
    assert_string_equal(said, "");
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 2);
    update(&s);
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update_more(&s);
    assert_string_equal(said, "2 nodes are here, ranks are starting\n");
}

/* A node that leaves does not say that it waits for a generation. */
static void node_that_leaves_waits_for_no_generation(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    s.view.leaving = true;
    update(&s);
    assert_string_equal(said, "leaving at the next step boundary\n");
    stand_still(&s, DPT__SERVER_PHASE__SERVER_WAITING, 1);
    update(&s);
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update_more(&s);
    assert_string_equal(said, "");
}

/* A node whose only rank is replaced is left out for a moment. */
static void node_left_out_says_so_when_it_lasts(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false);
    update(&s);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_SPARE, 2);
    s.view.generation = 2;
    update(&s);
    assert_string_equal(said, "");
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update(&s);
    assert_string_equal(said, "generation 2: this node is a spare\n");
    open_scene(&s, false);
    stand_still(&s, DPT__SERVER_PHASE__SERVER_SPARE, 2);
    update(&s);
    assert_int_equal(count_of("this node is a spare"), 1);
}

static void long_formation_is_said_before_its_end(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    s.view.phase = DPT__SERVER_PHASE__SERVER_PREPARE;
    s.view.generation = 2;
    s.view.trains = false;
    s.view.computing = true; /* the step in flight is long */
    update(&s);
    assert_string_equal(said, "");
    s.now_ms += DPT_PROGRESS_FORMING_MS;
    update(&s);
    assert_string_equal(said, "forming generation 2\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_has_one_line),
        cmocka_unit_test(long_standstill_has_one_line_more),
        cmocka_unit_test(start_says_what_it_waits_for),
        cmocka_unit_test(node_that_leaves_waits_for_no_generation),
        cmocka_unit_test(node_left_out_says_so_when_it_lasts),
        cmocka_unit_test(long_formation_is_said_before_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
