/* Packed operands and workspace of convolutions: the formulas against sizes computed by hand and
 * against the memory that the ops take. */
#include "worker/strategy/memory/memory_formula.h"

#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 2 };

static struct dpt_err err;

/* A residual network of two stages of a block, and a stream that it is computed on. */
struct rig {
    struct dpt_config config;
    struct dpt_model *model;
    struct dpt_device *device;
    struct dpt_stream *stream;
    const struct dpt_ops *ops;
    struct dpt_account account;
};

static void open_rig(struct rig *r, enum dpt_residual_block block, int width,
                     enum dpt_precision precision)
{
    memset(r, 0, sizeof *r);
    struct dpt_config *c = &r->config;
    dpt_config_defaults(c);
    (void)snprintf(c->model.name, sizeof c->model.name, "resnet");
    c->model.labels = 10;
    c->model.width = width;
    c->model.block = block;
    c->model.stem = block == DPT_RESIDUAL_BLOCK_BASIC ? DPT_STEM_CIFAR : DPT_STEM_IMAGENET;
    c->model.n_layer = 2;
    c->model.stages = (struct dpt_config_steps){2, {1, 1}};
    c->data.kind = DPT_DATA_CIFAR10;
    c->data.image_size = 32;
    c->train.seq_len = 1;
    c->train.micro_batch = 4;
    c->train.precision = precision;
    assert_int_equal(dpt_model_create(c, &r->model, &err), DPT_OK);
    assert_int_equal(dpt_device_cpu_create(&r->device, &err), DPT_OK);
    dpt_device_set_account(r->device, &r->account);
    assert_int_equal(dpt_stream_create(r->device, THREADS, &r->stream, &err), DPT_OK);
    r->ops = dpt_device_ops(r->device);
}

static void close_rig(struct rig *r)
{
    dpt_model_destroy(&r->model);
    dpt_stream_destroy(&r->stream);
    dpt_device_destroy(&r->device);
}

static int operand_of(const struct rig *r)
{
    return (int)r->ops->operand_bytes(r->stream, dpt_model_dtype(r->model));
}

/* y and dx of each: the stem's 27 inputs in 32 rows, and its 3 channels in 64 columns; of the wider
 * block the first convolution, whose four classes of pixels meet 1, 2, 2 and 4 taps; its shortcut,
 * whose one tap one class meets; the head's 10 labels in 16 rows and 64 columns. */
static void packed_by_hand(void **state)
{
    (void)state;
    const int64_t stem = 32 * 64 + 9 * 64 * 64, block = 4 * 9 * 64 * 64,
                  wider = 9 * 64 * 128 + (1 + 2 + 2 + 4) * 128 * 64 + 2 * 9 * 128 * 128,
                  shortcut = 2 * 64 * 128, head = 16 * 128 + 128 * 64;
    struct rig r;
    open_rig(&r, DPT_RESIDUAL_BLOCK_BASIC, 64, DPT_PRECISION_FP32);
    assert_int_equal(dpt_memory_packed(r.model, 4), 4 * (stem + block + wider + shortcut + head));
    close_rig(&r);
}

/* No less than each element twice. */
static void packed_is_at_most_the_formula(struct rig *r)
{
    int64_t bytes = 0, elements = 0;
    for (int i = 0; i < dpt_model_n_params(r->model); i++) {
        struct dpt_pack pack;
        if (!dpt_model_packing(r->model, i, &pack))
            continue;
        bytes += (int64_t)r->ops->packed_bytes(r->stream, &pack);
        elements += 2 * pack.rows * pack.cols;
    }
    const int64_t formula = dpt_memory_packed(r->model, operand_of(r));
    if (bytes > formula || bytes < elements * operand_of(r))
        fail_msg("width %d: %lld bytes, not %lld", r->config.model.width, (long long)bytes,
                 (long long)formula);
}

/* Nor less than a quarter of it. */
static void workspace_is_at_most_the_formula(struct rig *r)
{
    const struct dpt_memory_spec spec = {.config = &r->config,
                                         .model = r->model,
                                         .threads = THREADS,
                                         .packed_operand = operand_of(r)};
    const int n_units = dpt_model_n_units(r->model);
    struct dpt_slot slot = {.mode = DPT_MODE_TRAIN, .b = r->config.train.micro_batch, .t = 1};
    struct dpt_memory_use use;
    dpt_stream_prepare_begin(r->stream);
    for (int u = 0; u < n_units; u++)
        dpt_model_forward(r->model, r->ops, r->stream, u, &slot);
    for (int u = n_units - 1; u >= 0; u--)
        dpt_model_backward(r->model, r->ops, r->stream, u, &slot);
    assert_int_equal(dpt_stream_prepare_end(r->stream, &err), DPT_OK);
    dpt_account_read(&r->account, &use);
    const int64_t bytes = use.tag[DPT_MEMORY_WORKSPACE],
                  formula = dpt_memory_workspace(&spec, false);
    if (bytes > formula || 4 * bytes < formula)
        fail_msg("width %d: a workspace of %lld bytes, not %lld", r->config.model.width,
                 (long long)bytes, (long long)formula);
}

static void formula_equals_workspace_of_ops(void **state)
{
    (void)state;
    static const enum dpt_precision precisions[] = {DPT_PRECISION_FP32, DPT_PRECISION_BF16,
                                                    DPT_PRECISION_FP16};
    static const int widths[] = {24, 64, 100};
    for (size_t p = 0; p < sizeof precisions / sizeof *precisions; p++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int block = 0; block < 2; block++) {
                struct rig r;
                open_rig(&r, block ? DPT_RESIDUAL_BLOCK_BOTTLENECK : DPT_RESIDUAL_BLOCK_BASIC,
                         widths[w], precisions[p]);
                packed_is_at_most_the_formula(&r);
                workspace_is_at_most_the_formula(&r);
                close_rig(&r);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_by_hand),
        cmocka_unit_test(formula_equals_workspace_of_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
