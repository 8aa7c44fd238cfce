/* The status of a run and the activity of a rank as messages: their limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/proto/message.h"

#include <stdlib.h>
#include <string.h>

static Dpt__Stamp stamp;
static Dpt__RankActivity activity;
static Dpt__RankStatus rank, *ranks[DPT_PROTO_STATUS_RANKS_MAX + 1];
static Dpt__RunStatus status;
static Dpt__ServerState server;
static Dpt__RankState state;
static Dpt__RankToAgent report;

static void fill(void)
{
    dpt__stamp__init(&stamp);
    stamp.epoch = 7;
    stamp.run = (char *)"demo";
    stamp.node = (char *)"dpt-doctor";
    stamp.incarnation = 1;
    dpt__rank_activity__init(&activity);
    dpt__rank_status__init(&rank);
    rank.node = (char *)"b";
    rank.host_name = (char *)"a-host-of-many";
    rank.plan_rank = -1;
    rank.step_applied = -1;
    rank.activity = &activity;
    for (int i = 0; i <= DPT_PROTO_STATUS_RANKS_MAX; i++)
        ranks[i] = &rank;
    dpt__run_status__init(&status);
    status.run = (char *)"demo";
    status.ranks = ranks;
    status.n_ranks = 2;
    dpt__server_state__init(&server);
    server.version = DPT_PROTO_VERSION;
    server.stamp = &stamp;
    server.grant_step = -1;
    server.status = &status;
    dpt__rank_state__init(&state);
    state.spawn = 1;
    state.outcome_step = -1;
    state.activity = &activity;
    dpt__rank_to_agent__init(&report);
    report.state = &state;
}

/* Encodes and decodes both messages; the field that is refused, "" if none is. */
static const char *refused(struct dpt_err *err)
{
    const ProtobufCMessage *const messages[] = {&server.base, &report.base};
    enum dpt_status result = DPT_OK;
    for (int i = 0; i < 2 && result == DPT_OK; i++) {
        size_t bytes = dpt_message_bytes(messages[i]);
        uint8_t *data = malloc(bytes);
        assert_non_null(data);
        assert_int_equal(dpt_message_encode(messages[i], data, bytes, &bytes, err), DPT_OK);
        Dpt__ServerState *decoded = NULL;
        Dpt__RankToAgent *from_rank = NULL;
        result = i == 0 ? dpt_message_decode_server_state(data, bytes, &decoded, err)
                        : dpt_message_decode_rank_to_agent(data, bytes, &from_rank, err);
        dpt_message_free_server_state(&decoded);
        dpt_message_free_rank_to_agent(&from_rank);
        free(data);
    }
    return result == DPT_OK ? "" : err->text;
}

#define SPOIL(field, member, value)                                                                \
    do {                                                                                           \
        struct dpt_err err;                                                                        \
        fill();                                                                                    \
        member = (value);                                                                          \
        if (!strstr(refused(&err), "'" field "'"))                                                 \
            fail_msg("%s = %s is not refused: %s", #member, #value, err.text);                     \
    } while (0)

static void whole_status_is_taken(void **unused)
{
    (void)unused;
    struct dpt_err err;
    fill();
    assert_string_equal(refused(&err), "");
    status.n_ranks = DPT_PROTO_STATUS_RANKS_MAX;
    activity.main = DPT__RANK_WORK__WORK_AWAIT_OWN;
    activity.main_unit = INT32_MAX;
    activity.comm_ms = DPT_PROTO_TOLD_MS;
    assert_string_equal(refused(&err), "");
    rank.activity = state.activity = NULL;
    assert_string_equal(refused(&err), "");
}

static void spoilt_status_is_refused(void **unused)
{
    (void)unused;
    SPOIL("run", status.run, (char *)"../etc");
    SPOIL("generation", status.generation, UINT64_MAX);
    SPOIL("world_size", status.world_size, DPT_PROTO_WORLD_MAX + 1);
    SPOIL("still_ms", status.still_ms, -1);
    SPOIL("limit_ms", status.limit_ms, INT64_MAX);
    SPOIL("step_ms_median", status.step_ms_median, -1);
    SPOIL("phase_ms", status.phase_ms, -1);
    SPOIL("heartbeat_ms", status.heartbeat_ms, -1);
    SPOIL("heard_ms_ago", status.heard_ms_ago, -2);
    SPOIL("cause", status.cause, (char *)"a\nb");
    SPOIL("ranks", status.n_ranks, DPT_PROTO_STATUS_RANKS_MAX + 1);
    SPOIL("node", rank.node, (char *)"a b");
    SPOIL("host_name", rank.host_name, (char *)"\033[31m");
    SPOIL("local_rank", rank.local_rank, DPT_PROTO_RANKS_MAX);
    SPOIL("plan_rank", rank.plan_rank, -2);
    SPOIL("phase", rank.phase, (Dpt__RankPhase)9);
    SPOIL("generation", rank.generation, UINT64_MAX);
    SPOIL("step_applied", rank.step_applied, -2);
    SPOIL("heard_ms_ago", rank.heard_ms_ago, -1);
    SPOIL("node_ms_ago", rank.node_ms_ago, INT64_MAX);
}

static void spoilt_activity_is_refused(void **unused)
{
    (void)unused;
    SPOIL("main", activity.main, (Dpt__RankWork)99);
    SPOIL("main_unit", activity.main_unit, (uint32_t)INT32_MAX + 1);
    SPOIL("main_slot", activity.main_slot, UINT32_MAX);
    SPOIL("main_ms", activity.main_ms, -1);
    SPOIL("comm", activity.comm, (Dpt__RankWork)99);
    SPOIL("comm_unit", activity.comm_unit, UINT32_MAX);
    SPOIL("comm_ms", activity.comm_ms, INT64_MAX);
    /* In a rank's report, too. */
    fill();
    server.status = NULL;
    activity.main_ms = -1;
    struct dpt_err err;
    assert_non_null(strstr(refused(&err), "'main_ms'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_status_is_taken),
        cmocka_unit_test(spoilt_status_is_refused),
        cmocka_unit_test(spoilt_activity_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
