/* The run's history: entries are kept up to a limit, and invalid text is refused. */
#include "worker/train/state/generation_history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void append_generation(struct dpt_history *h, uint64_t generation, const char *cause)
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
    append_generation(&h, 1, "start");
    append_generation(&h, 2, "node \"b\" lost\n");
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
    assert_int_equal(dpt_history_totals(&h).recoveries, 0);
    assert_int_equal(dpt_history_append(&h, &joined, &err), DPT_OK);
    assert_int_equal(dpt_history_totals(&h).recoveries, 0);
    append_generation(&h, 2, "node b lost");
    append_generation(&h, 3, "node c lost");
    assert_int_equal(dpt_history_totals(&h).recoveries, 2);
}

static void steps_lost_are_added(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"[{\"steps_lost\": -5}, {}, 7]", "{}", "["};
    struct dpt_history h;
    dpt_history_init(&h);
    assert_int_equal(dpt_history_totals(&h).steps_lost, 0);
    append_generation(&h, 1, "node b lost");
    append_generation(&h, 2, "node c lost");
    assert_int_equal(dpt_history_totals(&h).steps_lost, 2);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        (void)snprintf(h.json, sizeof h.json, "%s", nonsense[i]);
        assert_int_equal(dpt_history_totals(&h).steps_lost, 0);
    }
    (void)snprintf(h.json, sizeof h.json,
                   "[{\"steps_lost\": 9223372036854775807}, {\"steps_lost\": 1}]");
    assert_int_equal(dpt_history_totals(&h).steps_lost, INT64_MAX);
}

#define EVENT(kind, generation, step, lost)                                                        \
    "{\"kind\":\"" kind "\",\"generation\":" #generation                                           \
    ",\"cause\":\"a cause\",\"steps_lost\":" #lost ",\"resume_step\":" #step                       \
    ",\"world_size\":2}\n"

static void expect_added(struct dpt_history *h, const char *events, int64_t lost, int recoveries)
{
    struct dpt_err err;
    assert_int_equal(dpt_history_add_events(h, events, strlen(events), &err), DPT_OK);
    assert_int_equal(dpt_history_totals(h).steps_lost, lost);
    assert_int_equal(dpt_history_totals(h).recoveries, recoveries);
}

/* A checkpoint of generation 2; the log has two losses after it, and an older start. */
static void events_complete_a_checkpoint(void **state)
{
    (void)state;
    static const char events[] =
        EVENT("node_lost", 2, 20, 9) EVENT("node_lost", 3, 20, 9) EVENT("start", 1, 10, 0)
            EVENT("node_lost", 2, 20, 1) "{\"kind\":\"diverged\",\"step\":3}\n" EVENT(
                "rank_lost", 3, 20, 5) "{\"kind\": torn\n\n" EVENT("redundancy", 3, 25, 5)
                EVENT("start", 1, 20, 0) EVENT("rank_lost", 2, 20, 7) "{\"kind\":\"rank_lost\"";
    struct dpt_history h;
    dpt_history_init(&h);
    append_generation(&h, 2, "node b lost");
    expect_added(&h, events, 1 + 5 + 7, 3);
    expect_added(&h, EVENT("start", 1, 20, 0), 13, 3); /* of another run */
    expect_added(&h, "", 13, 3);
    dpt_history_init(&h);
    append_generation(&h, 7, "a generation that the log does not have");
    expect_added(&h, events, 1, 1);
}

static void events_since_a_start_from_the_seed(void **state)
{
    (void)state;
    static const char events[] = EVENT("start", 1, 0, 0) EVENT("rank_lost", 2, 0, 9)
        EVENT("start", 1, 0, 0) EVENT("rank_lost", 2, 0, 3) EVENT("rank_lost", 3, 0, 4);
    struct dpt_history h;
    dpt_history_init(&h);
    expect_added(&h, events, 7, 2);
    dpt_history_init(&h);
    expect_added(&h, EVENT("rank_lost", 2, 0, 9), 0, 0);
}

static void full_history_drops_oldest_generations(void **state)
{
    (void)state;
    struct dpt_history h;
    dpt_history_init(&h);
    for (uint64_t g = 1; g <= 1000; g++)
        append_generation(&h, g, "a cause of some length, as they are");
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
        cmocka_unit_test(entries_in_order),
        cmocka_unit_test(recoveries_are_counted),
        cmocka_unit_test(steps_lost_are_added),
        cmocka_unit_test(full_history_drops_oldest_generations),
        cmocka_unit_test(events_complete_a_checkpoint),
        cmocka_unit_test(events_since_a_start_from_the_seed),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests_name("history", tests, NULL, NULL);
}
