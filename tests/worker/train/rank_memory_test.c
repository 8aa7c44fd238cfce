/* Memory of ranks at the end of a run: for each tag the bytes of the formula, and no byte more than
 * after the first step. Peaks while the world changed: masters and moments of both worlds, all else
 * of one of them (docs/strategies.md, "While the world changes"). */
#include "tests/worker/train/rank_rig.h"

#include "base/account.h"
#include "worker/comm/comm.h"
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 6, CHANGED_STEPS = 40 };

static json_int_t json_number(const json_t *object, const char *key, const char *inner)
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

/* A product's workspace is less than its formula on most threads; forms that are not in whole
 * blocks are on some machines. */
static bool is_right(enum dpt_memory_tag tag, json_int_t bytes, json_int_t formula)
{
    if (tag == DPT_MEMORY_WORKSPACE)
        return bytes > 0 && bytes <= formula;
    if (tag == DPT_MEMORY_PACKED)
        return bytes <= formula && (bytes > 0) == (formula > 0);
    return bytes == formula;
}

static void check_account(const json_t *account, const char *what)
{
    const json_t *tags = json_object_get(account, "tags");
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        const char *name = dpt_memory_tag_name((enum dpt_memory_tag)i);
        const json_t *tag = json_object_get(tags, name);
        const json_int_t bytes = json_number(tag, "bytes", NULL),
                         formula = json_number(tag, "formula", NULL);
        assert_true(json_number(tag, "peak", NULL) >= bytes);
        if (!is_right((enum dpt_memory_tag)i, bytes, formula))
            fail_msg("%s: %s: %lld bytes, the formula says %lld", what, name, (long long)bytes,
                     (long long)formula);
    }
    if (json_number(account, "counted", "bytes") != json_number(account, "after_first_step", NULL))
        fail_msg("%s: %lld bytes, after the first step there were %lld", what,
                 (long long)json_number(account, "counted", "bytes"),
                 (long long)json_number(account, "after_first_step", NULL));
    assert_true(json_number(account, "reserved", "bytes") >=
                json_number(account, "counted", "bytes"));
    assert_true(json_number(account, "process_peak", NULL) >=
                json_number(account, "process_resident", NULL));
    assert_true(json_number(account, "process_resident", NULL) >=
                json_number(account, "shared_own", NULL));
}

static void one_of(struct dpt_config config, const char *strategy, enum dpt_accumulate accumulate,
                   int world)
{
    char name[64], hash[64];
    config.train.accumulate = accumulate;
    config.checkpoint.every_steps = 0;
    rig_choose(&config, strategy);
    (void)snprintf(name, sizeof name, "%s-%s-%d-%d", config.model.name, strategy, (int)accumulate,
                   world);
    rig_undisturbed(&config, name, world, world > 2, hash);
    for (int handle = 0; handle < world; handle++) {
        json_t *account = read_account(rig_dir(name), handle);
        assert_int_equal(json_number(account, "world_size", NULL), world);
        check_account(account, name);
        json_decref(account);
    }
}

static void one(const char *strategy, enum dpt_accumulate accumulate, int world)
{
    one_of(rig_make_config(2 * 8, STEPS, ""), strategy, accumulate, world);
}

static void test_peak_of_convolutions(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(2 * 8, STEPS, "");
    rig_choose_resnet(&config);
    for (int s = 0; s < RIG_STRATEGIES; s += 3)
        one_of(config, rig_strategies[s], DPT_ACCUMULATE_LOCAL, 1 + s % 2);
}

static void test_peak_with_accumulate_local(void **state)
{
    (void)state;
    for (int s = 0; s < RIG_STRATEGIES; s++)
        one(rig_strategies[s], DPT_ACCUMULATE_LOCAL, 1 + s % 3);
}

static void test_peak_with_accumulate_reduce(void **state)
{
    (void)state;
    for (int s = 0; s < RIG_STRATEGIES; s++)
        one(rig_strategies[s], DPT_ACCUMULATE_REDUCE, 1 + (s + 1) % 3);
}

/* Adapters: the memory of the whole base, and of a model of the adapters' size. */
static void test_peak_of_adapters(void **state)
{
    (void)state;
    static const char *const strategies[] = {"ddp", "zero1", "zero2", "full_shard"};
    struct dpt_config whole = rig_make_config(2 * 8, STEPS, "");
    for (int precision = 0; precision < 2; precision++)
        for (int s = 0; s < 4; s++) {
            struct dpt_config config = whole;
            char name[64], base[64], hash[64];
            config.train.precision = precision ? DPT_PRECISION_BF16 : DPT_PRECISION_FP32;
            config.cluster.pack_weights = s % 2 ? DPT_PACK_WEIGHTS_OFF : DPT_PACK_WEIGHTS_ON;
            (void)snprintf(base, sizeof base, "lora-base-%d-%d", precision, s);
            rig_choose_lora(&config, base);
            config.checkpoint.every_steps = 0;
            rig_choose(&config, strategies[s]);
            (void)snprintf(name, sizeof name, "lora-%d-%d", precision, s);
            rig_undisturbed(&config, name, 1 + s % 2, false, hash);
            json_t *account = read_account(rig_dir(name), 0);
            check_account(account, name);
            struct dpt_model *model = NULL;
            struct dpt_err err;
            assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
            const int64_t adapters = dpt_model_flat_numel(model);
            assert_int_equal(json_number(account, "elements", NULL), adapters);
            assert_int_equal(json_number(account, "parameters", NULL),
                             dpt_model_param_count(model));
            assert_true(json_number(json_object_get(account, "tags"), "moments", "bytes") <=
                        8 * adapters);
            assert_true(dpt_model_flat_numel(dpt_model_base(model)) > 4 * adapters);
            dpt_model_destroy(&model);
            json_decref(account);
        }
}

/* The account of the first rank of a world of `first` ranks, each a node, that becomes one of
 * `then` by agreement. Nothing is saved: a last checkpoint's buffer would be in the account or not,
 * as it happens. */
static json_t *account_of_world(const struct dpt_config *config, const char *name, int first,
                                int then)
{
    const char *dir = rig_dir(name);
    struct director *d = director_create_without_checkpoints(config, dir);
    for (int i = 0; i < first || i < then; i++)
        director_bench(d, director_start(d, i), i >= first);
    assert_true(director_form(d, false));
    if (then != first) {
        director_await_step(d, 2);
        for (int i = first; i < then; i++)
            director_bench(d, i, false);
        for (int i = then; i < first; i++)
            director_retire(d, i);
        assert_true(director_form(d, true));
    }
    (void)director_finish(d);
    assert_int_equal(director_steps_lost(d), 0);
    director_destroy(&d);
    json_t *account = read_account(dir, 0);
    assert_int_equal(json_number(account, "world_size", NULL), then);
    return account;
}

static json_int_t tag_of(const json_t *account, enum dpt_memory_tag tag, const char *key)
{
    return json_number(json_object_get(json_object_get(account, "tags"), dpt_memory_tag_name(tag)),
                       key, NULL);
}

/* Bytes at the end of the run of the tags that a rank keeps until all have their new parts. */
static json_int_t state_of(const json_t *account, enum dpt_memory_tag tag, bool units,
                           enum dpt_precision precision)
{
    const json_int_t bytes = tag_of(account, tag, "bytes");
    switch (tag) {
    case DPT_MEMORY_MASTERS:
    case DPT_MEMORY_MOMENTS:
        return bytes;
    case DPT_MEMORY_WEIGHTS:
        return units && precision == DPT_PRECISION_FP32 ? bytes : 0;
    case DPT_MEMORY_SHADOW:
        return bytes / 4 * 3; /* less its gradient */
    default:
        return 0;
    }
}

static json_int_t larger(json_int_t a, json_int_t b)
{
    return a > b ? a : b;
}

/* `units`: weights are held as shards. */
static void changed(const char *strategy, enum dpt_precision precision, bool units, int first,
                    int then)
{
    struct dpt_config config = rig_make_config(2 * 8, CHANGED_STEPS, "");
    char name[64];
    json_t *account[3]; /* of a world of `first`, of one of `then`, and of one that changed */
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = precision;
    rig_choose(&config, strategy);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "%s-%d-%d-%d-%d", strategy, (int)precision, first, then,
                       i);
        account[i] = account_of_world(&config, name, i == 1 ? then : first, i == 0 ? first : then);
    }
    json_int_t kept = 0;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++) {
        const enum dpt_memory_tag tag = (enum dpt_memory_tag)i;
        const json_int_t old = state_of(account[0], tag, units, precision),
                         new = state_of(account[1], tag, units, precision),
                         rest = larger(tag_of(account[0], tag, "bytes") - old,
                                       tag_of(account[1], tag, "bytes") - new);
        if (tag_of(account[2], tag, "peak") != old + new + rest)
            fail_msg("%s: %s: %lld bytes at most, not %lld + %lld + %lld", name,
                     dpt_memory_tag_name(tag), (long long)tag_of(account[2], tag, "peak"),
                     (long long)old, (long long)new, (long long)rest);
        kept += old;
    }
    /* Until GO the old parts exist beside all memory that the new world needs. In a small model
     * this is more than the memory before the communicator. The same holds for a rank that
     * leaves. */
    const int members = first > then ? first : then;
    const json_int_t handover_ranks =
        (json_int_t)(dpt_comm_own_bytes(members, 0, DPT_ENCRYPT_NONE) -
                     dpt_comm_own_bytes(then, 0, DPT_ENCRYPT_NONE));
    assert_true(kept > 0);
    assert_int_equal(json_number(account[2], "counted", "peak"),
                     json_number(account[1], "counted", "bytes") + kept + handover_ranks);
    for (int i = 0; i < 3; i++)
        json_decref(account[i]);
}

static void test_peak_of_changed_world(void **state)
{
    (void)state;
    for (int grows = 0; grows < 2; grows++) {
        const int first = grows ? 2 : 3, then = grows ? 3 : 2;
        changed("zero2", DPT_PRECISION_FP32, false, first, then);
        changed("zero2", DPT_PRECISION_BF16, false, first, then);
        changed("full_shard", DPT_PRECISION_FP32, true, first, then);
        changed("full_shard+shadow", DPT_PRECISION_BF16, true, first, then);
    }
}

/* Only ranks that compute several slots pack weights: in a world that grows to one slot a rank no
 * rank holds them any more, and in a world that shrinks ranks pack them. */
static void test_packed_while_used(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(2 * 2, CHANGED_STEPS, "");
    for (int grows = 0; grows < 2; grows++) {
        json_t *account =
            account_of_world(&config, grows ? "unpacks" : "packs", 2 - grows, 1 + grows);
        const json_int_t bytes = tag_of(account, DPT_MEMORY_PACKED, "bytes"),
                         peak = tag_of(account, DPT_MEMORY_PACKED, "peak"),
                         formula = tag_of(account, DPT_MEMORY_PACKED, "formula");
        assert_true(peak > 0);
        assert_int_equal(bytes, grows ? 0 : peak);
        assert_true(is_right(DPT_MEMORY_PACKED, bytes, formula));
        json_decref(account);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peak_with_accumulate_local),
        cmocka_unit_test(test_peak_with_accumulate_reduce),
        cmocka_unit_test(test_peak_of_convolutions),
        cmocka_unit_test(test_peak_of_adapters),
        cmocka_unit_test(test_peak_of_changed_world),
        cmocka_unit_test(test_packed_while_used),
    };
    return cmocka_run_group_tests_name("memory of ranks", tests, rig_setup, rig_teardown);
}
