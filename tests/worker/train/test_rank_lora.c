/* Adapters train as any model does: one hash for every strategy and world, that of the textbook's
 * loop, with deaths and healing, and from a checkpoint, which holds adapters alone. Another base is
 * refused. */
#include "tests/worker/train/one_hash.h"
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rig.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "worker/model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { WORLD_MAX = 3 };

/* The linker sends the calls of this program's objects here (--wrap), by these names.
   NOLINTBEGIN(bugprone-reserved-identifier) */
enum dpt_status __real_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err);
enum dpt_status __wrap_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err);

/* Bytes that were read of one file. */
static struct {
    char path[DPT_CONFIG_PATH_BYTES + 64];
    _Atomic int64_t bytes;
} watched;

enum dpt_status __wrap_dpt_fs_pread_all(int fd, void *buf, size_t bytes, int64_t offset,
                                        const char *path, struct dpt_err *err)
{
    if (strcmp(path, watched.path) == 0)
        watched.bytes += (int64_t)bytes;
    return __real_dpt_fs_pread_all(fd, buf, bytes, offset, path, err);
}
/* NOLINTEND(bugprone-reserved-identifier) */

/* 11 slots in 4 lanes. */
static struct dpt_config make_config(bool llama, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    if (llama)
        rig_choose_llama(&config, false);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

static void one_hash_gpt2(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 3);
    rig_choose_lora(&config, "gpt2-base");
    expect_one_hash("gpt2", &config, WORLD_MAX);
}

static void one_hash_llama_bf16_reduce(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    rig_choose_lora(&config, "llama-base");
    config.train.accumulate = DPT_ACCUMULATE_REDUCE;
    config.train.precision = DPT_PRECISION_BF16;
    config.train.lora.targets = DPT_LORA_Q_PROJ | DPT_LORA_V_PROJ | DPT_LORA_DOWN_PROJ;
    expect_one_hash("llama", &config, WORLD_MAX);
}

/* The head is trained beside the adapters. The base, which predicts tokens, has none. */
static void one_hash_with_labels(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    rig_choose_lora(&config, "labels-base");
    rig_choose_labels(&config);
    expect_one_hash("labels", &config, WORLD_MAX);
}

/* A head that the base's folder has is what training begins with, whichever ranks hold it. */
static void a_head_of_the_folder(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 3);
    char expected[64], hash[64], drawn[DPT_HASH_HEX_BYTES];
    rig_choose_labels(&config);
    rig_choose_lora(&config, "head-base");
    rig_undisturbed(&config, "head-1", 1, false, expected);
    rig_choose(&config, "full_shard+shadow");
    rig_undisturbed(&config, "head-2", 2, true, hash);
    assert_string_equal(hash, expected);
    plain_train(&config, drawn);
    assert_string_not_equal(drawn, expected);
}

/* A model of one block is one unit. */
static void one_hash_of_one_unit(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    config.model.n_layer = 1;
    rig_choose_lora(&config, "short-base");
    expect_one_hash("short", &config, WORLD_MAX);
}

/* Packed or not, kept activations or not. */
static void what_changes_nothing(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 3);
    char expected[64], hash[64];
    rig_choose_lora(&config, "settings-base");
    config.cluster.pack_weights = DPT_PACK_WEIGHTS_ON;
    rig_undisturbed(&config, "packed", 2, false, expected);
    config.cluster.pack_weights = DPT_PACK_WEIGHTS_OFF;
    rig_undisturbed(&config, "not-packed", 2, false, hash);
    assert_string_equal(hash, expected);
    config.train.activation_checkpointing = DPT_ACTIVATION_CHECKPOINTING_FULL;
    rig_undisturbed(&config, "recomputed", 2, false, hash);
    assert_string_equal(hash, expected);
    config.train.lora.alpha = 9;
    rig_undisturbed(&config, "alpha", 2, false, hash);
    assert_string_not_equal(hash, expected);
}

static void deaths_and_healing_cost_no_step(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 18);
    rig_choose_lora(&config, "deaths-base");
    rig_deaths_and_healing(&config);
}

static void all_die_and_the_checkpoint_holds(void **state)
{
    (void)state;
    struct dpt_config config = make_config(true, 9);
    rig_choose_lora(&config, "checkpoint-base");
    rig_all_die(&config);
}

/* Tensors of the table, with moments, and no other. */
static void checkpoints_hold_adapters_alone(void **state)
{
    (void)state;
    struct dpt_config config = make_config(false, 4);
    char hash[64], path[192];
    struct dpt_model *model = NULL;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_err err;
    rig_choose_lora(&config, "held-base");
    rig_undisturbed(&config, "held", 1, false, hash);
    (void)snprintf(path, sizeof path, "%s/checkpoints", rig_dir("held"));
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    if (dpt_checkpoint_open(path, 4, &checkpoint, &err) != DPT_OK)
        fail_msg("%s", err.text);
    enum { TENSORS_MAX = 64 };
    struct dpt_checkpoint_tensor tensors[TENSORS_MAX];
    const int n = dpt_model_n_params(model);
    assert_int_equal(n, 2 * 4 * 2); /* blocks, layers, A and B */
    for (int i = 0; i < n; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        assert_non_null(strstr(p->name, ".lora_"));
        tensors[i] = (struct dpt_checkpoint_tensor){.name = p->name, .ndim = p->ndim};
        memcpy(tensors[i].dim, p->dim, sizeof p->dim);
    }
    if (dpt_checkpoint_check_names(checkpoint, tensors, n, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_not_equal(dpt_checkpoint_check_names(checkpoint, tensors, n - 1, &err), DPT_OK);
    dpt_checkpoint_close(&checkpoint);
    dpt_model_destroy(&model);
}

/* The weights and their hash come of one reading, by each rank. */
static void a_rank_reads_its_base_once(void **state)
{
    (void)state;
    enum { RANKS = 2 };
    struct dpt_config config = make_config(false, 3);
    char hash[64];
    struct stat file;
    rig_choose_lora(&config, "once-base");
    json_t *summary = rig_summary_of(rig_dir("once-base"));
    (void)snprintf(config.train.lora.base_hash, sizeof config.train.lora.base_hash, "%s",
                   json_string_value(json_object_get(summary, "weights_hash")));
    json_decref(summary);
    (void)snprintf(watched.path, sizeof watched.path, "%s/model-00001-of-00001.safetensors",
                   config.model.init_from);
    assert_int_equal(stat(watched.path, &file), 0);
    rig_undisturbed(&config, "once", RANKS, false, hash);
    assert_int_equal(watched.bytes, RANKS * file.st_size);
}

/* What the ranks of a run agree on is not what this folder has. */
static void another_base_is_refused(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = make_config(false, 3);
    rig_choose_lora(&config, "other-base");
    (void)snprintf(config.train.lora.base_hash, sizeof config.train.lora.base_hash, "%s",
                   "00000000000000000000000000000001");
    struct director *d = rig_begin(&config, "other", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(strstr(text, "model.init_from: '"));
    assert_non_null(
        strstr(text, "was changed since this worker began: its weights have the hash "));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hash_gpt2),
        cmocka_unit_test(one_hash_llama_bf16_reduce),
        cmocka_unit_test(one_hash_with_labels),
        cmocka_unit_test(a_head_of_the_folder),
        cmocka_unit_test(one_hash_of_one_unit),
        cmocka_unit_test(what_changes_nothing),
        cmocka_unit_test(deaths_and_healing_cost_no_step),
        cmocka_unit_test(all_die_and_the_checkpoint_holds),
        cmocka_unit_test(checkpoints_hold_adapters_alone),
        cmocka_unit_test(a_rank_reads_its_base_once),
        cmocka_unit_test(another_base_is_refused),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
