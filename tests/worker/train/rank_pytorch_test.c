/* Whole runs against PyTorch's DDP and FSDP: the losses of a tiny GPT-2, trained in worlds of ranks
 * from the same weights on the same samples, as record_pytorch.py recorded them in fp32.
 *
 * `test_worker_train_rank_pytorch --dump FILE` writes the input of the recording: the run's
 * numbers, the initial weights and every step's samples. */
#include "tests/worker/train/rank_rig.h"

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

enum {
    STEPS = 12,
    SLOTS = 8,
    MICRO_BATCH = 2,
    DUMP_BYTES_MAX = 1 << 22,
    PEERS = 5,
    GROUPS_MAX = 4
};

/* A run of a peer, as pytorch_losses.json has it. */
struct recorded {
    const char *peer, *optimizer;
    bool nesterov;
    double lr;
    double loss[STEPS];
};

static const char *recorded_path(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", DPT_TEST_RECORDED, name);
    return path;
}

static void take_run(json_t *run, struct recorded *ret)
{
    json_t *losses;
    assert_int_equal(json_unpack(run, "{s:s, s:s, s:b, s:F, s:o}", "peer", &ret->peer, "optimizer",
                                 &ret->optimizer, "nesterov", &ret->nesterov, "lr", &ret->lr,
                                 "losses", &losses),
                     0);
    assert_int_equal(json_array_size(losses), STEPS);
    for (size_t step = 0; step < STEPS; step++)
        ret->loss[step] = json_real_value(json_array_get(losses, step));
}

/* The recorded runs, in groups of one for each peer; to be read as long as the object is held. */
static json_t *load_recorded(struct recorded ret[][PEERS], size_t groups_max, size_t *ret_groups)
{
    json_error_t error;
    json_t *file = json_load_file(recorded_path("pytorch_losses.json"), 0, &error);
    if (!file)
        fail_msg("%s:%d: %s", error.source, error.line, error.text);
    json_t *runs = json_object_get(file, "runs");
    const size_t n = json_array_size(runs);
    assert_true(n > 0 && n % PEERS == 0 && n / PEERS <= groups_max);
    for (size_t i = 0; i < n; i++)
        take_run(json_array_get(runs, i), &ret[i / PEERS][i % PEERS]);
    *ret_groups = n / PEERS;
    return file;
}

static struct dpt_config make_pytorch_config(const char *optimizer, bool nesterov, double lr)
{
    static char yaml[8192];
    struct dpt_config config;
    struct dpt_err err;
    FILE *f = fopen(recorded_path("pytorch_run.yaml"), "r");
    assert_non_null(f);
    const size_t bytes = fread(yaml, 1, sizeof yaml, f);
    assert_int_equal(fclose(f), 0);
    if (dpt_config_load(
            &(struct dpt_config_input){.text = yaml, .bytes = bytes, .name = "pytorch_run.yaml"},
            &config, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(config.train.steps, STEPS);
    assert_int_equal(config.train.micro_batch, MICRO_BATCH);
    assert_int_equal(config.train.global_batch, MICRO_BATCH * SLOTS);
    (void)snprintf(config.data.train, sizeof config.data.train, "%s", recorded_path("words.txt"));
    (void)snprintf(config.optimizer.name, sizeof config.optimizer.name, "%s", optimizer);
    config.optimizer.nesterov = nesterov;
    config.optimizer.lr = lr;
    config.optimizer.min_lr = lr / 10;
    return config;
}

/* Trains in a world of `world`; gives the losses of metrics.jsonl. */
static void train_losses(const struct dpt_config *config, int world, bool two_hosts,
                         double ret[STEPS])
{
    static int runs;
    char name[32], hash[64], path[192], line[1024];
    (void)snprintf(name, sizeof name, "run-%d", runs++);
    rig_undisturbed(config, name, world, two_hosts, hash);
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", rig_dir(name));
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int step = 0; step < STEPS; step++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *record = json_loads(line, 0, NULL);
        ret[step] = json_number_value(json_object_get(record, "loss"));
        json_decref(record);
    }
    assert_int_equal(fclose(f), 0);
}

/* Every loss must be near the recorded loss of each peer. */
static void expect_losses(const struct dpt_config *config, const struct recorded peers[PEERS],
                          int world, bool two_hosts, double tolerance)
{
    double loss[STEPS], worst = 0;
    train_losses(config, world, two_hosts, loss);
    for (int p = 0; p < PEERS; p++)
        for (int step = 0; step < STEPS; step++) {
            worst = fmax(worst, fabs(loss[step] - peers[p].loss[step]));
            if (!(fabs(loss[step] - peers[p].loss[step]) <= tolerance))
                fail_msg("%s, %s, world %d, step %d: loss %.7f, recorded of %s: %.7f",
                         config->strategy.name, config->optimizer.name, world, step, loss[step],
                         peers[p].peer, peers[p].loss[step]);
        }
    print_message("%s %d, %s%s, world %d: worst difference of a loss %.2g\n", config->strategy.name,
                  (int)config->strategy.sharding, config->optimizer.name,
                  config->optimizer.nesterov ? " nesterov" : "", world, worst);
}

static void losses_in_fp32(void **state)
{
    struct recorded recorded[GROUPS_MAX][PEERS];
    size_t groups;
    json_t *file = load_recorded(recorded, GROUPS_MAX, &groups);
    (void)state;
    for (size_t i = 0; i < groups; i++) {
        const struct recorded *first = &recorded[i][0];
        struct dpt_config config =
            make_pytorch_config(first->optimizer, first->nesterov, first->lr);
        for (int world = 2; world <= 4; world *= 2)
            expect_losses(&config, recorded[i], world, world > 2, 1e-4);
        for (int k = 0; k < RIG_STRATEGIES; k += dpt_test_every()) { /* in their own order */
            rig_choose(&config, rig_strategies[k]);
            expect_losses(&config, recorded[i], 3, true, 1e-4);
        }
        rig_choose(&config, "full_shard"); /* for fsdp as its name */
        config.strategy.sharding = DPT_SHARDING_HYBRID_SHARD;
        expect_losses(&config, recorded[i], 4, true, 1e-4);
        assert_true(first->loss[STEPS - 1] < first->loss[0] - 0.1); /* training falls */
    }
    json_decref(file);
}

/* Within the tolerance of their rounding; fp16 with the default scaler. */
static void losses_in_16_bits(void **state)
{
    struct recorded recorded[GROUPS_MAX][PEERS];
    size_t groups;
    json_t *file = load_recorded(recorded, GROUPS_MAX, &groups);
    (void)state;
    for (size_t i = 0; i < groups; i++) {
        const struct recorded *first = &recorded[i][0];
        struct dpt_config config =
            make_pytorch_config(first->optimizer, first->nesterov, first->lr);
        config.train.precision = DPT_PRECISION_BF16;
        expect_losses(&config, recorded[i], 2, false, 3e-2);
        config.train.precision = DPT_PRECISION_FP16;
        expect_losses(&config, recorded[i], 2, false, 4e-3);
    }
    json_decref(file);
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
    dpt_model_init_range(model, dpt_device_ops(device), stream, config->seed,
                         (struct dpt_span){0, dpt_model_flat_numel(model)}, flat);
    assert_int_equal(dpt_stream_sync(stream, err), DPT_OK);
    dpt_writer_u32(w, (uint32_t)dpt_model_n_params(model));
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        dpt_writer_u16(w, (uint16_t)strlen(p->name));
        dpt_writer_bytes(w, p->name, strlen(p->name));
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
            struct dpt_batch batch;
            assert_int_equal(dpt_loader_next(loader, step, slot, &batch, err), DPT_OK);
            dpt_writer_bytes(w, batch.part[DPT_SAMPLE_INPUT], bytes);
            dpt_writer_bytes(w, batch.part[DPT_SAMPLE_TARGET], bytes);
        }
    dpt_loader_destroy(&loader);
    dpt_data_close(&data);
}

static int dump(const char *path)
{
    static uint8_t file[DUMP_BYTES_MAX];
    struct dpt_err err = {.text = ""};
    struct dpt_model *model = NULL;
    struct dpt_writer w;
    if (rig_setup(NULL) != 0)
        return 1;
    struct dpt_config config = make_pytorch_config("adamw", false, 1e-2);
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
