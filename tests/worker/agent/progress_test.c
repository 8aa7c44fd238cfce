/* What is said when: steps through changes of the world, recoveries, waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/worker/agent/progress_scene.h"

#include <stdio.h>
#include <string.h>

static void every_step_has_one_line(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    assert_string_equal(said, "generation 1: training on 2 ranks\n");
    tell(&s, 1, 3);
    update(&s);
    assert_int_equal(count_of("step "), 3);
    update(&s); /* the same message again */
    assert_string_equal(said, "");
    tell(&s, 4, 4);
    update(&s);
    assert_int_equal(count_of("step 4/100 "), 1);
}

/* Of the steps between two lines the live line shows the newest. */
static void live_line_does_not_wait_for_a_line(void **state)
{
    (void)state;
    struct scene s;
    for (int live = 0; live < 2; live++) {
        open_scene(&s, true);
        s.config.train.log_every = 10;
        if (live)
            show_live(&s);
        update(&s);
        for (int64_t step = 7; step <= 12; step++) {
            tell(&s, step, step);
            update_more(&s);
        }
        assert_int_equal(count_of("step "), live ? 0 : 1);
        assert_int_equal(count_of("step 10/100"), live ? 0 : 1);
    }
    assert_int_equal(shown.step.step, 12);
}

static void others_say_that_they_do_not_say_steps(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false);
    update(&s);
    assert_string_equal(said,
                        "generation 1: training on 2 ranks; steps are shown where rank 0 is\n");
    tell(&s, 1, 3);
    s.view.val.step = 2;
    update(&s);
    assert_string_equal(said, "");
}

/* A step that was committed while the world broke is reported in the next generation, once. */
static void step_survives_a_change_of_the_world(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    tell(&s, 1, 4);
    update(&s);
    next_generation(&s, "rank_lost", "rank 1 (node b) died: signal 9", 1);
    s.view.resume_step = 5;
    s.view.still_ms = 20;
    tell(&s, 5, 6);
    update(&s);
    assert_int_equal(count_of("training resumed after 20 ms, 0 steps lost, world 2 -> 1\n"), 1);
    assert_int_equal(count_of("step 5/100"), 1);
    assert_int_equal(count_of("step 6/100"), 1);
}

/* Lines of steps that went down with rank 0's process are not passed over in silence. */
static void lines_that_were_lost_are_elsewhere(void **state)
{
    (void)state;
    static const struct {
        int64_t log_every, said_to, resume, next;
        const char *text;
    } rows[] = {
        {1, 3, 5, 6, "(steps 4-5 are in metrics.jsonl)\n"},
        {1, 3, 5, 5, "(step 4 is in metrics.jsonl)\n"},
        {1, 5, 5, 6, ""},
        {10, 20, 45, 50, "(steps 30-40 are in metrics.jsonl)\n"},
        {10, 20, 29, 30, ""},
        {1, 5, 3, 4, ""}, /* steps that are made again */
        {0, 3, 5, 6, ""}, /* not known */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int live = 0; live < 2; live++) {
            struct scene s;
            open_scene(&s, true);
            s.config.train.log_every = rows[i].log_every;
            if (live)
                show_live(&s);
            update(&s);
            for (int64_t step = 1; step <= rows[i].said_to; step++) {
                tell(&s, step, step);
                if (rows[i].log_every == 0 || step % rows[i].log_every == 0)
                    update(&s);
            }
            next_generation(&s, "rank_lost", "rank 0 (node a) died: signal 9", 2);
            s.view.resume_step = rows[i].resume;
            update(&s);
            tell(&s, rows[i].next, rows[i].next);
            update(&s);
            const size_t bytes = strlen(rows[i].text);
            if (live)
                assert_string_equal(said, "");
            else if (strncmp(said, rows[i].text, bytes) != 0 ||
                     strncmp(said + bytes, "step ", 5) != 0)
                fail_msg("row %zu: %s", i, said);
        }
}

/* Where a run goes on from, and that nothing is left to do, is said at its start. */
static void start_says_what_it_goes_on_from(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.view.resume_step = s.view.step = 25;
    update(&s);
    assert_string_equal(said,
                        "generation 1: training on 2 ranks from step 25 (checkpoint in ck)\n");
    open_scene(&s, false);
    s.view.resume_step = s.view.step = 25;
    s.view.unsaved_steps = 5; /* so it comes from the memory of another node */
    update(&s);
    assert_string_equal(said, "generation 1: training on 2 ranks from step 25; steps are shown "
                              "where rank 0 is\n");
    open_scene(&s, true);
    s.view.resume_step = s.view.step = 100;
    update(&s);
    assert_string_equal(said, "generation 1: already finished at step 100; for more: --set "
                              "train.steps=N --allow-change train.steps\n");
    open_scene(&s, true);
    s.config.train.epochs = 10;
    s.view.resume_step = s.view.step = 100;
    update(&s);
    assert_string_equal(said, "generation 1: already finished at step 100; for more: --set "
                              "train.epochs=N --allow-change train.epochs\n");
}

/* An epoch has a line that stays, on a live terminal, too, and once; a part of one says so. */
static void epochs_have_lines(void **state)
{
    (void)state;
    struct scene s;
    for (int live = 0; live < 2; live++) {
        open_scene(&s, true);
        s.config.train.log_every = 50;
        s.config.train.epochs = 25;
        s.config.train.epoch_steps = 4;
        if (live)
            show_live(&s);
        update(&s);
        tell(&s, 1, 4);
        s.steps[3].epoch = 1;
        s.steps[3].epoch_first_step = 1;
        s.steps[3].epoch_avg_loss = 2.5;
        s.steps[3].epoch_seconds = 12.3;
        s.steps[3].epoch_samples_per_s = 512;
        update(&s);
        assert_string_equal(said, "Epoch 1/25 | Avg loss 2.5000 | 12.3 s | 512 samples/s\n");
        update(&s); /* the same message again */
        assert_string_equal(said, "");
        s.steps[0] = s.steps[3];
        s.steps[0].step = 8;
        s.steps[0].epoch = 2;
        s.steps[0].epoch_first_step = 7;
        s.first.n_steps = 1;
        update(&s);
        assert_string_equal(
            said, "Epoch 2/25 | Avg loss 2.5000 (of steps 7-8) | 12.3 s | 512 samples/s\n");
    }
}

/* The last node leaves: the line names the state to resume from, also with --quiet. */
static void last_node_says_what_is_saved(void **state)
{
    (void)state;
    for (int others = 0; others < 2; others++) {
        struct scene s;
        open_scene(&s, true);
        s.view.n_nodes = 1 + (uint32_t)others;
        s.progress.options.quiet = true;
        update(&s);
        next_generation(&s, "rank_lost", "rank 1 (node b) died: signal 9", 1);
        s.view.steps_lost = 2;
        update(&s);
        next_generation(&s, "joined", "node c joined", 2);
        s.view.steps_lost = 0;
        tell(&s, 1, 3);
        s.view.step = 3;
        s.view.leaving = true;
        update(&s);
        s.view.phase = DPT__SERVER_PHASE__SERVER_RELEASED;
        update(&s);
        s.view.step = -1; /* its ranks are gone */
        s.view.unsaved_steps = 0;
        s.view.ended = true;
        update(&s);
        if (others) {
            assert_string_equal(said, "");
            continue;
        }
        assert_int_equal(
            count_of("step 3 is saved (checkpoint in ck)\n  steps            3 of 100\n"
                     "  last loss        0.0000\n"),
            1);
        assert_int_equal(count_of("  checkpoints      the last of step 3\n"
                                  "  recoveries       1, 2 steps lost\n"),
                         1);
        update(&s);
        assert_string_equal(said, "");
    }
}

/* An operator stops the run: the node of rank 0 prints what the last node prints. */
static void stopped_run_says_what_is_saved(void **state)
{
    (void)state;
    for (int first = 0; first < 2; first++) {
        struct scene s;
        open_scene(&s, first);
        s.view.n_nodes = 2;
        s.progress.options.quiet = true;
        update(&s);
        if (first)
            tell(&s, 1, 3);
        s.view.step = 3;
        s.view.paused = true;
        update(&s);
        s.view.phase = DPT__SERVER_PHASE__SERVER_DONE;
        update(&s);
        assert_string_equal(said, "");
        s.view.step = -1; /* its ranks are gone */
        s.view.ended = true;
        update(&s);
        assert_int_equal(
            count_of("step 3 is saved (checkpoint in ck)\n  steps            3 of 100\n"), first);
        if (!first)
            assert_string_equal(said, "");
        update(&s);
        assert_string_equal(said, "");
    }
}

/* Nothing is said to be saved that is not. */
static void unsaved_steps_are_not_called_saved(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.view.n_nodes = 1;
    s.view.step = 3;
    s.view.unsaved_steps = 1;
    s.view.leaving = true;
    update(&s);
    s.view.phase = DPT__SERVER_PHASE__SERVER_RELEASED;
    s.view.step = -1;
    s.view.unsaved_steps = 0;
    s.view.ended = true;
    update(&s);
    assert_string_equal(said, "");
}

/* The node that has become first prints the step of the world, because the line of that step may be
 * lost with another node. */
static void new_first_node_takes_over(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, false);
    update(&s);
    tell(&s, 3, 5);
    next_generation(&s, "node_lost", "node a lost: connection broken", 1);
    s.view.first = &s.first;
    s.view.resume_step = 5;
    tell(&s, 3, 5);
    update(&s);
    assert_int_equal(count_of("step 4/"), 0);
    assert_int_equal(count_of("step 5/"), 1);
    update(&s);
    assert_string_equal(said, "");
}

static void steps_that_are_made_again_are_said_again(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    update(&s);
    tell(&s, 1, 6);
    update(&s);
    next_generation(&s, "node_lost", "node b lost: silent", 1);
    s.view.resume_step = 2;
    s.view.steps_lost = 4;
    update(&s);
    assert_int_equal(count_of("4 steps lost"), 1);
    tell(&s, 3, 3);
    update(&s);
    assert_int_equal(count_of("step 3/100"), 1);
}

static void live_line_takes_the_place_of_step_lines(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    show_live(&s);
    update(&s);
    tell(&s, 1, 3);
    s.first.saved_step = 2;
    update(&s);
    assert_string_equal(said, "");
    assert_int_equal(shows, 1);
    assert_int_equal(shown.step.step, 3);
    assert_int_equal(shown.checkpoint, 2);
    assert_int_equal(shown.step.eta_ms, 97000);
    s.view.val.step = 3;
    s.view.val.loss = 1.5;
    update(&s); /* an evaluation has a line that stays */
    assert_string_equal(said, "step 3  val_loss 1.500000  perplexity 4.482\n");
    tell(&s, 4, 4);
    update(&s);
    assert_true(shown.val.step == 3);
    assert_int_equal(shows, 2);
}

static void labels_have_an_accuracy(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    show_live(&s);
    update(&s);
    tell(&s, 1, 3);
    update(&s);
    s.view.val.step = 3;
    s.view.val.loss = 1.5;
    s.view.val.right = 5;
    s.view.val.samples = 16;
    update(&s);
    assert_string_equal(said, "step 3  val_loss 1.500000\nEvaluation accuracy: 31.25%\n");
    tell(&s, 4, 4);
    update(&s);
    assert_true(shown.val.right == 5 && shown.val.samples == 16);
}

static void quiet_says_nothing_but_what_was_asked_for(void **state)
{
    (void)state;
    struct scene s;
    open_scene(&s, true);
    s.progress.options.quiet = true;
    update(&s);
    tell(&s, 1, 3);
    s.view.val.step = 3;
    update(&s);
    assert_string_equal(said, "");
    s.config.train.eval_only = true;
    s.view.val.step = 4;
    s.view.val.samples = 1;
    update(&s);
    assert_int_equal(count_of("step 4  val_loss"), 1);
    assert_int_equal(count_of("Evaluation accuracy: 0.00%"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(epochs_have_lines),
        cmocka_unit_test(every_step_has_one_line),
        cmocka_unit_test(live_line_does_not_wait_for_a_line),
        cmocka_unit_test(others_say_that_they_do_not_say_steps),
        cmocka_unit_test(step_survives_a_change_of_the_world),
        cmocka_unit_test(lines_that_were_lost_are_elsewhere),
        cmocka_unit_test(start_says_what_it_goes_on_from),
        cmocka_unit_test(last_node_says_what_is_saved),
        cmocka_unit_test(stopped_run_says_what_is_saved),
        cmocka_unit_test(unsaved_steps_are_not_called_saved),
        cmocka_unit_test(new_first_node_takes_over),
        cmocka_unit_test(steps_that_are_made_again_are_said_again),
        cmocka_unit_test(live_line_takes_the_place_of_step_lines),
        cmocka_unit_test(labels_have_an_accuracy),
        cmocka_unit_test(quiet_says_nothing_but_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
