/* train.epochs: against train.steps, counted from the samples, through the canonical text, and
 * compared. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_config load_epochs(const char *set)
{
    struct dpt_config c;
    if (dpt_config_load_text("", "c.yaml", &set, 1, &c, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return c;
}

static void counted_from_samples(void **state)
{
    (void)state;
    struct dpt_config c = load_epochs("train={epochs: 3, global_batch: 32}");
    assert_int_equal(c.train.steps, DPT_AUTO);
    assert_int_equal(dpt_config_count_epochs(&c, 100, &err), DPT_OK);
    assert_int_equal(c.train.epoch_steps, 3); /* 4 samples of each epoch are left out */
    assert_int_equal(c.train.steps, 9);
    assert_false(dpt_config_ends_epoch(&c, 0));
    assert_false(dpt_config_ends_epoch(&c, 2));
    assert_true(dpt_config_ends_epoch(&c, 3));
    assert_true(dpt_config_ends_epoch(&c, 9));
    assert_int_equal(dpt_config_count_epochs(&c, 127, &err), DPT_OK); /* the same number again */
    struct dpt_config exact = load_epochs("train={epochs: 1, steps: auto}");
    assert_int_equal(dpt_config_count_epochs(&exact, 32, &err), DPT_OK);
    assert_int_equal(exact.train.steps, 1);
    struct dpt_config steps = load_epochs("train.steps=7"), same = steps;
    assert_int_equal(dpt_config_count_epochs(&steps, 1, &err), DPT_OK);
    assert_memory_equal(&steps, &same, sizeof same);
    assert_false(dpt_config_ends_epoch(&steps, 7));
}

static void refuses(struct dpt_config *c, int64_t samples, const char *text)
{
    const struct dpt_config before = *c;
    assert_int_equal(dpt_config_count_epochs(c, samples, &err), DPT_ECONFIG);
    assert_string_equal(err.text, text);
    assert_memory_equal(c, &before, sizeof before);
}

static void cannot_be_counted(void **state)
{
    (void)state;
    struct dpt_config c = load_epochs("train={epochs: 2, global_batch: 32}");
    (void)snprintf(c.data.train, sizeof c.data.train, "book.txt");
    refuses(&c, 31,
            "data.train ('book.txt') has 31 samples of 64 tokens, less than one train.global_batch "
            "(32): an epoch has no step; name more data, or a smaller global_batch or seq_len");
    c.data.kind = DPT_DATA_CLASSIFICATION;
    refuses(&c, 31,
            "data.train ('book.txt') has 31 samples of at most 64 tokens, less than one "
            "train.global_batch (32): an epoch has no step; name more data, or a smaller "
            "global_batch");
    c.data.kind = DPT_DATA_IMAGES;
    refuses(&c, 31,
            "data.train ('book.txt') has 31 images, less than one train.global_batch (32): an "
            "epoch has no step; name more data, or a smaller global_batch");
    c.data.kind = DPT_DATA_TEXT;
    refuses(&c, INT64_C(1) << 60,
            "train.epochs (2) of 36028797018963968 steps are more than 1000000000000 steps; give "
            "less");
    c.optimizer.warmup_steps = 5;
    refuses(&c, 64,
            "optimizer.warmup_steps (5) is more than the 4 steps of train.epochs (2); set it to at "
            "most that");
    c.optimizer.warmup_steps = 4;
    c.train.epoch_steps = 7;
    refuses(&c, 96,
            "data.train ('book.txt') has 96 samples of 64 tokens, an epoch of 3 steps, and the "
            "config says train.epoch_steps 7; name the run's data, or write auto");
}

static void test_epochs_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error; /* NULL: it can be */
    } cases[] = {
        {"train={epochs: 2, steps: 100}",
         "train.epochs (2) and train.steps (100) both give the length of the run; give only one "
         "(train.steps: auto, or train.epochs: 0)"},
        {"train={epochs: 2, steps: 100, epoch_steps: 40}",
         "train.epochs (2) and train.steps (100) both give the length of the run; give only one "
         "(train.steps: auto, or train.epochs: 0)"},
        {"train={epochs: 2, steps: 80, epoch_steps: 40}", NULL},
        {"train={epochs: 2, epoch_steps: 40}", NULL},
        {"train={epochs: 0, steps: 100}", NULL},
        {"train.steps=auto",
         "train.steps is auto, the steps of train.epochs, and there are no epochs; give one of "
         "them a number"},
        {"train.epoch_steps=40", "train.epoch_steps is 40 without train.epochs; write auto"},
        {"train.epochs=1000001",
         "train.epochs: expected an integer from 0 to 1000000, got '1000001'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        char line[DPT_ERR_TEXT_BYTES];
        const enum dpt_status status =
            dpt_config_load_text("", "c.yaml", &cases[i].set, 1, &c, &err);
        (void)snprintf(line, sizeof line, "--set %s: %s", cases[i].set, cases[i].error);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error)
            assert_string_equal(err.text, line);
    }
}

/* What a node prints, another and a checkpoint read back. */
static void text_and_back(void **state)
{
    (void)state;
    static char text[DPT_CONFIG_TEXT_BYTES_MAX];
    struct dpt_config c = load_epochs("train={epochs: 3, global_batch: 32}"), back;
    for (int counted = 0; counted < 2; counted++) {
        assert_int_equal(dpt_config_print(&c, text, &err), DPT_OK);
        assert_int_equal(dpt_config_load_text(text, "t", NULL, 0, &back, &err), DPT_OK);
        assert_int_equal(back.train.epochs, 3);
        assert_int_equal(back.train.steps, counted ? 30 : DPT_AUTO);
        assert_int_equal(back.train.epoch_steps, counted ? 10 : DPT_AUTO);
        assert_int_equal(dpt_config_count_epochs(&c, 330, &err), DPT_OK);
    }
    const char *const more[] = {"train={epochs: 4, steps: auto}"};
    assert_int_equal(dpt_config_load_text(text, "t", more, 1, &back, &err), DPT_OK);
    assert_int_equal(back.train.steps, 40);
}

static int differ(const struct dpt_config *a, const struct dpt_config *b, const char *keys)
{
    char text[256];
    const int n = dpt_config_diff(a, b, DPT_CONFIG_TRAJECTORY, NULL, text, sizeof text);
    assert_string_equal(text, keys);
    return n;
}

/* A change is reported with the key that was changed. */
static void test_changed_epochs_key_is_named(void **state)
{
    (void)state;
    const struct dpt_config two = load_epochs("train={epochs: 2, epoch_steps: 10}");
    const struct dpt_config three = load_epochs("train={epochs: 3, epoch_steps: 10}");
    const struct dpt_config longer = load_epochs("train={epochs: 2, epoch_steps: 11}");
    const struct dpt_config steps = load_epochs("train.steps=20");
    assert_int_equal(differ(&two, &two, ""), 0);
    assert_int_equal(differ(&two, &three, "train.epochs (2, here 3)"), 1);
    assert_int_equal(differ(&two, &longer, "train.epoch_steps (10, here 11)"), 1);
    assert_int_equal(
        differ(&steps, &two, "train.epochs (0, here 2), train.epoch_steps (auto, here 10)"), 2);
}

/* Where the learning rate is no function of it, more of the same is no other trajectory. */
static void length_of_no_account(void **state)
{
    (void)state;
    static const struct {
        enum dpt_schedule schedule;
        int64_t schedule_steps;
        int differences;
    } cases[] = {{DPT_SCHEDULE_COSINE, DPT_AUTO, 1},
                 {DPT_SCHEDULE_LINEAR, DPT_AUTO, 1},
                 {DPT_SCHEDULE_COSINE, 20, 0},
                 {DPT_SCHEDULE_LINEAR, 20, 0},
                 {DPT_SCHEDULE_CONSTANT, DPT_AUTO, 0}};
    static const char *const lengths[][2] = {
        {"train.steps=20", "train.steps=30"},
        {"train={epochs: 2, epoch_steps: 10}", "train={epochs: 3, epoch_steps: 10}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 2; k++) {
            struct dpt_config a = load_epochs(lengths[k][0]), b = load_epochs(lengths[k][1]);
            char keys[256];
            a.optimizer.schedule = b.optimizer.schedule = cases[i].schedule;
            a.optimizer.schedule_steps = b.optimizer.schedule_steps = cases[i].schedule_steps;
            assert_int_equal(
                dpt_config_diff(&a, &b, DPT_CONFIG_TRAJECTORY, NULL, keys, sizeof keys),
                cases[i].differences);
            assert_int_equal(dpt_config_diff(&a, &b, DPT_CONFIG_RUN, NULL, keys, sizeof keys), 1);
        }
}

static void test_val_data_makes_it_evaluate(void **state)
{
    (void)state;
    struct dpt_config c = load_epochs("train.epochs=2");
    assert_false(dpt_config_evaluates(&c));
    (void)snprintf(c.data.val, sizeof c.data.val, "val.txt");
    assert_true(dpt_config_evaluates(&c));
    c.train.epochs = 0;
    assert_false(dpt_config_evaluates(&c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counted_from_samples),
        cmocka_unit_test(cannot_be_counted),
        cmocka_unit_test(test_epochs_combinations),
        cmocka_unit_test(text_and_back),
        cmocka_unit_test(test_changed_epochs_key_is_named),
        cmocka_unit_test(length_of_no_account),
        cmocka_unit_test(test_val_data_makes_it_evaluate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
