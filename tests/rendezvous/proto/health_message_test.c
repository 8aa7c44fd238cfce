/* The result of a health check in messages: limits, and the struct without pointers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/proto/health.h"
#include "rendezvous/proto/message.h"

#include <string.h>

static Dpt__NodeHealth health;

/* Decodes a question of an agent with this health. "": it is valid; else the error. */
static const char *decode_with_health(void)
{
    static struct dpt_err err;
    static uint8_t bytes[8192];
    size_t n;
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    Dpt__AgentState message = DPT__AGENT_STATE__INIT, *decoded = NULL;
    stamp.run = "demo";
    stamp.node = "a";
    stamp.incarnation = 1;
    message.version = DPT_PROTO_VERSION;
    message.stamp = &stamp;
    message.health = &health;
    assert_int_equal(dpt_message_encode(&message.base, bytes, sizeof bytes, &n, &err), DPT_OK);
    if (dpt_message_decode_agent_state(bytes, n, &decoded, &err) != DPT_OK)
        return err.text;
    assert_int_equal(decoded->health->memory_bytes, health.memory_bytes);
    dpt_message_free_agent_state(&decoded);
    return "";
}

static void expect_refusal(const char *field)
{
    const char *text = decode_with_health();
    if (strstr(text, field) == NULL)
        fail_msg("wanted '%s' in: '%s'", field, text);
}

static void values_out_of_range_are_refused(void **state)
{
    (void)state;
    static char text[DPT_HEALTH_FAULT_BYTES + 1];
    dpt__node_health__init(&health);
    health.memory_bytes = INT64_MAX;
    assert_string_equal(decode_with_health(), "");
    health.memory_bytes = -1;
    expect_refusal("'memory_bytes'");
    health.memory_bytes = 0;
    health.check_us = -1;
    expect_refusal("'check_us'");
    health.check_us = 0;
    memset(text, 'x', DPT_HEALTH_FAULT_BYTES);
    health.fault = text;
    expect_refusal("'fault'");
    text[DPT_HEALTH_FAULT_BYTES - 1] = '\0';
    assert_string_equal(decode_with_health(), "");
    health.fault = "two\nlines";
    expect_refusal("'fault'");
}

static void struct_has_the_fields(void **state)
{
    (void)state;
    const struct dpt_health all = {.checked = true,
                                   .check_us = 1,
                                   .memory_bytes = 2,
                                   .cores = 3,
                                   .mflops = 4,
                                   .round_trip_us = 5};
    struct dpt_health back;
    dpt_health_to_message(&all, &health);
    assert_string_equal(health.fault, "");
    dpt_health_from_message(&health, &back);
    assert_true(back.checked);
    assert_int_equal(back.check_us, 1);
    assert_int_equal(back.memory_bytes, 2);
    assert_int_equal(back.cores, 3);
    assert_int_equal(back.mflops, 4);
    assert_int_equal(back.round_trip_us, 5);
    dpt_health_from_message(NULL, &back);
    assert_false(back.checked);
    assert_int_equal(back.cores, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(struct_has_the_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
