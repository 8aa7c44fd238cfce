/* Residual networks: presets, values that follow from other keys, and impossible combinations. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_config load_resnet(const char *text)
{
    static struct dpt_config c;
    if (dpt_config_load_text(text, "c.yaml", NULL, 0, &c, &err) != DPT_OK)
        fail_msg("'%s': %s", text, err.text);
    return c;
}

static void check_sizes(const struct dpt_config *c, enum dpt_stem stem,
                        enum dpt_residual_block block, int64_t n, const int64_t *stages)
{
    int blocks = 0;
    assert_string_equal(c->model.name, "resnet");
    assert_int_equal(c->model.width, 64);
    assert_int_equal(c->model.stem, stem);
    assert_int_equal(c->model.block, block);
    assert_int_equal(c->model.stages.n, n);
    for (int64_t i = 0; i < n; i++) {
        assert_int_equal(c->model.stages.step[i], stages[i]);
        blocks += (int)stages[i];
    }
    assert_int_equal(c->model.n_layer, blocks);
}

/* The printed config is the same one. */
static void check_round_trip(const struct dpt_config *c)
{
    static char text[DPT_CONFIG_TEXT_BYTES_MAX];
    char keys[256];
    assert_int_equal(dpt_config_print(c, text, &err), DPT_OK);
    const struct dpt_config again = load_resnet(text);
    assert_int_equal(dpt_config_diff(c, &again, DPT_CONFIG_NODE, NULL, keys, sizeof keys), 0);
}

static void test_resnet_presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dpt_stem stem;
        enum dpt_residual_block block;
        int64_t n, stages[4];
    } cases[] = {
        {"small_resnet", DPT_STEM_CIFAR, DPT_RESIDUAL_BLOCK_BASIC, 3, {6, 6, 6}},
        {"resnet18", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BASIC, 4, {2, 2, 2, 2}},
        {"resnet34", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BASIC, 4, {3, 4, 6, 3}},
        {"resnet50", DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BOTTLENECK, 4, {3, 4, 6, 3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        (void)snprintf(text, sizeof text, "model: {preset: %s, labels: 10}\ndata: {kind: images}",
                       cases[i].name);
        const struct dpt_config c = load_resnet(text);
        check_sizes(&c, cases[i].stem, cases[i].block, cases[i].n, cases[i].stages);
        assert_true(c.model.batch_norm_momentum == 0.1);
        check_round_trip(&c);
    }
}

/* What is written beside a preset wins; blocks are counted, or shared out. */
static void resnet_sizes_beside_preset(void **state)
{
    (void)state;
    struct dpt_config c = load_resnet("model: {name: resnet, labels: 2}\ndata: {kind: cifar10}");
    check_sizes(&c, DPT_STEM_CIFAR, DPT_RESIDUAL_BLOCK_BASIC, 3, (int64_t[]){6, 6, 6});
    c = load_resnet("model: {preset: small_resnet, n_layer: 9, labels: 2}\ndata: {kind: cifar10}");
    check_sizes(&c, DPT_STEM_CIFAR, DPT_RESIDUAL_BLOCK_BASIC, 3, (int64_t[]){3, 3, 3});
    check_round_trip(&c);
    c = load_resnet("model: {preset: resnet18, stem: cifar, labels: 2}\ndata: {kind: cifar10}");
    check_sizes(&c, DPT_STEM_CIFAR, DPT_RESIDUAL_BLOCK_BASIC, 4, (int64_t[]){2, 2, 2, 2});
    c = load_resnet("model: {preset: resnet50, block: basic, stages: [5, 1, 2], labels: 2}\n"
                    "data: {kind: cifar10}");
    check_sizes(&c, DPT_STEM_IMAGENET, DPT_RESIDUAL_BLOCK_BASIC, 3, (int64_t[]){5, 1, 2});
    check_round_trip(&c);
}

static void test_resnet_combinations(void **state)
{
    (void)state;
    static const char usual[] = "model: {name: resnet, labels: 10}\ndata: {kind: cifar10}";
    static const struct {
        const char *set, *error; /* NULL: it can be */
    } cases[] = {
        {"model.width=48", NULL},
        {"model.n_layer=20",
         "model.n_layer (20) is not a multiple of the 3 stages; nearest: 18 or 21, or name the "
         "blocks of each in model.stages"},
        {"model={n_layer: 5, stages: [2, 2]}",
         "model.n_layer (5) is not the number of blocks in model.stages (4); leave model.n_layer "
         "out"},
        {"model={n_layer: 4, stages: [2, 2]}", NULL},
        {"model.stages=[1, 1, 1, 1, 1, 1, 1]", "model.stages: 7 stages; at most 6"},
        {"model.stages=[200, 100]", "model.stages: 300 blocks in all; at most 254"},
        {"model.stages=[0]", "model.stages: expected an integer from 1 to 254, got '0'"},
        {"model.stages=6", "model.stages: expected a list such as [3, 4, 6, 3], of at most 16"},
        {"model.batch_norm_momentum=0",
         "model.batch_norm_momentum: expected a number above 0 to 1, got '0'"},
        {"model.labels=0",
         "data.kind: cifar10 needs model.labels, the number of classes, which is 0 here; set it to "
         "at least 2, or data.kind: text"},
        {"data.kind=text",
         "data.kind: text is not what model.name: resnet reads; write cifar10 or images"},
        {"model.n_head=8",
         "model.n_head is for model.name: gpt2 or llama; leave it out (here: resnet)"},
        {"model.vocab=300",
         "model.vocab is for model.name: gpt2 or llama; leave it out (here: resnet)"},
        {"model.dropout=0.1",
         "model.dropout is for model.name: gpt2 or llama; leave it out (here: resnet)"},
        {"model.head_size=8",
         "model.head_size is for model.name: llama; leave it out (here: resnet)"},
        {"model.name=gpt2",
         "data.kind: cifar10 needs model.name: resnet, the model that reads images (here: gpt2)"},
        {"model={name: gpt2, width: 32}",
         "model.width is for model.name: resnet; leave it out (here: gpt2)"},
        {"model={name: gpt2, preset: resnet18}",
         "model.preset: resnet18 is a resnet; set model.name: resnet, or leave it out (here: "
         "gpt2)"},
        {"train.activation_checkpointing=full",
         "train.activation_checkpointing: full is not for model.name: resnet; write none"},
        {"strategy.compression=fp16",
         "strategy.compression: fp16 ends at 65504, and the variances that batch norm keeps do not "
         "carry the loss's scale; write bf16 or none"},
        {"strategy.compression=bf16", NULL},
        {"train={global_batch: 4, micro_batch: 1}", NULL}, /* 8 x 8 pixels are left */
        {"model={stem: imagenet, stages: [1, 1, 1, 1, 1]}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        const enum dpt_status status =
            dpt_config_load_text(usual, "c.yaml", &cases[i].set, 1, &c, &err);
        if (cases[i].error == NULL ? status != DPT_OK
                                   : status != DPT_ECONFIG || !strstr(err.text, cases[i].error))
            fail_msg("'%s' gives\n%s, not\n%s", cases[i].set, status == DPT_OK ? "" : err.text,
                     cases[i].error ? cases[i].error : "");
    }
}

/* Batch norm needs two values a channel: a micro-batch of one image needs more than one pixel. */
static void single_pixels(void **state)
{
    (void)state;
    static const char one[] = "model: {preset: resnet18, labels: 10}\ndata: {kind: cifar10}\n"
                              "train: {global_batch: 4, micro_batch: 1}";
    struct dpt_config c;
    assert_int_equal(dpt_config_load_text(one, "c.yaml", NULL, 0, &c, &err), DPT_ECONFIG);
    assert_non_null(strstr(err.text,
                           "train.micro_batch is 1, and of an image of 32 x 32 pixels "
                           "(data.image_size) the last stage sees one: batch norm has nothing to "
                           "compare; set micro_batch to at least 2, or take larger images"));
    (void)load_resnet("model: {preset: resnet18, labels: 10}\ndata: {kind: cifar10}\n"
                      "train: {global_batch: 4, micro_batch: 2}");
    (void)load_resnet(
        "model: {preset: resnet18, labels: 10}\ndata: {kind: images, image_size: 33}\n"
        "train: {global_batch: 4, micro_batch: 1}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resnet_presets),
        cmocka_unit_test(resnet_sizes_beside_preset),
        cmocka_unit_test(test_resnet_combinations),
        cmocka_unit_test(single_pixels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
