/* What real ranks hold at the end of a run: tag by tag what the formulas say, and not a byte more
 * than after the first step. */
#include "tests/worker/train/rig.h"

#include "base/account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 6 };

static json_int_t number(const json_t *object, const char *key, const char *inner)
{
    const json_t *value = json_object_get(object, key);
    if (inner)
        value = json_object_get(value, inner);
    if (!json_is_integer(value))
        fail_msg("no number %s.%s", key, inner ? inner : "");
    return json_integer_value(value);
}

static json_t *read_account(const char *dir, int handle)
{
    char path[192];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/node-/rank-%d.memory.json", dir, handle);
    json_t *account = json_load_file(path, 0, &error);
    if (!account)
        fail_msg("%s: %s", path, error.text);
    return account;
}

static void check_account(const json_t *account, const char *what)
{
    const json_t *tags = json_object_get(account, "tags");
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        const char *name = dpt_memory_tag_name((enum dpt_memory_tag)i);
        const json_t *tag = json_object_get(tags, name);
        const json_int_t bytes = number(tag, "bytes", NULL), formula = number(tag, "formula", NULL);
        assert_true(number(tag, "peak", NULL) >= bytes);
        if (i == DPT_MEMORY_WORKSPACE ? bytes == 0 || bytes > formula : bytes != formula)
            fail_msg("%s: %s: %lld bytes, the formula says %lld", what, name, (long long)bytes,
                     (long long)formula);
    }
    if (number(account, "counted", "bytes") != number(account, "after_first_step", NULL))
        fail_msg("%s: %lld bytes, after the first step there were %lld", what,
                 (long long)number(account, "counted", "bytes"),
                 (long long)number(account, "after_first_step", NULL));
    assert_true(number(account, "reserved", "bytes") >= number(account, "counted", "bytes"));
    assert_true(number(account, "process_peak", NULL) >= number(account, "process_resident", NULL));
    assert_true(number(account, "process_resident", NULL) >= number(account, "shared_own", NULL));
}

static void one(const char *strategy, enum dpt_accumulate accumulate, int world)
{
    struct dpt_config config = rig_make_config(2 * 8, STEPS, "");
    char name[64], hash[64];
    config.train.accumulate = accumulate;
    config.checkpoint.every_steps = 0;
    rig_choose(&config, strategy);
    (void)snprintf(name, sizeof name, "%s-%d-%d", strategy, (int)accumulate, world);
    rig_undisturbed(&config, name, world, world > 2, hash);
    for (int handle = 0; handle < world; handle++) {
        json_t *account = read_account(rig_dir(name), handle);
        assert_int_equal(number(account, "world_size", NULL), world);
        check_account(account, name);
        json_decref(account);
    }
}

static void test_local(void **state)
{
    (void)state;
    for (int s = 0; s < RIG_STRATEGIES; s++)
        one(rig_strategies[s], DPT_ACCUMULATE_LOCAL, 1 + s % 3);
}

static void test_reduce(void **state)
{
    (void)state;
    for (int s = 0; s < RIG_STRATEGIES; s++)
        one(rig_strategies[s], DPT_ACCUMULATE_REDUCE, 1 + (s + 1) % 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_local),
        cmocka_unit_test(test_reduce),
    };
    return cmocka_run_group_tests_name("memory of ranks", tests, rig_setup, rig_teardown);
}
