/* Keys of images: defaults, values that follow from the kind, and impossible combinations. */
#include "base/config_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;
static struct dpt_config_load load;

static int setup(void **state)
{
    (void)state;
    static const struct dpt_config_input input = {.name = "c.yaml"};
    memset(&load, 0, sizeof load);
    load.input = &input;
    dpt_config_defaults(&load.config);
    for (size_t i = 0; i < DPT_CONFIG_KEYS_MAX; i++)
        load.origin[i].override = -1;
    return 0;
}

static void use_data_kind(enum dpt_data_kind kind)
{
    (void)setup(NULL);
    load.config.data.kind = kind;
    (void)snprintf(load.config.model.name, sizeof load.config.model.name, "resnet");
}

/* As if the file said it. */
static void give(const char *path)
{
    load.origin[dpt_config_key_index(path)] =
        (struct dpt_config_origin){.line = 1, .column = 1, .override = -1};
}

static void image_defaults(void **state)
{
    (void)state;
    const struct dpt_config *c = &load.config;
    assert_int_equal(c->data.image_size, DPT_AUTO);
    assert_int_equal(c->data.augment, DPT_AUGMENT_AUTO);
    assert_int_equal(c->data.crop_padding, 4);
    assert_int_equal(c->data.damaged_images, DPT_DAMAGED_IMAGES_REFUSE);
    assert_false(dpt_config_reads_images(c));
    assert_false(dpt_config_reads_labels(c));
    dpt_config_resolve_images(&load);
    assert_int_equal(c->data.image_size, DPT_AUTO); /* text has none */
    assert_int_equal(c->train.seq_len, 64);
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_OK);
}

static void cifar10_sets_image_keys(void **state)
{
    (void)state;
    const struct dpt_config *c = &load.config;
    use_data_kind(DPT_DATA_CIFAR10);
    dpt_config_resolve_images(&load);
    assert_true(dpt_config_reads_images(c));
    assert_true(dpt_config_reads_labels(c));
    assert_false(dpt_config_reads_text(c));
    assert_int_equal(c->data.image_size, 32);
    assert_int_equal(c->data.resize, 32);
    assert_int_equal(c->data.augment, DPT_AUGMENT_CROP_FLIP);
    assert_int_equal(c->train.seq_len, 1);
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_OK);
    use_data_kind(DPT_DATA_IMAGES);
    dpt_config_resolve_images(&load);
    assert_true(dpt_config_reads_images(c));
    assert_int_equal(c->data.image_size, 224);
    assert_int_equal(c->data.resize, 256);
    assert_int_equal(c->data.augment, DPT_AUGMENT_RESIZED_CROP_FLIP);
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_OK);
    use_data_kind(DPT_DATA_IMAGES);
    load.config.data.image_size = 8;
    load.config.data.resize = 8;
    load.config.data.augment = DPT_AUGMENT_NONE;
    load.config.data.damaged_images = DPT_DAMAGED_IMAGES_SKIP;
    dpt_config_resolve_images(&load);
    assert_int_equal(c->data.image_size, 8);
    assert_int_equal(c->data.resize, 8);
    assert_int_equal(c->data.augment, DPT_AUGMENT_NONE);
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_OK);
}

static void expect_refused(const char *text)
{
    dpt_config_resolve_images(&load);
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_ECONFIG);
    const char *told = strstr(err.text, text);
    if (!told || strcmp(told, text) != 0)
        fail_msg("'%s' does not end with '%s'", err.text, text);
}

static void cifar10_has_one_size(void **state)
{
    (void)state;
    use_data_kind(DPT_DATA_CIFAR10);
    load.config.data.image_size = 64;
    expect_refused(
        "data.image_size is 64, and data.kind: cifar10 has images of 32 x 32; leave it out");
    use_data_kind(DPT_DATA_CIFAR10);
    load.config.data.resize = 36;
    expect_refused(
        "data.resize is 36, and data.kind: cifar10 takes its images as they are; leave it out");
    use_data_kind(DPT_DATA_CIFAR10);
    load.config.data.augment = DPT_AUGMENT_RESIZED_CROP_FLIP;
    expect_refused(
        "data.augment: resized_crop_flip is for data.kind: images; with cifar10 write crop_flip "
        "or none");
    use_data_kind(DPT_DATA_CIFAR10);
    load.config.data.damaged_images = DPT_DAMAGED_IMAGES_SKIP;
    expect_refused("data.damaged_images: skip is for data.kind: images; with cifar10 write refuse");
}

static void a_sample_is_a_part(void **state)
{
    (void)state;
    use_data_kind(DPT_DATA_IMAGES);
    load.config.data.resize = 223;
    expect_refused(
        "data.resize (223) is less than data.image_size (224), which is cut out of it; set it "
        "to at least that");
}

static void images_have_no_tokens(void **state)
{
    (void)state;
    use_data_kind(DPT_DATA_IMAGES);
    give("train.seq_len");
    expect_refused("train.seq_len is 64, and data.kind: images has no tokens; leave it out");
    load.config.train.seq_len = 1;
    assert_int_equal(dpt_config_check_images(&load, &err), DPT_OK);
}

static void images_are_for_resnet(void **state)
{
    (void)state;
    static const char *const sets[] = {"data={kind: cifar10}", "model.labels=10"};
    static struct dpt_config c;
    use_data_kind(DPT_DATA_IMAGES);
    (void)snprintf(load.config.model.name, sizeof load.config.model.name, "llama");
    expect_refused("data.kind: images needs model.name: resnet, the model that reads images (here: "
                   "llama)");
    assert_int_equal(dpt_config_load_text("", "c.yaml", sets, 2, &c, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text, "data.kind: cifar10 needs model.name: resnet, the model that "
                                     "reads images (here: gpt2)"));
}

static void keys_of_images_alone(void **state)
{
    (void)state;
    static const char *const sets[] = {"data.image_size=32", "data.resize=40", "data.augment=none",
                                       "data.crop_padding=2", "data.damaged_images=skip"};
    static struct dpt_config c;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "%.*s is for data.kind: cifar10 or images; leave it out",
                       (int)strcspn(sets[i], "="), sets[i]);
        assert_int_equal(dpt_config_load_text("", "c.yaml", &sets[i], 1, &c, &err), DPT_ECONFIG);
        assert_non_null(strstr(err.text, text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(image_defaults, setup),
        cmocka_unit_test_setup(cifar10_sets_image_keys, setup),
        cmocka_unit_test_setup(cifar10_has_one_size, setup),
        cmocka_unit_test_setup(a_sample_is_a_part, setup),
        cmocka_unit_test_setup(images_have_no_tokens, setup),
        cmocka_unit_test_setup(images_are_for_resnet, setup),
        cmocka_unit_test_setup(keys_of_images_alone, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
