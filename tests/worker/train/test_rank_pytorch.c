/* Whole runs against PyTorch's DistributedDataParallel: the losses of a tiny GPT-2, trained in
 * worlds of ranks from the same weights on the same samples, as record_ddp.py recorded them in
 * fp32.
 *
 * `test_rank_pytorch --dump FILE` writes what the recording needs: the run's numbers, the initial
 * weights and every step's samples. */
#include "tests/worker/train/rig.h"

#include "base/cursor.h"
#include "base/fs.h"
#include "kernels/device.h"
#include "worker/data/data.h"
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 12, SLOTS = 8, MICRO_BATCH = 2, DUMP_BYTES_MAX = 1 << 22 };

static const struct recorded {
    const char *optimizer;
    int nesterov;
    double lr;
    double loss[STEPS];
} recorded[] = {
#include "tests/worker/train/ddp_losses.inc"
};
enum { RECORDED = sizeof recorded / sizeof *recorded };

static struct dpt_config make_config(const struct recorded *r)
{
    struct dpt_config config = rig_make_config(MICRO_BATCH * SLOTS, STEPS, "");
    config.model.dropout = 0;
    (void)snprintf(config.optimizer.name, sizeof config.optimizer.name, "%s", r->optimizer);
    config.optimizer.nesterov = r->nesterov != 0;
    config.optimizer.lr = r->lr;
    config.optimizer.min_lr = r->lr / 10;
    return config;
}

/* Trains in a world of `world`; every loss of metrics.jsonl is to be near the recorded one. */
static void expect_losses(const struct dpt_config *config, const struct recorded *r, int world,
                          double tolerance)
{
    static int runs;
    char name[32], hash[64], path[192], line[1024];
    (void)snprintf(name, sizeof name, "run-%d", runs++);
    rig_undisturbed(config, name, world, world > 2, hash);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", rig_dir(name));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *record = json_loads(line, 0, NULL);
        const double loss = json_number_value(json_object_get(record, "loss"));
        worst = fmax(worst, fabs(loss - r->loss[step]));
        if (!(fabs(loss - r->loss[step]) <= tolerance))
            fail_msg("%s, world %d, step %d: loss %.7f, recorded %.7f", r->optimizer, world, step,
                     loss, r->loss[step]);
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
    print_message("%s%s, world %d: worst difference of a loss %.2g\n", r->optimizer,
                  r->nesterov ? " nesterov" : "", world, worst);
}

static void losses_in_fp32(void **state)
{
    (void)state;
    for (int i = 0; i < RECORDED; i++) {
        struct dpt_config config = make_config(&recorded[i]);
        for (int world = 2; world <= 4; world *= 2)
            expect_losses(&config, &recorded[i], world, 1e-4);
        for (int k = 0; k < RIG_STRATEGIES; k += RIG_EVERY) { /* in their own order */
            rig_choose(&config, rig_strategies[k]);
            expect_losses(&config, &recorded[i], 3, 1e-4);
        }
        assert_true(recorded[i].loss[STEPS - 1] < recorded[i].loss[0] - 0.1); /* training falls */
    }
}

/* Within what their rounding allows; fp16 with the scaler as it is by default. */
static void losses_in_16_bits(void **state)
{
    (void)state;
    for (int i = 0; i < RECORDED; i++) {
        struct dpt_config config = make_config(&recorded[i]);
        config.train.precision = DPT_PRECISION_BF16;
        expect_losses(&config, &recorded[i], 2, 3e-2);
        config.train.precision = DPT_PRECISION_FP16;
        expect_losses(&config, &recorded[i], 2, 4e-3);
    }
}

static void put_f64(struct dpt_writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    dpt_writer_u64(w, bits);
}

static void dump_weights(struct dpt_writer *w, const struct dpt_config *config,
                         const struct dpt_model *model, struct dpt_err *err)
{
    struct dpt_device *device = NULL;
    struct dpt_stream *stream = NULL;
    float *flat = calloc((size_t)dpt_model_flat_numel(model), sizeof *flat);
    assert_non_null(flat);
    assert_int_equal(dpt_device_cpu_create(&device, err), DPT_OK);
    assert_int_equal(dpt_stream_create(device, 1, &stream, err), DPT_OK);
    dpt_model_init_weights(model, dpt_device_ops(device), stream, config->seed, flat);
    assert_int_equal(dpt_stream_sync(stream, err), DPT_OK);
    dpt_writer_u32(w, (uint32_t)dpt_model_n_params(model));
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        dpt_writer_text(w, p->name);
        dpt_writer_u32(w, (uint32_t)p->numel);
        dpt_writer_bytes(w, flat + p->offset, (size_t)p->numel * sizeof *flat);
    }
    dpt_stream_destroy(&stream);
    dpt_device_destroy(&device);
    free(flat);
}

static void dump_samples(struct dpt_writer *w, const struct dpt_config *config, struct dpt_err *err)
{
    struct dpt_data *data = NULL;
    struct dpt_loader *loader = NULL;
    const size_t bytes = (size_t)(MICRO_BATCH * config->train.seq_len) * sizeof(int32_t);
    assert_int_equal(dpt_data_open(config, &data, err), DPT_OK);
    assert_int_equal(dpt_loader_create(config, data, &loader, err), DPT_OK);
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int step = 0; step < STEPS; step++)
        for (int slot = 0; slot < SLOTS; slot++) {
            const int32_t *tokens, *targets;
            assert_int_equal(dpt_loader_next(loader, step, slot, &tokens, &targets, err), DPT_OK);
            dpt_writer_bytes(w, tokens, bytes);
            dpt_writer_bytes(w, targets, bytes);
        }
    dpt_loader_destroy(&loader);
    dpt_data_close(&data);
}

static int dump(const char *path)
{
    static uint8_t file[DUMP_BYTES_MAX];
    static const struct recorded first = {.optimizer = "adamw", .lr = 1e-2};
    struct dpt_err err = {.text = ""};
    struct dpt_model *model = NULL;
    struct dpt_writer w;
    if (rig_setup(NULL) != 0)
        return 1;
    struct dpt_config config = make_config(&first);
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    dpt_writer_init(&w, file, sizeof file);
    const int sizes[] = {config.model.n_layer,
                         config.model.n_head,
                         config.model.n_embd,
                         config.model.context,
                         config.model.vocab,
                         MICRO_BATCH,
                         config.train.seq_len,
                         SLOTS,
                         STEPS,
                         (int)config.optimizer.warmup_steps};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        dpt_writer_u32(&w, (uint32_t)sizes[i]);
    put_f64(&w, config.optimizer.beta1);
    put_f64(&w, config.optimizer.beta2);
    put_f64(&w, config.optimizer.eps);
    put_f64(&w, config.optimizer.weight_decay);
    put_f64(&w, config.optimizer.momentum);
    put_f64(&w, config.train.grad_clip);
    dump_weights(&w, &config, model, &err);
    dump_samples(&w, &config, &err);
    dpt_model_destroy(&model);
    enum dpt_status status = dpt_writer_end(&w, "dump", &err);
    if (status == DPT_OK)
        status = dpt_fs_write_file_atomic(path, file, w.at, &err);
    if (status != DPT_OK)
        (void)fprintf(stderr, "%s\n", err.text);
    return rig_teardown(NULL) != 0 || status != DPT_OK;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--dump") == 0)
        return dump(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_in_fp32),
        cmocka_unit_test(losses_in_16_bits),
    };
    return cmocka_run_group_tests_name("rank_pytorch", tests, rig_setup, rig_teardown);
}
