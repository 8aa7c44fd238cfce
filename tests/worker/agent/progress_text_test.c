/* The agent's lines, word for word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/agent/progress_text.h"

#include <math.h>
#include <string.h>

static char line[DPT_TEXT_LINE_BYTES];

static const struct dpt_step_facts step = {.step = 12,
                                           .steps = 100,
                                           .loss = 3.21044,
                                           .lr = 2.98e-4,
                                           .grad_norm = 0.9099,
                                           .tokens_per_s = 4812.3,
                                           .world_size = 2,
                                           .elapsed_ms = 5900,
                                           .eta_ms = 41200};

static void test_numbers_as_text(void **state)
{
    (void)state;
    static const struct {
        int64_t number;
        const char *text;
    } counts[] = {{0, "0"},
                  {999, "999"},
                  {1000, "1,000"},
                  {-1234, "-1,234"},
                  {1234567, "1,234,567"}},
      durations[] = {{0, "0.0 s"},
                     {5949, "5.9 s"},
                     {9960, "10 s"},
                     {41200, "41 s"},
                     {99400, "99 s"},
                     {99600, "1 min 40 s"},
                     {723000, "12 min 03 s"},
                     {7500000, "2 h 05 min"},
                     {360000000, "100 h 00 min"}};
    char text[DPT_TEXT_NUMBER_BYTES];
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        dpt_progress_text_count(counts[i].number, text);
        assert_string_equal(text, counts[i].text);
    }
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++) {
        dpt_progress_text_duration(durations[i].number, text);
        assert_string_equal(text, durations[i].text);
    }
}

static void epoch_line(void **state)
{
    (void)state;
    Dpt__StepRecord end = DPT__STEP_RECORD__INIT;
    end.epoch = 1;
    end.epoch_avg_loss = 3.21044;
    end.epoch_seconds = 12.34;
    end.epoch_samples_per_s = 512.4;
    end.epoch_first_step = 1;
    end.step = 40;
    dpt_progress_text_epoch(&end, 10, true, line);
    assert_string_equal(line, "Epoch 1/10 | Avg loss 3.2104 | 12.3 s | 512 samples/s");
    end.epoch_first_step = 26;
    end.epoch_samples_per_s = 0.52;
    dpt_progress_text_epoch(&end, 10, false, line);
    assert_string_equal(line,
                        "Epoch 1/10 | Avg loss 3.2104 (of steps 26-40) | 12.3 s | 0.5 samples/s");
    end.epoch_avg_loss = (double)NAN;
    end.epoch_samples_per_s = end.epoch_seconds = 0;
    dpt_progress_text_epoch(&end, 10, true, line);
    assert_string_equal(line, "Epoch 1/10 | Avg loss nan | 0.0 s | ? samples/s");
}

static void step_line(void **state)
{
    (void)state;
    dpt_progress_text_step(&step, line);
    assert_string_equal(line, "step 12/100  loss 3.2104  lr 2.98e-04  norm 0.91  4,812 tokens/s  2 "
                              "ranks  5.9 s  ETA 41 s");
    struct dpt_step_facts images = step;
    images.of_images = true;
    dpt_progress_text_step(&images, line);
    assert_non_null(strstr(line, "  4,812 images/s  "));
    const struct dpt_live_facts live = {.step = images};
    dpt_progress_text_live(&live, 200, false, line);
    assert_non_null(strstr(line, "  4,812 img/s  "));
    struct dpt_step_facts unknown = {.step = 7, .loss = (double)NAN, .world_size = 1, .eta_ms = -1};
    dpt_progress_text_step(&unknown, line);
    assert_string_equal(
        line, "step 7  loss nan  lr 0.00e+00  norm 0.00  ? tokens/s  1 rank  0.0 s  ETA ?");
}

static void huge_norms_are_short(void **state)
{
    (void)state;
    struct dpt_step_facts facts = step;
    static const struct {
        double norm;
        const char *text;
    } rows[] = {{999999.25, "  norm 999999.25  "},
                {1e6, "  norm 1e+06  "},
                {1.23456e38, "  norm 1.23e+38  "},
                {(double)INFINITY, "  norm inf  "}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        facts.grad_norm = rows[i].norm;
        dpt_progress_text_step(&facts, line);
        assert_non_null(strstr(line, rows[i].text));
        const struct dpt_live_facts live = {.step = facts};
        dpt_progress_text_live(&live, 200, false, line);
        assert_non_null(strstr(line, rows[i].text));
    }
}

static void live_line_of_any_width(void **state)
{
    (void)state;
    const struct dpt_live_facts facts = {
        .step = step, .val = {.step = 10, .loss = 3.3}, .checkpoint = 10};
    static const struct {
        int columns;
        const char *text;
    } lines[] = {
        {200, "[###.........................]  step 12/100  loss 3.2104  val 3.3000  lr 2.98e-04  "
              "norm 0.91  4,812 tok/s  2 ranks  ETA 41 s  saved 10"},
        {80, "step 12/100  loss 3.2104  val 3.3000  4,812 tok/s  2 ranks  ETA 41 s  saved 10"},
        {60, "step 12/100  loss 3.2104  4,812 tok/s  ETA 41 s  saved 10"},
        {40, "step 12/100  loss 3.2104  ETA 41 s"},
        {24, "step 12/100"},
        {12, "step 12/100"},
        {11, ""},
        {1, ""},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        dpt_progress_text_live(&facts, lines[i].columns, false, line);
        assert_string_equal(line, lines[i].text);
    }
    for (int columns = 1; columns < 250; columns++) {
        dpt_progress_text_live(&facts, columns, false, line);
        assert_true((int)strlen(line) < columns);
    }
}

static void live_line_with_labels(void **state)
{
    (void)state;
    const struct dpt_live_facts facts = {
        .step = step, .val = {.step = 10, .loss = 3.3, .right = 2, .samples = 3}};
    dpt_progress_text_live(&facts, 100, false, line);
    assert_non_null(strstr(line, "  loss 3.2104  val 3.3000 66.67%  "));
}

static void bar_grows_from_nothing_to_all(void **state)
{
    (void)state;
    struct dpt_live_facts facts = {.step = {.step = 0, .steps = 4, .world_size = 1}};
    dpt_progress_text_live(&facts, 200, true, line);
    assert_null(strstr(line, "█"));
    facts.step.step = 4;
    dpt_progress_text_live(&facts, 200, true, line);
    assert_null(strstr(line, "░"));
    facts.step.steps = 0; /* its progress is unknown */
    dpt_progress_text_live(&facts, 200, true, line);
    assert_true(strncmp(line, "step 4  ", 8) == 0);
}

static void recovery_is_one_line(void **state)
{
    (void)state;
    struct dpt_agent_view view = {
        .cause = "rank 3 (node b, host gpu7) died: signal 9", .still_ms = 264, .world_size = 3};
    dpt_progress_text_recovery(&view, 4, line);
    assert_string_equal(line, "rank 3 (node b, host gpu7) died: signal 9; training resumed after "
                              "264 ms, 0 steps lost, world 4 -> 3");
    view = (struct dpt_agent_view){
        .cause = "node c joined", .still_ms = 12345, .steps_lost = 1, .world_size = 2};
    dpt_progress_text_recovery(&view, 0, line);
    assert_string_equal(line, "node c joined; training resumed after 12 s, 1 step lost, world 2");
}

static void summary_is_an_aligned_block(void **state)
{
    (void)state;
    static char text[DPT_TEXT_SUMMARY_BYTES];
    Dpt__RunSummary s = DPT__RUN_SUMMARY__INIT;
    s.steps = 1000;
    s.loss = 2.10434;
    s.val_loss = 2.21;
    s.total_ms = 723000;
    s.step_ms = 412.04;
    s.samples_per_s = 38.83;
    s.tokens_per_s = 4967.4;
    s.peak_bytes_per_rank = 812 << 20;
    s.checkpoints_saved = 10;
    s.saved_step = 1000;
    s.recoveries = 2;
    s.steps_lost = 1;
    s.weights_hash = "0f3a";
    dpt_progress_text_summary(&s, text);
    assert_string_equal(text, "  steps            1,000\n"
                              "  last loss        2.1043\n"
                              "  validation loss  2.2100\n"
                              "  total time       12 min 03 s\n"
                              "  time of a step   412.0 ms on average\n"
                              "  samples/s        38.8\n"
                              "  tokens/s         4,967\n"
                              "  peak memory      812 MiB a rank\n"
                              "  checkpoints      10 saved, the last of step 1000\n"
                              "  recoveries       2, 1 step lost\n"
                              "  weights hash     0f3a");
    s.val_right = 5;
    s.val_samples = 16;
    dpt_progress_text_summary(&s, text);
    assert_non_null(strstr(text, "  validation loss  2.2100\n"
                                 "  accuracy         31.25%\n"
                                 "  total time "));
    s.node_ms = 2 * 723000;
    s.dollars = 0.803333;
    s.dollars_per_1m_tokens = 0.2236;
    dpt_progress_text_summary(&s, text);
    assert_non_null(
        strstr(text, "  recoveries       2, 1 step lost\n"
                     "  cost             $0.8033 for 0.4017 node-hours, $0.2236 per 1M tokens\n"
                     "  weights hash "));
    s.tokens_per_s = s.samples_per_s; /* of images */
    dpt_progress_text_summary(&s, text);
    assert_null(strstr(text, "tokens/s"));
    assert_non_null(strstr(text, "$0.2236 per 1M images\n"));
    s.val_samples = 0;
    s.start_step = 990;
    s.loss = s.val_loss = (double)NAN;
    s.checkpoints_saved = 0;
    dpt_progress_text_summary(&s, text);
    assert_non_null(strstr(text, "  steps            1,000, from 990 on\n"
                                 "  last loss        not known: no step was made\n"
                                 "  total time "));
    assert_non_null(strstr(text, "  checkpoints      none saved\n"));
}

/* No step of -1 is ever shown. */
static void closing_line(void **state)
{
    (void)state;
    static const struct {
        struct dpt_closing_facts facts;
        const char *text;
    } rows[] = {
        {{"r", 60, 1, false, false}, "done: run r, step 60, generation 1"},
        {{"r", 60, 2, true, false}, "left the run as asked: run r, step 60, generation 2"},
        {{"r", 0, 1, true, false}, "left the run as asked: run r, step 0, generation 1"},
        {{"r", -1, 3, false, false},
         "done: run r, generation 3: this node was a spare and made no step"},
        {{"r", -1, 0, false, false}, "done: run r: it had ended before this node took part"},
        {{"r", -1, 3, true, false},
         "left the run as asked: run r, generation 3: this node made no step"},
        {{"r", -1, 0, true, false}, "left the run as asked: run r: nothing was begun"},
        {{"r", -1, 0, true, true},
         "left the run as asked: run r: no server answered; nothing was begun"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dpt_progress_text_closing(&rows[i].facts, line);
        assert_string_equal(line, rows[i].text);
    }
}

static void rows_of_a_run_that_is_left(void **state)
{
    (void)state;
    static char text[DPT_TEXT_SUMMARY_BYTES];
    struct dpt_live_facts facts = {.step = step, .val = {.step = 10, .loss = 3.3}};
    struct dpt_left_facts left = {.step = 12,
                                  .steps = 1000,
                                  .first_step = 2,
                                  .samples_per_step = 8,
                                  .recoveries = 2,
                                  .steps_lost = 1};
    dpt_progress_text_left(&left, &facts, text);
    assert_string_equal(text, "  steps            12 of 1,000\n"
                              "  last loss        3.2104\n"
                              "  validation loss  3.3000\n"
                              "  total time       5.9 s\n"
                              "  time of a step   590.0 ms on average\n"
                              "  samples/s        13.6\n"
                              "  tokens/s         4,812\n"
                              "  checkpoints      the last of step 12\n"
                              "  recoveries       2, 1 step lost");
    left.step = 15;
    left.steps = 0;
    dpt_progress_text_left(&left, &facts, text);
    assert_non_null(strstr(text, "  steps            15\n  last loss        3.2104, of step 12\n"));
    facts.step.of_images = true;
    dpt_progress_text_left(&left, &facts, text);
    assert_non_null(strstr(text, "samples/s"));
    assert_null(strstr(text, "tokens/s"));
    facts = (struct dpt_live_facts){.step = {.elapsed_ms = 1000}}; /* no line was due yet */
    left = (struct dpt_left_facts){.step = 3, .steps = 1000, .first_step = 3};
    dpt_progress_text_left(&left, &facts, text);
    assert_string_equal(text, "  steps            3 of 1,000\n"
                              "  total time       1.0 s\n"
                              "  checkpoints      the last of step 3\n"
                              "  recoveries       0, 0 steps lost");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_as_text),
        cmocka_unit_test(epoch_line),
        cmocka_unit_test(step_line),
        cmocka_unit_test(huge_norms_are_short),
        cmocka_unit_test(live_line_of_any_width),
        cmocka_unit_test(live_line_with_labels),
        cmocka_unit_test(bar_grows_from_nothing_to_all),
        cmocka_unit_test(recovery_is_one_line),
        cmocka_unit_test(summary_is_an_aligned_block),
        cmocka_unit_test(closing_line),
        cmocka_unit_test(rows_of_a_run_that_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
