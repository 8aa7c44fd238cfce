/* Ranks that compute on a CUDA device and keep their state on the host (strategy.offload:
 * optimizer), or there: one hash over strategies, worlds and both of these, through deaths, and
 * losses like the host's.
 *
 * All ranks are threads of this process and share a device, which NCCL does not do: gradients go by
 * the host, and, with a double in the library's place, by what is built on NCCL. */
#include "tests/gpu/gpu_ranks.h"
#ifdef DPT_TEST_NCCL_DOUBLE
#include "tests/worker/train/nccl_ranks.h"
#endif
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 5 };

/* Emulated kernels are slow: moments come into an update in the second step. No world of 2 or 3
 * ranks divides 5 slots, nor 11. */
#ifdef DPT_TEST_NCCL_DOUBLE
enum { STEPS = 2, SLOTS = 5, HEALING_SLOTS = 3 };
#else
enum { STEPS = 4, SLOTS = 11, HEALING_SLOTS = 7 };
#endif

enum { BACKENDS_MAX = 2 };
static enum dpt_backend backends[BACKENDS_MAX] = {DPT_BACKEND_HOST};
static int n_backends = 1;

/* Memory and queues of the emulated device are the host's. */
static void use_double(void)
{
#ifdef DPT_TEST_NCCL_DOUBLE
    nccl_ranks_begin((struct fabric_devices){NULL, NULL});
    backends[n_backends++] = DPT_BACKEND_NCCL;
#endif
}

static void forget_double(void)
{
#ifdef DPT_TEST_NCCL_DOUBLE
    assert_true(nccl_fabric.bytes > 0);
    nccl_ranks_end();
#endif
}

static struct dpt_config make_gpu_config(enum dpt_precision precision, int steps)
{
    struct dpt_config config = rig_make_config(2 * SLOTS, steps, "");
    config.train.precision = precision;
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.cluster.device = DPT_DEVICE_CUDA;
    config.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
    rig_evaluate(&config, 2, SEQUENCES);
    return config;
}

static double val_loss(const char *dir)
{
    json_t *summary = rig_summary_of(dir);
    const double loss = json_number_value(json_object_get(summary, "val_loss"));
    json_decref(summary);
    return loss;
}

/* Alone, and where transfers between devices can be had, in worlds of two and three. */
static void shards_kept_there(struct dpt_config *config, const char *expected)
{
    static const char *const sharded[] = {"zero1", "zero2", "zero3", "hybrid_shard",
                                          "full_shard+shadow"};
    char hash[64], name[64];
    config->cluster.backend = DPT_BACKEND_NCCL;
    for (int s = 0; s < (int)(sizeof sharded / sizeof *sharded); s++) {
        const int world = n_backends == 1 ? 1 : 1 + (s + 1) % 3;
        rig_choose(config, sharded[s]);
        if (world == 1)
            config->strategy.redundancy = DPT_REDUNDANCY_NONE;
        (void)snprintf(name, sizeof name, "kept-%s-%d", sharded[s], (int)config->train.precision);
        rig_undisturbed(config, name, world, true, hash);
        if (strcmp(hash, expected) != 0)
            fail_msg("%s: %s instead of %s", name, hash, expected);
    }
}

static void one_hash(enum dpt_precision precision, double tolerance)
{
    struct dpt_config config = make_gpu_config(precision, STEPS);
    char on_host[DPT_HASH_HEX_BYTES], first[64] = "", hash[64], name[64];
    double loss;
    plain_train_and_validate(&config, SEQUENCES, on_host, &loss);
    for (int s = 0; s < RIG_STRATEGIES; s++) {
        rig_choose(&config, rig_strategies[s]);
        (void)snprintf(name, sizeof name, "%s-%d", rig_strategies[s], (int)precision);
        rig_undisturbed(&config, name, 1 + s % 3, true, hash);
        if (s == 0)
            memcpy(first, hash, sizeof first);
        assert_string_equal(hash, first);
        const double off = fabs(val_loss(rig_dir(name)) / loss - 1);
        if (!(off <= tolerance))
            fail_msg("%s: val_loss is off by %g from the host's %g", name, off, loss);
    }
    rig_choose(&config, "ddp");
    config.strategy.offload = DPT_OFFLOAD_NONE;
    for (int run = 0; run < 3 * n_backends; run++) {
        config.cluster.backend = backends[run / 3];
        (void)snprintf(name, sizeof name, "kept-%d-%d", run, (int)precision);
        rig_undisturbed(&config, name, 1 + run % 3, true, hash);
        assert_string_equal(hash, first);
    }
    shards_kept_there(&config, first);
}

static void one_hash_fp32(void **state)
{
    (void)state;
    one_hash(DPT_PRECISION_FP32, 1e-4);
}

static void one_hash_bf16(void **state)
{
    (void)state;
    one_hash(DPT_PRECISION_BF16, 1e-2);
}

/* Shapes that cuDNN takes: heads of 64 channels, in 16 bits, without dropout. One hash with units
 * noted as graphs and without, and in two worlds; losses near the host's. */
static void heads_of_64_channels(void **state)
{
    (void)state;
    struct dpt_config config = make_gpu_config(DPT_PRECISION_BF16, STEPS);
    char first[64] = "", hash[64], name[64], on_host[DPT_HASH_HEX_BYTES];
    double loss;
    config.model.n_embd = 128;
    config.model.context = 64;
    config.model.dropout = 0;
    config.train.seq_len = 64;
    config.train.global_batch = 8;
    config.strategy.offload = DPT_OFFLOAD_NONE;
    config.cluster.backend = backends[n_backends - 1];
#ifdef DPT_TEST_NCCL_DOUBLE
    assert_int_equal(setenv("DPT_CUDNN", "double", 1), 0);
#endif
    plain_train_and_validate(&config, SEQUENCES, on_host, &loss);
    for (int run = 0; run < 4; run++) {
        config.cluster.cuda_graphs = run % 2 == 0;
        (void)snprintf(name, sizeof name, "heads-%d", run);
        rig_undisturbed(&config, name, 1 + run / 2 * (n_backends - 1), true, hash);
        if (run == 0)
            memcpy(first, hash, sizeof first);
        assert_string_equal(hash, first);
        const double off = fabs(val_loss(rig_dir(name)) / loss - 1);
        if (!(off <= 1e-2))
            fail_msg("%s: val_loss is off by %g from the host's %g", name, off, loss);
    }
#ifdef DPT_TEST_NCCL_DOUBLE
    assert_int_equal(unsetenv("DPT_CUDNN"), 0);
#endif
}

/* One hash with units noted as graphs and without, in two worlds; losses near the host's. */
static void a_llama(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct dpt_config config = make_gpu_config(DPT_PRECISION_FP32, STEPS);
        char first[64] = "", hash[64], name[64], on_host[DPT_HASH_HEX_BYTES];
        double loss;
        rig_choose_llama(&config, tied != 0);
        config.model.dropout = 0; /* no graphs with it */
        config.strategy.offload = DPT_OFFLOAD_NONE;
        config.cluster.backend = backends[n_backends - 1];
        plain_train_and_validate(&config, SEQUENCES, on_host, &loss);
        for (int run = 0; run < 4; run++) {
            config.cluster.cuda_graphs = run % 2 == 0;
            (void)snprintf(name, sizeof name, "llama-%d-%d", tied, run);
            rig_undisturbed(&config, name, 1 + run / 2 * (n_backends - 1), true, hash);
            if (run == 0)
                memcpy(first, hash, sizeof first);
            assert_string_equal(hash, first);
            const double off = fabs(val_loss(rig_dir(name)) / loss - 1);
            if (!(off <= 1e-4))
                fail_msg("%s: val_loss is off by %g from the host's %g", name, off, loss);
        }
    }
}

/* Another trajectory than fp32's, and near it. */
static void test_tf32_has_its_own_trajectory(void **state)
{
    (void)state;
    struct dpt_config config = make_gpu_config(DPT_PRECISION_FP32, 6);
    char fp32_hash[64], first[64], hash[64], on_host[DPT_HASH_HEX_BYTES];
    double loss;
    config.strategy.offload = DPT_OFFLOAD_NONE;
    config.cluster.backend = backends[n_backends - 1];
    plain_train_and_validate(&config, SEQUENCES, on_host, &loss);
    rig_undisturbed(&config, "tf32-without", 1, true, fp32_hash);
    config.train.precision = DPT_PRECISION_TF32;
    rig_undisturbed(&config, "tf32-1", 1, true, first);
    const double off = fabs(val_loss(rig_dir("tf32-1")) / loss - 1);
    if (!(off <= 2e-3))
        fail_msg("val_loss is off by %g from the host's %g", off, loss);
    rig_undisturbed(&config, "tf32-2", 2, true, hash);
    assert_string_equal(hash, first);
    assert_string_not_equal(hash, fp32_hash);
}

static void deaths_and_healing(void **state)
{
    (void)state;
    struct dpt_config config = rig_make_config(2 * HEALING_SLOTS, 18, "");
    config.cluster.device = DPT_DEVICE_CUDA;
    for (int i = 0; i < n_backends; i++) {
        config.cluster.backend = backends[i];
        rig_deaths_and_healing(&config);
    }
    config.strategy.offload = DPT_OFFLOAD_OPTIMIZER;
    rig_deaths_and_healing(&config);
}

int main(void)
{
    const int without_device = gpu_ranks_open();
    if (without_device >= 0)
        return without_device;
    use_double();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_fp32),
        cmocka_unit_test(one_hash_bf16),
        cmocka_unit_test(heads_of_64_channels),
        cmocka_unit_test(a_llama),
        cmocka_unit_test(test_tf32_has_its_own_trajectory),
        cmocka_unit_test(deaths_and_healing),
    };
    const int failed =
        cmocka_run_group_tests_name("ranks on a GPU", tests, rig_setup, rig_teardown);
    forget_double();
    return failed;
}
