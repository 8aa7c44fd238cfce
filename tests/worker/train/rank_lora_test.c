/* Adapters: their first weights, checkpoints of adapters alone, and the base, which is read once
 * and refused if it has changed. */
#include "tests/worker/train/plain.h"
#include "tests/worker/train/rank_rig.h"

#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "worker/model/model.h"
#include "worker/weights/merged.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TENSORS_MAX = 64 };

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
static struct dpt_config make_lora_config(bool llama, int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    if (llama)
        rig_choose_llama(&config, false);
    config.train.accumulate = DPT_ACCUMULATE_LOCAL;
    config.train.lanes = 4;
    return config;
}

/* Training begins with the head in the base's folder, held by any ranks. */
static void a_head_of_the_folder(void **state)
{
    (void)state;
    struct dpt_config config = make_lora_config(false, 3);
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

/* Packed or not, kept activations or not. */
static void lora_settings_that_keep_the_hash(void **state)
{
    (void)state;
    struct dpt_config config = make_lora_config(true, 3);
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

/* Names and shapes of the model's table. */
static int tensors_of(const struct dpt_model *model, struct dpt_checkpoint_tensor ret[TENSORS_MAX])
{
    const int n = dpt_model_n_params(model);
    assert_true(n <= TENSORS_MAX);
    for (int i = 0; i < n; i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        assert_non_null(strstr(p->name, ".lora_"));
        ret[i] = (struct dpt_checkpoint_tensor){.name = p->name, .ndim = p->ndim};
        memcpy(ret[i].dim, p->dim, sizeof p->dim);
    }
    return n;
}

/* A file of the checkpoint of step 4. */
static const char *in_step(const char *run, const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000004/%s", rig_dir(run), name);
    return path;
}

static char *text_of(const char *path, size_t *ret_bytes)
{
    char *text;
    struct dpt_err err;
    if (dpt_fs_read_file(path, 1 << 24, &text, ret_bytes, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return text;
}

/* Tensors of the table, with moments, and no other: in PEFT's two files, which ranks with shards
 * write together, and in none of a whole model. */
static void checkpoints_hold_adapters_alone(void **state)
{
    (void)state;
    static const char *const peft[] = {"adapter_model.safetensors", "adapter_config.json"};
    static const char *const absent[] = {"config.json", "model.safetensors.index.json",
                                         "model-00001-of-00001.safetensors"};
    struct dpt_config config = make_lora_config(false, 4);
    char hash[64], path[192];
    struct dpt_model *model = NULL;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_err err;
    rig_choose_lora(&config, "held-base");
    rig_undisturbed(&config, "held", 1, false, hash);
    rig_choose(&config, "full_shard");
    rig_undisturbed(&config, "held-sharded", 3, false, hash);
    for (size_t i = 0; i < sizeof peft / sizeof *peft; i++) {
        size_t bytes, bytes_sharded;
        char *text = text_of(in_step("held", peft[i]), &bytes);
        char *sharded = text_of(in_step("held-sharded", peft[i]), &bytes_sharded);
        assert_int_equal(bytes, bytes_sharded);
        assert_memory_equal(text, sharded, bytes);
        free(text);
        free(sharded);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_false(dpt_fs_exists(in_step("held", absent[i])));
    (void)snprintf(path, sizeof path, "%s/checkpoints", rig_dir("held"));
    assert_int_equal(dpt_model_create(&config, &model, &err), DPT_OK);
    if (dpt_checkpoint_open(path, 4, &checkpoint, &err) != DPT_OK)
        fail_msg("%s", err.text);
    struct dpt_checkpoint_tensor tensors[TENSORS_MAX];
    const int n = tensors_of(model, tensors);
    assert_int_equal(n, 2 * 4 * 2); /* blocks, layers, A and B */
    if (dpt_checkpoint_check_names(checkpoint, tensors, n, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_not_equal(dpt_checkpoint_check_names(checkpoint, tensors, n - 1, &err), DPT_OK);
    dpt_checkpoint_close(&checkpoint);
    dpt_model_destroy(&model);
}

/* Writes the checkpoint of step 4 again, in the files of a whole model. */
static void write_older(const struct dpt_config *config, const char *run)
{
    char dir[192];
    struct dpt_model *model = NULL;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_checkpoint_tensor tensors[TENSORS_MAX];
    struct dpt_checkpoint_piece pieces[TENSORS_MAX];
    struct dpt_err err;
    (void)snprintf(dir, sizeof dir, "%s/checkpoints", rig_dir(run));
    assert_int_equal(dpt_model_create(config, &model, &err), DPT_OK);
    const int n = tensors_of(model, tensors);
    for (int i = 0; i < n; i++) {
        const size_t numel = (size_t)dpt_model_param(model, i)->numel;
        tensors[i].param = calloc(3 * numel, sizeof(float));
        assert_non_null(tensors[i].param);
        tensors[i].m = tensors[i].param + numel;
        tensors[i].v = tensors[i].m + numel;
    }
    assert_int_equal(dpt_checkpoint_open(dir, 4, &checkpoint, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_read(checkpoint, tensors, n, &err), DPT_OK);
    dpt_checkpoint_whole_tensors(tensors, n, pieces);
    const struct dpt_checkpoint_spec spec = {.dir = dir,
                                             .n_writers = 1,
                                             .generation = 1,
                                             .attempt = "older",
                                             .tensors = tensors,
                                             .n_tensors = n,
                                             .pieces = pieces,
                                             .n_pieces = n,
                                             .moments = true,
                                             .hf_config_json = "{}",
                                             .state = *dpt_checkpoint_get_state(checkpoint),
                                             .keep = 1};
    assert_int_equal(dpt_checkpoint_write_part(&spec, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_OK);
    assert_int_equal(dpt_checkpoint_commit(&spec, &err), DPT_OK);
    dpt_checkpoint_close(&checkpoint);
    for (int i = 0; i < n; i++)
        free(tensors[i].param);
    dpt_model_destroy(&model);
}

/* Adapters were once saved in the files of a whole model. */
static void an_older_checkpoint_is_gone_on_from(void **state)
{
    (void)state;
    enum { RANKS = 2 };
    static const char *const later[] = {"../step-00000008", "../step-00000009"};
    struct dpt_config config = make_lora_config(true, 9);
    char expected[64], dir[128];
    struct dpt_err err;
    rig_choose_lora(&config, "older-base");
    rig_choose(&config, "full_shard");
    config.checkpoint.keep = 3;
    rig_undisturbed(&config, "older-whole", RANKS, false, expected);
    struct director *d = rig_begin(&config, "older", dir);
    for (int i = 0; i < RANKS; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    director_await_checkpoint(d, 4);
    director_destroy(&d);
    for (int i = 0; i < 2; i++) /* it may have got that far */
        if (dpt_fs_exists(in_step("older", later[i])))
            assert_int_equal(dpt_fs_remove_tree(in_step("older", later[i]), &err), DPT_OK);
    write_older(&config, "older");
    assert_true(dpt_fs_exists(in_step("older", "model-00001-of-00001.safetensors")));
    assert_false(dpt_fs_exists(in_step("older", "adapter_model.safetensors")));
    d = rig_begin(&config, "older", dir);
    for (int i = 0; i < RANKS + 1; i++)
        (void)director_start(d, 0);
    assert_true(director_form(d, false));
    assert_string_equal(director_finish(d), expected);
    director_destroy(&d);
    json_t *summary = rig_summary_of(dir);
    assert_int_equal(rig_number(summary, "start_step"), 4);
    json_decref(summary);
}

/* A config with a base and its hash; reads of the base's file are counted. Returns the file's
 * bytes. */
static int64_t watch_base(const char *base, struct dpt_config *ret_config)
{
    struct dpt_config config = make_lora_config(false, 3);
    struct stat file;
    rig_choose_lora(&config, base);
    json_t *summary = rig_summary_of(rig_dir(base));
    (void)snprintf(config.train.lora.base_hash, sizeof config.train.lora.base_hash, "%s",
                   json_string_value(json_object_get(summary, "weights_hash")));
    json_decref(summary);
    (void)snprintf(watched.path, sizeof watched.path, "%s/model-00001-of-00001.safetensors",
                   config.model.init_from);
    assert_int_equal(stat(watched.path, &file), 0);
    watched.bytes = 0;
    *ret_config = config;
    return file.st_size;
}

/* Each rank reads the file once for the weights and their hash. */
static void a_rank_reads_its_base_once(void **state)
{
    (void)state;
    enum { RANKS = 2 };
    struct dpt_config config;
    char hash[64];
    const int64_t bytes = watch_base("once-base", &config);
    rig_undisturbed(&config, "once", RANKS, false, hash);
    assert_int_equal(watched.bytes, RANKS * bytes);
}

static void read_merged(struct dpt_merged *merged)
{
    struct dpt_err err;
    const struct dpt_model *model = dpt_merged_model(merged);
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const int64_t numel = dpt_model_param(model, i)->numel;
        float *values = malloc((size_t)numel * sizeof *values);
        assert_non_null(values);
        if (dpt_merged_read(merged, i, 0, numel, values, &err) != DPT_OK)
            fail_msg("%s", err.text);
        free(values);
    }
}

/* Merging reads the file once, too, and knows at the end whether the base was the run's. */
static void merging_reads_the_base_once(void **state)
{
    (void)state;
    struct dpt_config config;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_merged *merged = NULL;
    struct dpt_err err;
    char hash[64], path[192];
    const int64_t bytes = watch_base("merged-base", &config);
    rig_undisturbed(&config, "merged", 1, false, hash);
    (void)snprintf(path, sizeof path, "%s/checkpoints", rig_dir("merged"));
    assert_int_equal(dpt_checkpoint_open(path, config.train.steps, &checkpoint, &err), DPT_OK);
    for (int other = 0; other < 2; other++) {
        config.train.lora.base_hash[0] ^= (char)other;
        watched.bytes = 0;
        if (dpt_merged_open(&config, config.model.init_from, checkpoint, &merged, &err) != DPT_OK)
            fail_msg("%s", err.text);
        read_merged(merged);
        assert_int_equal(dpt_merged_check(merged, &err), other ? DPT_ECONFIG : DPT_OK);
        assert_int_equal(watched.bytes, bytes);
        dpt_merged_close(&merged);
    }
    assert_non_null(strstr(err.text, "' has weights of the hash "));
    dpt_checkpoint_close(&checkpoint);
}

/* The folder has other weights than the hash that the ranks of the run agree on. */
static void another_base_is_refused(void **state)
{
    (void)state;
    char dir[128];
    struct dpt_config config = make_lora_config(false, 3);
    rig_choose_lora(&config, "other-base");
    (void)snprintf(config.train.lora.base_hash, sizeof config.train.lora.base_hash, "%s",
                   "00000000000000000000000000000001");
    struct director *d = rig_begin(&config, "other", dir);
    const char *text = NULL;
    assert_true(director_fatal(d, director_start(d, 0), &text));
    assert_non_null(
        strstr(text, "model.init_from: the folder was changed after this worker began: '"));
    assert_non_null(strstr(text, "' has weights of the hash "));
    assert_non_null(strstr(text, " belong to weights of the hash 00000000000000000000000000000001 "
                                 "(train.lora.base_hash); name the folder of those weights"));
    director_destroy(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_of_the_folder),
        cmocka_unit_test(lora_settings_that_keep_the_hash),
        cmocka_unit_test(checkpoints_hold_adapters_alone),
        cmocka_unit_test(an_older_checkpoint_is_gone_on_from),
        cmocka_unit_test(a_rank_reads_its_base_once),
        cmocka_unit_test(merging_reads_the_base_once),
        cmocka_unit_test(another_base_is_refused),
    };
    return cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
