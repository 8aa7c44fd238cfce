/* The run's history: what comes in comes out, bounded, and nonsense is refused. */
#include "worker/train/history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void append(struct dpt_history *h, uint64_t generation, const char *cause)
{
    const struct dpt_history_entry entry = {.generation = generation,
                                            .step = (int64_t)generation * 10,
                                            .world_size = 3,
                                            .kind = "node_lost",
                                            .cause = cause,
                                            .steps_lost = 1};
    struct dpt_err err;
    assert_int_equal(dpt_history_append(h, &entry, &err), DPT_OK);
}

static void entries_in_order(void **state)
{
    (void)state;
    struct dpt_history h;
    dpt_history_init(&h);
    append(&h, 1, "start");
    append(&h, 2, "node \"b\" lost\n");
    json_t *array = json_loads(h.json, 0, NULL);
    assert_int_equal(json_array_size(array), 2);
    const json_t *second = json_array_get(array, 1);
    assert_int_equal(json_integer_value(json_object_get(second, "generation")), 2);
    assert_int_equal(json_integer_value(json_object_get(second, "step")), 20);
    assert_int_equal(json_integer_value(json_object_get(second, "world_size")), 3);
    assert_int_equal(json_integer_value(json_object_get(second, "steps_lost")), 1);
    assert_string_equal(json_string_value(json_object_get(second, "cause")), "node \"b\" lost\n");
    json_decref(array);
    struct dpt_history other;
    struct dpt_err err;
    assert_int_equal(dpt_history_load(&other, h.json, &err), DPT_OK);
    assert_string_equal(other.json, h.json);
}

/* A join is none. */
static void recoveries_are_counted(void **state)
{
    (void)state;
    struct dpt_history h;
    struct dpt_err err;
    const struct dpt_history_entry joined = {
        .generation = 1, .world_size = 2, .kind = "joined", .cause = "node b joined"};
    dpt_history_init(&h);
    assert_int_equal(dpt_history_recoveries(&h), 0);
    assert_int_equal(dpt_history_append(&h, &joined, &err), DPT_OK);
    assert_int_equal(dpt_history_recoveries(&h), 0);
    append(&h, 2, "node b lost");
    append(&h, 3, "node c lost");
    assert_int_equal(dpt_history_recoveries(&h), 2);
}

static void steps_lost_are_added(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"[{\"steps_lost\": -5}, {}, 7]", "{}", "["};
    struct dpt_history h;
    dpt_history_init(&h);
    assert_int_equal(dpt_history_steps_lost(&h), 0);
    append(&h, 1, "node b lost");
    append(&h, 2, "node c lost");
    assert_int_equal(dpt_history_steps_lost(&h), 2);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        (void)snprintf(h.json, sizeof h.json, "%s", nonsense[i]);
        assert_int_equal(dpt_history_steps_lost(&h), 0);
    }
    (void)snprintf(h.json, sizeof h.json,
                   "[{\"steps_lost\": 9223372036854775807}, {\"steps_lost\": 1}]");
    assert_int_equal(dpt_history_steps_lost(&h), INT64_MAX);
}

static void the_oldest_go_first(void **state)
{
    (void)state;
    struct dpt_history h;
    dpt_history_init(&h);
    for (uint64_t g = 1; g <= 1000; g++)
        append(&h, g, "a cause of some length, as they are");
    json_t *array = json_loads(h.json, 0, NULL);
    size_t n = json_array_size(array);
    assert_true(n > 20 && n < 1000);
    const json_t *last = json_array_get(array, n - 1), *first = json_array_get(array, 0);
    assert_int_equal(json_integer_value(json_object_get(last, "generation")), 1000);
    assert_int_equal(json_integer_value(json_object_get(first, "generation")), 1001 - (int)n);
    json_decref(array);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{}", "[", "[{\"a\":1,\"a\":2}]", "3", "[] []"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dpt_history h;
        dpt_history_init(&h);
        struct dpt_err err;
        assert_int_equal(dpt_history_load(&h, bad[i], &err), DPT_ECORRUPT);
        assert_string_equal(h.json, "[]");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_in_order),     cmocka_unit_test(recoveries_are_counted),
        cmocka_unit_test(steps_lost_are_added), cmocka_unit_test(the_oldest_go_first),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
