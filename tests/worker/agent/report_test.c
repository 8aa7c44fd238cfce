/* The rank's report (rank_protocol.h): fields that a copy keeps, replaces and leaves out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/agent/rank_protocol.h"

#include <stdio.h>
#include <string.h>

static struct dpt_report kept, said;

static int init_reports(void **state)
{
    (void)state;
    dpt_report_init(&kept);
    dpt_report_init(&said);
    return 0;
}

static void add_step(struct dpt_report *report, int64_t step)
{
    Dpt__StepRecord *record = &report->steps[report->message.n_steps++];
    dpt__step_record__init(record);
    record->step = step;
}

/* A report of the next process must not have anything of the last one. */
static void report_of_a_new_process_says_nothing(void **state)
{
    (void)state;
    const Dpt__RankState *s = &kept.state;
    assert_int_equal(s->phase, DPT__RANK_PHASE__RANK_STARTING);
    assert_int_equal(s->step_applied, -1);
    assert_int_equal(s->suspect, -1);
    assert_int_equal(s->n_shards + s->outcome.len + kept.message.n_steps, 0);
    assert_string_equal(s->text, "");
    assert_string_equal(s->unsaved_why, "");
    assert_ptr_equal(kept.message.state, s);
    assert_null(kept.message.summary);
}

static void copy_points_into_itself(void **state)
{
    (void)state;
    (void)snprintf(said.text, sizeof said.text, "no space left");
    (void)snprintf(said.tcp_addr, sizeof said.tcp_addr, "10.0.0.1:9");
    (void)snprintf(said.weights_hash, sizeof said.weights_hash, "0f3a");
    (void)snprintf(said.unsaved_why, sizeof said.unsaved_why, "a full disk");
    dpt__shard__init(&said.shards[0]);
    said.shards[0].of = 2;
    said.state.n_shards = 1;
    said.message.summary = &said.summary;
    said.summary.steps = 60;
    add_step(&said, 7);
    dpt_report_copy(&kept, &said.message);
    memset(&said, 0x5a, sizeof said); /* the sender's memory is used for something else */
    assert_string_equal(kept.message.state->text, "no space left");
    assert_string_equal(kept.message.state->tcp_addr, "10.0.0.1:9");
    assert_string_equal(kept.message.state->unsaved_why, "a full disk");
    assert_int_equal(kept.message.state->shards[0]->of, 2);
    assert_int_equal(kept.message.steps[0]->step, 7);
    assert_int_equal(kept.message.summary->steps, 60);
    assert_string_equal(kept.message.summary->weights_hash, "0f3a");
}

static void message_without_steps_keeps_the_steps(void **state)
{
    (void)state;
    add_step(&kept, 3);
    said.state.step_applied = 4;
    dpt_report_copy(&kept, &said.message);
    assert_int_equal(kept.message.n_steps, 1);
    assert_int_equal(kept.message.steps[0]->step, 3);
    assert_int_equal(kept.state.step_applied, 4);
    add_step(&said, 5);
    dpt_report_copy(&kept, &said.message);
    assert_int_equal(kept.message.n_steps, 1);
    assert_int_equal(kept.message.steps[0]->step, 5);
}

static void outcome_is_kept_while_quiesced_only(void **state)
{
    (void)state;
    said.outcome[0] = 9;
    said.state.outcome.len = 1;
    said.state.phase = DPT__RANK_PHASE__RANK_QUIESCED;
    dpt_report_copy(&kept, &said.message);
    assert_int_equal(kept.state.outcome.len, 1);
    assert_int_equal(kept.state.outcome.data[0], 9);
    said.state.phase = DPT__RANK_PHASE__RANK_RUNNING;
    dpt_report_copy(&kept, &said.message);
    assert_int_equal(kept.state.outcome.len, 0);
}

/* A copy has the same encoded bytes as the message, without the fields of a newer version. */
static void copy_has_the_same_bytes(void **state)
{
    (void)state;
    static uint8_t from[DPT_RANK_FRAME_BYTES_MAX], to[DPT_RANK_FRAME_BYTES_MAX];
    size_t from_bytes, to_bytes;
    struct dpt_err err;
    (void)snprintf(said.text, sizeof said.text, "stopped");
    add_step(&said, 12);
    said.message.tokens_per_s = 4.5f;
    assert_int_equal(dpt_message_encode(&said.message.base, from, sizeof from, &from_bytes, &err),
                     DPT_OK);
    said.state.base.n_unknown_fields = 1; /* never followed */
    dpt_report_copy(&kept, &said.message);
    assert_int_equal(dpt_message_encode(&kept.message.base, to, sizeof to, &to_bytes, &err),
                     DPT_OK);
    assert_int_equal(to_bytes, from_bytes);
    assert_memory_equal(to, from, to_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(report_of_a_new_process_says_nothing, init_reports),
        cmocka_unit_test_setup(copy_points_into_itself, init_reports),
        cmocka_unit_test_setup(message_without_steps_keeps_the_steps, init_reports),
        cmocka_unit_test_setup(outcome_is_kept_while_quiesced_only, init_reports),
        cmocka_unit_test_setup(copy_has_the_same_bytes, init_reports),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
