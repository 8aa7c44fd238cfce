/* Everything derives from one timeout, and the relations that safety rests on hold for each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/core/timing.h"
#include "rendezvous/proto/message.h"

#include <string.h>

static void test_periods_keep_their_order(void **state)
{
    (void)state;
    for (int64_t timeout_ms = DPT_PROTO_TIMEOUT_MS_MIN; timeout_ms <= DPT_PROTO_TIMEOUT_MS_MAX;
         timeout_ms += 97) {
        struct dpt_timing t = dpt_timing_from(timeout_ms, 0);
        assert_int_equal(t.timeout_ms, timeout_ms);
        assert_true(t.heartbeat_ms * 10 <= t.timeout_ms);
        assert_true(t.grace_ms <= 250);
        assert_true(t.lease_ms < t.timeout_ms);
        assert_true(t.write_ms + t.gap_ms < t.lease_ms);
        assert_true(t.heartbeat_ms < t.write_ms);
        assert_true(t.drain_ms + 2 * t.exit_ms <= 10000);
    }
}

static void test_timeout_is_clamped(void **state)
{
    (void)state;
    assert_int_equal(dpt_timing_from(0, 0).timeout_ms, DPT_PROTO_TIMEOUT_MS_MIN);
    assert_int_equal(dpt_timing_from(INT64_MAX, 0).timeout_ms, DPT_PROTO_TIMEOUT_MS_MAX);
}

static void test_drain_follows_boundary(void **state)
{
    (void)state;
    assert_int_equal(dpt_timing_from(5000, 0).drain_ms, 8000);
    assert_int_equal(dpt_timing_from(5000, 30000).drain_ms, 30000);
    assert_int_equal(dpt_timing_from(5000, 30000).boundary_ms, 15000);
    assert_int_equal(dpt_timing_from(5000, 30000).lease_ms, dpt_timing_from(5000, 0).lease_ms);
    assert_int_equal(dpt_timing_from(5000, 1).drain_ms, DPT_PROTO_DRAIN_MS_MIN);
    assert_int_equal(dpt_timing_from(5000, INT64_MAX).drain_ms, DPT_PROTO_DRAIN_MS_MAX);
}

static void test_timing_is_printed(void **state)
{
    (void)state;
    char text[DPT_PROTO_TEXT_BYTES];
    struct dpt_timing t = dpt_timing_from(5000, 0);
    dpt_timing_print(&t, text, sizeof text);
    assert_non_null(strstr(text, "timeout 5000 ms: heartbeat 100, grace 250, lease 4500"));
}

/* With few nodes the pause is the heartbeat. It never grows beyond a quarter of the lease or an
 * eighth of the drain time. */
static void test_beat_grows_with_nodes_and_overload(void **state)
{
    (void)state;
    const struct dpt_timing t = dpt_timing_from(5000, 0);
    assert_int_equal(dpt_timing_beat_ms(&t, 0, 0), t.heartbeat_ms);
    assert_int_equal(dpt_timing_beat_ms(&t, 200, 0), t.heartbeat_ms);
    assert_int_equal(dpt_timing_beat_ms(&t, 1000, 0), 500);
    assert_int_equal(dpt_timing_beat_ms(&t, 10000, 0), t.drain_ms / 8);
    assert_int_equal(dpt_timing_beat_ms(&t, 8, 1), 2 * t.heartbeat_ms);
    assert_int_equal(dpt_timing_beat_ms(&t, 8, 3), 8 * t.heartbeat_ms);
    for (int64_t timeout_ms = DPT_PROTO_TIMEOUT_MS_MIN; timeout_ms <= DPT_PROTO_TIMEOUT_MS_MAX;
         timeout_ms += 997)
        for (uint32_t nodes = 1; nodes < UINT32_MAX / 3; nodes *= 3)
            for (unsigned overload = 0; overload < 70; overload += 7) {
                const struct dpt_timing each = dpt_timing_from(timeout_ms, 0);
                const int64_t beat_ms = dpt_timing_beat_ms(&each, nodes, overload);
                assert_in_range(beat_ms, each.heartbeat_ms, each.lease_ms / 4);
            }
}

/* With the settings that the text names the pause is even; with less of either the server warns. */
static void test_short_timeout_for_many_nodes(void **state)
{
    (void)state;
    char text[DPT_PROTO_TEXT_BYTES] = "";
    struct dpt_timing t = dpt_timing_from(5000, 0);
    assert_false(dpt_timing_is_too_short(&t, 2000, text, sizeof text));
    assert_true(dpt_timing_is_too_short(&t, 10000, text, sizeof text));
    assert_string_equal(text, "10000 nodes send 10000 heartbeats a second. cluster.timeout_s of 23 "
                              "and cluster.drain_s of 40, or more, make it 2000");
    t = dpt_timing_from(23000, 39000);
    assert_true(dpt_timing_is_too_short(&t, 10000, text, sizeof text));
    t = dpt_timing_from(22000, 40000);
    assert_true(dpt_timing_is_too_short(&t, 10000, text, sizeof text));
    t = dpt_timing_from(23000, 40000);
    assert_false(dpt_timing_is_too_short(&t, 10000, text, sizeof text));
    assert_int_equal(dpt_timing_beat_ms(&t, 10000, 0), 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_periods_keep_their_order),
        cmocka_unit_test(test_timeout_is_clamped),
        cmocka_unit_test(test_drain_follows_boundary),
        cmocka_unit_test(test_timing_is_printed),
        cmocka_unit_test(test_beat_grows_with_nodes_and_overload),
        cmocka_unit_test(test_short_timeout_for_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
