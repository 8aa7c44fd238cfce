/* dpt-ckpt export and import (transfer.h). */
#include "worker/ckpt/transfer.h"

#include "base/fs.h"
#include "base/option.h"
#include "base/parse.h"
#include "checkpoint/names.h"
#include "checkpoint/reader.h"
#include "worker/ckpt/open.h"
#include "worker/data/tokenizer.h"
#include "worker/model/hf_config.h"
#include "worker/weights/hf_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct transfer {
    const char *from, *dir;
    bool merge;       /* --merge: merge adapters into their base */
    const char *base; /* folder of the base; NULL: model.init_from of the run */
    struct dpt_hf_folder_spec spec;
    struct dpt_hf_tokens tokens;
    char **label_names; /* [model.labels]; NULL: none */
    struct dpt_config config;
    struct dpt_model *model; /* model of the source; unused if adapters are merged */
    struct dpt_weights_source source;
};

/* ---- the command line ---- */

static enum dpt_status set_dtype(void *ctx, const char *text, struct dpt_err *err)
{
    enum dpt_safetensors_dtype *ret = ctx;
    static const char *const names[] = {[DPT_SAFETENSORS_F32] = "fp32",
                                        [DPT_SAFETENSORS_BF16] = "bf16",
                                        [DPT_SAFETENSORS_F16] = "fp16"};
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++)
        if (strcmp(text, names[i]) == 0) {
            *ret = (enum dpt_safetensors_dtype)i;
            return DPT_OK;
        }
    return dpt_fail(err, DPT_EINVAL, "expected fp32, bf16 or fp16, got '%.40s'", text);
}

/* Reads a size as "5GB", in the form of transformers' max_shard_size: the units are powers of ten,
 * or with an i powers of two. */
static enum dpt_status set_shard_size(void *ctx, const char *text, struct dpt_err *err)
{
    int64_t *ret = ctx;
    static const struct {
        const char *unit;
        int64_t bytes;
    } units[] = {{"KB", 1000},     {"MB", 1000000},  {"GB", 1000000000},
                 {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    const size_t digits = strspn(text, "0123456789");
    char number[16];
    int64_t n;
    if (digits > 0 && digits < sizeof number) {
        memcpy(number, text, digits);
        number[digits] = '\0';
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
            if (strcmp(text + digits, units[i].unit) == 0 &&
                dpt_parse_i64(number, 1, INT64_MAX / units[i].bytes, &n, NULL) == DPT_OK) {
                *ret = n * units[i].bytes;
                return DPT_OK;
            }
    }
    return dpt_fail(err, DPT_EINVAL,
                    "expected a number with KB, MB, GB, KiB, MiB or GiB, got '%.40s'", text);
}

static enum dpt_status parse_command_line(int argc, char *const *argv, struct transfer *t,
                                          struct dpt_err *err)
{
    const struct dpt_option options[] = {
        {"--dtype", "fp32|bf16|fp16", .set = set_dtype, .ctx = &t->spec.dtype},
        {"--shard-size", "SIZE", .set = set_shard_size, .ctx = &t->spec.shard_bytes},
        {"--merge", .flag = &t->merge},
        {"--base", "FOLDER", .text = &t->base},
    };
    int n = 0;
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "--", 2) == 0)
            DPT_TRY(
                dpt_option_read(options, sizeof options / sizeof *options, argc, argv, &i, err));
        else if (argv[i][0] == '-' || n == 2)
            return dpt_fail(err, DPT_EINVAL, "unexpected argument '%.80s'", argv[i]);
        else
            *(n++ == 0 ? &t->from : &t->dir) = argv[i];
    return n == 2
               ? DPT_OK
               : dpt_fail(err, DPT_EINVAL, "expected the weights to read and the folder to write");
}

/* ---- files beside the weights ---- */

static bool has_copy(const struct transfer *t, const char *name)
{
    for (int i = 0; i < t->spec.n_copies; i++)
        if (strcmp(t->spec.copy[i].name, name) == 0)
            return true;
    return false;
}

/* Adds a file to copy. A missing file is no error, because the user asked for the weights: a line
 * names the file. */
static void add_copy(struct transfer *t, const char *path, const char *name, const char *key)
{
    if (path[0] == '\0' || has_copy(t, name))
        return;
    if (!dpt_fs_exists(path)) {
        (void)fprintf(stderr, "dpt-ckpt: '%s' (%s of the run) is not there; it is not copied\n",
                      path, key);
        return;
    }
    struct dpt_hf_folder_copy *copy = &t->spec.copy[t->spec.n_copies++];
    (void)snprintf(copy->from, sizeof copy->from, "%s", path);
    copy->name = name;
}

/* Copies the files of the run's tokenizer. transformers calls OpenAI's two files merges.txt and
 * vocab.json. */
static void copy_tokenizer_of_run(struct transfer *t)
{
    const struct dpt_config *c = &t->config;
    if (c->data.tokenizer == DPT_TOKENIZER_HF)
        add_copy(t, c->data.tokenizer_json, DPT_TOKENIZER_JSON, "data.tokenizer_json");
    if (c->data.tokenizer != DPT_TOKENIZER_GPT2)
        return;
    add_copy(t, c->data.vocab_bpe, "merges.txt", "data.vocab_bpe");
    add_copy(t, c->data.encoder_json, "vocab.json", "data.encoder_json");
}

/* Copies the tokenizer's files from the folder of the weights, unless files of these names are
 * copied already. Also reads the special tokens of the folder's config.json. */
static enum dpt_status copy_text_of_folder(struct transfer *t, const char *folder,
                                           struct dpt_err *err)
{
    static const char *const names[] = {
        DPT_TOKENIZER_JSON,  "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja",   "vocab.json",
        "merges.txt",        "tokenizer.model",       "generation_config.json"};
    char path[DPT_CONFIG_PATH_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        DPT_TRY(dpt_fs_join(folder, names[i], path, sizeof path, err));
        if (dpt_fs_exists(path))
            add_copy(t, path, names[i], names[i]);
    }
    DPT_TRY(dpt_fs_join(folder, "config.json", path, sizeof path, err));
    return dpt_fs_exists(path) ? dpt_hf_config_tokens(path, &t->tokens, err) : DPT_OK;
}

/* Does the same with the folder of the run's first weights, if the run has the tokens of that
 * folder. A missing folder is no error, because the user asked for the weights. */
static enum dpt_status copy_text_of_origin(struct transfer *t, const char *folder,
                                           struct dpt_err *err)
{
    bool same;
    if (folder[0] == '\0' || dpt_config_reads_images(&t->config))
        return DPT_OK;
    if (!dpt_fs_exists(folder)) {
        (void)fprintf(stderr,
                      "dpt-ckpt: '%s' (model.init_from of the run) is not there; its tokenizer's "
                      "files and special tokens (eos_token_id) are not taken over\n",
                      folder);
        return DPT_OK;
    }
    DPT_TRY(dpt_tokenizer_is_of_folder(&t->config, folder, &same, err));
    return same ? copy_text_of_folder(t, folder, err) : DPT_OK;
}

/* ---- both ---- */

static enum dpt_status write_folder(struct transfer *t, const struct dpt_model *model,
                                    struct dpt_err *err)
{
    t->source.model = model;
    t->spec.config = &t->config;
    t->spec.beside = (struct dpt_hf_beside){.tokens = &t->tokens,
                                            .label_names = (const char *const *)t->label_names};
    DPT_TRY(dpt_hf_folder_write(t->dir, &t->spec, &t->source, err));
    (void)printf("%s  %s, %d tensors, %lld parameters\n", t->dir, t->config.model.name,
                 dpt_model_n_params(model), (long long)dpt_model_param_count(model));
    return DPT_OK;
}

static void close_transfer(struct transfer *t)
{
    if (t->label_names)
        dpt_fs_list_free(&t->label_names, (size_t)t->config.model.labels);
    dpt_weights_source_close(&t->source);
    dpt_model_destroy(&t->model);
    free(t);
}

/* Reads the names of labels from the run's data. A checkpoint of adapters has no config.json. */
static enum dpt_status read_label_names(struct transfer *t, struct dpt_err *err)
{
    char path[DPT_CONFIG_PATH_BYTES];
    if (t->config.model.labels == 0)
        return DPT_OK;
    DPT_TRY(
        dpt_fs_join(t->source.checkpoint->folder.path, DPT_NAME_CONFIG, path, sizeof path, err));
    return dpt_fs_exists(path)
               ? dpt_hf_config_label_names(path, t->config.model.labels, &t->label_names, err)
               : DPT_OK;
}

static enum dpt_status export_checkpoint(struct transfer *t, struct dpt_err *err)
{
    DPT_TRY(dpt_ckpt_open(t->from, &t->source.checkpoint, err));
    const char *yaml = dpt_checkpoint_get_state(t->source.checkpoint)->config_yaml;
    DPT_TRY(dpt_config_load_text(yaml, "the checkpoint's config", NULL, 0, &t->config, err));
    const bool adapters = t->config.train.lora.rank > 0;
    if ((t->merge || t->base) && !adapters)
        return dpt_fail(err, DPT_EINVAL,
                        "--%s: the checkpoint has all weights of its model and no adapters "
                        "(train.lora); leave the option out",
                        t->merge ? "merge" : "base");
    if (t->base && !t->merge)
        return dpt_fail(err, DPT_EINVAL, "--base is for --merge; give both, or neither");
    if (adapters && !t->merge && t->spec.shard_bytes > 0)
        return dpt_fail(err, DPT_EINVAL,
                        "--shard-size: adapters are one file (adapter_model.safetensors); leave it "
                        "out, or give --merge");
    const char *origin = t->base ? t->base : t->config.model.init_from;
    if (t->merge)
        DPT_TRY(dpt_merged_open(&t->config, origin, t->source.checkpoint, &t->source.merged, err));
    copy_tokenizer_of_run(t);
    if (!adapters || t->merge)
        DPT_TRY(copy_text_of_origin(t, origin, err));
    if (t->merge)
        return write_folder(t, dpt_merged_model(t->source.merged), err);
    DPT_TRY(read_label_names(t, err));
    DPT_TRY(dpt_model_create(&t->config, &t->model, err));
    return write_folder(t, t->model, err);
}

static enum dpt_status
create_model_of_sizes(struct transfer *t, const struct dpt_config_sizes *sizes, struct dpt_err *err)
{
    DPT_TRY(dpt_ckpt_config_of_sizes(t->from, sizes, &t->config, err));
    return dpt_model_create(&t->config, &t->model, err);
}

static enum dpt_status import_llmc(struct transfer *t, struct dpt_err *err)
{
    struct dpt_config_sizes sizes;
    DPT_TRY(dpt_llmc_open(t->from, &t->source.llmc, &sizes, err));
    DPT_TRY(create_model_of_sizes(t, &sizes, err));
    return write_folder(t, t->model, err);
}

/* Refuses weights with a head of labels: import writes no such head, so it would lose the head of a
 * classifier. */
static enum dpt_status refuse_labels(const struct transfer *t, struct dpt_err *err)
{
    int64_t labels;
    DPT_TRY(dpt_published_labels(t->from, &labels, err));
    return labels == 0
               ? DPT_OK
               : dpt_fail(err, DPT_ECONFIG,
                          "'%s' is a classifier's folder; import would lose its head over %lld "
                          "labels (score.weight): to keep it, train with model.init_from: %s and "
                          "model.labels: %lld",
                          t->from, (long long)labels, t->from, (long long)labels);
}

static enum dpt_status refuse_images(const struct transfer *t, const struct dpt_config_sizes *sizes,
                                     struct dpt_err *err)
{
    return dpt_hf_config_has_tokens(sizes)
               ? DPT_OK
               : dpt_fail(err, DPT_ECONFIG,
                          "'%s' has the weights of a model of images, whose head over labels would "
                          "be lost: train with model.init_from: %s, which reads the folder as it "
                          "is",
                          t->from, t->from);
}

static enum dpt_status import_folder(struct transfer *t, struct dpt_err *err)
{
    struct dpt_config_sizes sizes;
    DPT_TRY(dpt_published_sizes(t->from, &sizes, err));
    DPT_TRY(refuse_images(t, &sizes, err));
    DPT_TRY(refuse_labels(t, err));
    DPT_TRY(create_model_of_sizes(t, &sizes, err));
    DPT_TRY(dpt_published_open(t->from, t->model, &t->source.published, err));
    dpt_ckpt_tell_left_out(t->from, t->source.published);
    DPT_TRY(copy_text_of_folder(t, t->from, err));
    return write_folder(t, t->model, err);
}

static enum dpt_status import_weights(struct transfer *t, struct dpt_err *err)
{
    struct stat st;
    const bool is_file = stat(t->from, &st) == 0 && !S_ISDIR(st.st_mode);
    if (t->merge || t->base)
        return dpt_fail(err, DPT_EINVAL, "--merge and --base are for export, of adapters");
    return dpt_ckpt_of_folder(is_file ? import_llmc(t, err) : import_folder(t, err));
}

static enum dpt_status run_transfer(int argc, char *const *argv,
                                    enum dpt_status (*command)(struct transfer *t,
                                                               struct dpt_err *err),
                                    struct dpt_err *err)
{
    struct transfer *t = calloc(1, sizeof *t);
    if (!t)
        return dpt_fail_nomem(err, "weights");
    enum dpt_status status = parse_command_line(argc, argv, t, err);
    if (status == DPT_OK)
        status = command(t, err);
    close_transfer(t);
    return status;
}

enum dpt_status dpt_ckpt_export(int argc, char *const *argv, struct dpt_err *err)
{
    return run_transfer(argc, argv, export_checkpoint, err);
}

enum dpt_status dpt_ckpt_import(int argc, char *const *argv, struct dpt_err *err)
{
    return run_transfer(argc, argv, import_weights, err);
}
