/* The ResNet family's table: names, shapes and counts as torchvision has them, running statistics,
 * units, the windows and forms of its weights. */
#include "worker/model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

static struct dpt_model *make_resnet(const char *yaml)
{
    static struct dpt_config config;
    struct dpt_model *model = NULL;
    if (dpt_config_load_text(yaml, "test", NULL, 0, &config, &err) != DPT_OK ||
        dpt_model_create(&config, &model, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return model;
}

static int find_param_index(const struct dpt_model *model, const char *name)
{
    for (int i = 0; i < dpt_model_n_params(model); i++)
        if (strcmp(dpt_model_param(model, i)->name, name) == 0)
            return i;
    return -1;
}

/* torchvision's, which counts no running statistics. */
static void test_torchvision_parameter_counts(void **state)
{
    (void)state;
    static const struct {
        const char *yaml;
        int64_t parameters;
        int tensors, units; /* tensors: of the state dict, but num_batches_tracked */
    } cases[] = {
        {"model: {preset: small_resnet, labels: 10}\ndata: {kind: cifar10}", 8977994, 197, 20},
        {"model: {name: resnet, n_layer: 18, labels: 10}\ndata: {kind: cifar10}", 8977994, 197, 20},
        {"model: {preset: small_resnet, n_layer: 3, labels: 10}\ndata: {kind: cifar10}", 1227594,
         47, 5},
        {"model: {preset: resnet18, labels: 1000}\ndata: {kind: images}", 11689512, 102, 10},
        {"model: {preset: resnet34, labels: 1000}\ndata: {kind: images}", 21797672, 182, 18},
        {"model: {preset: resnet50, labels: 1000}\ndata: {kind: images}", 25557032, 267, 18},
        {"model: {preset: resnet18, stem: cifar, labels: 10}\ndata: {kind: cifar10}", 11173962, 102,
         10},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_model *model = make_resnet(cases[i].yaml);
        assert_int_equal(dpt_model_param_count(model), cases[i].parameters);
        assert_int_equal(dpt_model_n_params(model), cases[i].tensors);
        assert_int_equal(dpt_model_n_units(model), cases[i].units);
        dpt_model_destroy(&model);
    }
}

/* From `first` on: the tensors of a convolution with its norm. */
static int expect_layer(const struct dpt_model *model, int first, const char *conv,
                        const char *norm, const int64_t dim[4])
{
    static const char *const of_norm[] = {"weight", "bias", "running_mean", "running_var"};
    const struct dpt_param *weight = dpt_model_param(model, first);
    char name[DPT_PARAM_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.weight", conv);
    assert_string_equal(weight->name, name);
    assert_int_equal(weight->ndim, 4);
    assert_memory_equal(weight->dim, dim, sizeof weight->dim);
    assert_true(weight->decay && !weight->averaged && weight->init == DPT_INIT_NORMAL);
    const double std = sqrt(2.0 / (double)(dim[0] * dim[2] * dim[3]));
    assert_true(fabs((double)weight->init_std / std - 1.0) < 1e-6);
    for (int i = 0; i < 4; i++) {
        const struct dpt_param *p = dpt_model_param(model, first + 1 + i);
        (void)snprintf(name, sizeof name, "%s.%s", norm, of_norm[i]);
        assert_string_equal(p->name, name);
        assert_true(p->ndim == 1 && p->dim[0] == dim[0] && !p->decay);
        assert_int_equal(p->averaged, i >= 2);
        assert_int_equal(p->init, i == 0 || i == 3 ? DPT_INIT_ONE : DPT_INIT_ZERO);
    }
    return first + 5;
}

static void expect_head(const struct dpt_model *model, int first, int labels, int features)
{
    const struct dpt_param *weight = dpt_model_param(model, first);
    const struct dpt_param *bias = dpt_model_param(model, first + 1);
    const double bound = 1.0 / sqrt((double)features);
    assert_string_equal(weight->name, "fc.weight");
    assert_string_equal(bias->name, "fc.bias");
    assert_true(weight->ndim == 2 && weight->dim[0] == labels && weight->dim[1] == features);
    assert_true(bias->ndim == 1 && bias->dim[0] == labels);
    assert_true(weight->decay && !bias->decay);
    assert_true(weight->init == DPT_INIT_UNIFORM && bias->init == DPT_INIT_UNIFORM);
    assert_true(fabs((double)weight->init_std / bound - 1.0) < 1e-6);
    assert_true(weight->init_std == bias->init_std);
    assert_int_equal(dpt_model_n_params(model), first + 2);
    assert_int_equal(dpt_model_score(model), first);
    assert_int_equal(dpt_model_labels(model), labels);
}

/* In the order of torchvision's state dict. */
static void names_of_basic_blocks(void **state)
{
    (void)state;
    struct dpt_model *model =
        make_resnet("model: {name: resnet, stages: [1, 2], labels: 7}\ndata: {kind: cifar10}");
    int at = expect_layer(model, 0, "conv1", "bn1", (int64_t[]){64, 3, 3, 3});
    at = expect_layer(model, at, "layer1.0.conv1", "layer1.0.bn1", (int64_t[]){64, 64, 3, 3});
    at = expect_layer(model, at, "layer1.0.conv2", "layer1.0.bn2", (int64_t[]){64, 64, 3, 3});
    at = expect_layer(model, at, "layer2.0.conv1", "layer2.0.bn1", (int64_t[]){128, 64, 3, 3});
    at = expect_layer(model, at, "layer2.0.conv2", "layer2.0.bn2", (int64_t[]){128, 128, 3, 3});
    at = expect_layer(model, at, "layer2.0.downsample.0", "layer2.0.downsample.1",
                      (int64_t[]){128, 64, 1, 1});
    at = expect_layer(model, at, "layer2.1.conv1", "layer2.1.bn1", (int64_t[]){128, 128, 3, 3});
    at = expect_layer(model, at, "layer2.1.conv2", "layer2.1.bn2", (int64_t[]){128, 128, 3, 3});
    expect_head(model, at, 7, 128);
    assert_string_equal(dpt_model_unit(model, 0)->name, "stem");
    assert_string_equal(dpt_model_unit(model, 3)->name, "layer2.1");
    assert_string_equal(dpt_model_unit(model, 4)->name, "head");
    for (int u = 0; u < 5; u++)
        assert_true(dpt_model_unit(model, u)->borrows == -1 && !dpt_model_unit(model, u)->in_parts);
    assert_int_equal(dpt_model_context(model), 1);
    assert_int_equal(dpt_model_vocab(model), 0);
    dpt_model_destroy(&model);
}

static void names_of_bottlenecks(void **state)
{
    (void)state;
    struct dpt_model *model =
        make_resnet("model: {name: resnet, stem: imagenet, block: bottleneck, "
                    "stages: [1, 1], width: 16, labels: 7}\ndata: {kind: images}");
    int at = expect_layer(model, 0, "conv1", "bn1", (int64_t[]){16, 3, 7, 7});
    at = expect_layer(model, at, "layer1.0.conv1", "layer1.0.bn1", (int64_t[]){16, 16, 1, 1});
    at = expect_layer(model, at, "layer1.0.conv2", "layer1.0.bn2", (int64_t[]){16, 16, 3, 3});
    at = expect_layer(model, at, "layer1.0.conv3", "layer1.0.bn3", (int64_t[]){64, 16, 1, 1});
    at = expect_layer(model, at, "layer1.0.downsample.0", "layer1.0.downsample.1",
                      (int64_t[]){64, 16, 1, 1});
    at = expect_layer(model, at, "layer2.0.conv1", "layer2.0.bn1", (int64_t[]){32, 64, 1, 1});
    at = expect_layer(model, at, "layer2.0.conv2", "layer2.0.bn2", (int64_t[]){32, 32, 3, 3});
    at = expect_layer(model, at, "layer2.0.conv3", "layer2.0.bn3", (int64_t[]){128, 32, 1, 1});
    at = expect_layer(model, at, "layer2.0.downsample.0", "layer2.0.downsample.1",
                      (int64_t[]){128, 64, 1, 1});
    expect_head(model, at, 7, 128);
    dpt_model_destroy(&model);
}

/* What each weight of ResNet-50 is packed as, and is laid on. */
static void windows_and_packing(void **state)
{
    (void)state;
    struct dpt_model *model = make_resnet(
        "model: {preset: resnet50, labels: 1000}\ndata: {kind: images, image_size: 224}");
    static const struct {
        const char *name;
        int64_t rows, cols, side, kernel, stride;
    } layers[] = {{"conv1.weight", 64, 147, 224, 7, 2},
                  {"layer1.0.conv1.weight", 64, 64, 56, 1, 1},
                  {"layer1.2.conv2.weight", 64, 576, 56, 3, 1},
                  {"layer2.0.conv1.weight", 128, 256, 56, 1, 1},
                  {"layer2.0.conv2.weight", 128, 1152, 56, 3, 2},
                  {"layer2.0.downsample.0.weight", 512, 256, 56, 1, 2},
                  {"layer4.2.conv3.weight", 2048, 512, 7, 1, 1}};
    struct dpt_pack pack;
    struct dpt_windows windows;
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        const int param = find_param_index(model, layers[i].name);
        assert_true(dpt_model_packing(model, param, &pack));
        assert_true(dpt_model_windows(model, param, 5, &windows));
        assert_int_equal(pack.kind, DPT_PACK_CONV);
        assert_true(pack.rows == layers[i].rows && pack.cols == layers[i].cols);
        assert_true(pack.kernel == layers[i].kernel && pack.stride == layers[i].stride);
        assert_true(windows.b == 5 && windows.h == layers[i].side && windows.w == layers[i].side);
        assert_true(windows.kernel == layers[i].kernel && windows.stride == layers[i].stride);
    }
    int forms = 0, convolutions = 0;
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        forms += dpt_model_packing(model, i, &pack);
        convolutions += dpt_model_windows(model, i, 5, &windows);
    }
    assert_int_equal(convolutions, 53);
    assert_int_equal(forms, 54);
    assert_true(dpt_model_packing(model, find_param_index(model, "fc.weight"), &pack));
    assert_true(pack.kind == DPT_PACK_HEAD && pack.rows == 1000 && pack.cols == 2048);
    dpt_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torchvision_parameter_counts),
        cmocka_unit_test(names_of_basic_blocks),
        cmocka_unit_test(names_of_bottlenecks),
        cmocka_unit_test(windows_and_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
