/* state.json: round trips; damage is refused. */
#include "checkpoint/state_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static const struct dpt_checkpoint_state full_state = {.step = 5,
                                                       .samples = INT64_MAX,
                                                       .seed = UINT64_MAX,
                                                       .config_yaml = "a: \"b\"\n",
                                                       .weights_hash = "00ff",
                                                       .data_digest = "11aa",
                                                       .fingerprint = "cpu",
                                                       .scaler = {0x1p-3, 5, 6, 2},
                                                       .epoch = {.has = true,
                                                                 .from = 2,
                                                                 .finite_steps = 3,
                                                                 .timed_steps = 1,
                                                                 .loss_sum = 9.3,
                                                                 .seconds = 0.1},
                                                       .has_val_loss = true,
                                                       .val_loss = 0.1,
                                                       .history_json = " [ 1, {\"x\": 0.1} ] "};

static void state_round_trip(void **state)
{
    (void)state;
    struct dpt_state_json copy = {0};
    char *text;
    assert_int_equal(dpt_state_json_print(&full_state, &text, &err), DPT_OK);
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_OK);
    assert_true(copy.state.seed == UINT64_MAX && copy.state.samples == INT64_MAX);
    assert_string_equal(copy.state.config_yaml, "a: \"b\"\n");
    assert_string_equal(copy.state.data_digest, "11aa");
    assert_string_equal(copy.state.fingerprint, "cpu");
    assert_true(copy.state.scaler.scale == 0x1p-3 && copy.state.scaler.good_steps == 5 &&
                copy.state.scaler.skipped_steps == 6 && copy.state.scaler.diverged_in_row == 2);
    assert_true(copy.state.epoch.has && copy.state.epoch.from == 2 &&
                copy.state.epoch.finite_steps == 3 && copy.state.epoch.timed_steps == 1 &&
                copy.state.epoch.loss_sum == 9.3 && copy.state.epoch.seconds == 0.1);
    assert_true(copy.state.has_val_loss && copy.state.val_loss == 0.1);
    dpt_state_json_fini(&copy);
    free(text);
}

/* Unknown values are not written. */
static void state_without_optional_members(void **state)
{
    (void)state;
    struct dpt_state_json copy = {0};
    struct dpt_checkpoint_state s = full_state;
    char *silent;
    s.data_digest = s.fingerprint = NULL;
    s.scaler.scale = 0;
    s.scaler.good_steps = s.scaler.skipped_steps = s.scaler.diverged_in_row = 0;
    s.has_val_loss = s.epoch.has = false;
    assert_int_equal(dpt_state_json_print(&s, &silent, &err), DPT_OK);
    assert_null(strstr(silent, "data_digest"));
    assert_null(strstr(silent, "fingerprint"));
    assert_int_equal(dpt_state_json_parse(silent, strlen(silent), &copy, &err), DPT_OK);
    assert_null(copy.state.data_digest);
    assert_null(copy.state.fingerprint);
    assert_null(strstr(silent, "scaler"));
    assert_null(strstr(silent, "val_loss"));
    assert_null(strstr(silent, "epoch"));
    assert_false(copy.state.epoch.has);
    assert_false(copy.state.has_val_loss);
    assert_true(copy.state.scaler.scale == 0 && copy.state.scaler.skipped_steps == 0);
    dpt_state_json_fini(&copy);
    free(silent);
}

static void state_refused(void **state)
{
    (void)state;
    struct dpt_state_json copy = {0};
    struct dpt_checkpoint_state s = full_state;
    char *text;
    assert_int_equal(dpt_state_json_print(&s, &text, &err), DPT_OK);
    char *good = strstr(text, "good_steps");
    good[0] = 'w';
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "scaler"));
    good[0] = 'g';
    char *from = strstr(text, "\"from\": 2");
    from[8] = '3'; /* finite_steps is 3, but only 2 steps remain */
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "epoch: a number is out of range"));
    from[1] = 'w';
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "epoch"));
    from[1] = 'f';
    from[8] = '2';
    /* Out of range. */
    char *seed = strstr(text, "18446744073709551615");
    seed[19] = '6';
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_ECORRUPT);
    seed[19] = 'x';
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_ECORRUPT);
    seed[19] = '5';
    strstr(text, "\"version\": 1")[11] = '9';
    assert_int_equal(dpt_state_json_parse(text, strlen(text), &copy, &err), DPT_EVERSION);
    free(text);
    s.config_yaml = "\xff";
    assert_int_equal(dpt_state_json_print(&s, &text, &err), DPT_EINVAL);
    s.config_yaml = "";
    s.history_json = "7";
    assert_int_equal(dpt_state_json_print(&s, &text, &err), DPT_EINVAL);
    s.history_json = "[";
    assert_int_equal(dpt_state_json_print(&s, &text, &err), DPT_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(state_round_trip),
                                       cmocka_unit_test(state_without_optional_members),
                                       cmocka_unit_test(state_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
