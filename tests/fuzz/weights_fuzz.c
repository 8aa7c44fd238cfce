/* Fuzz target: any bytes as a file of published weights, by the first byte: config.json,
 * model.safetensors, the index of shards (one of which is a good file), llm.c's model file. If a
 * file is accepted, every tensor of its model can be read. */
#include "base/fs.h"
#include "tests/fuzz/fuzz.h"
#include "worker/model/hf_config.h"
#include "worker/weights/llmc.h"
#include "worker/weights/published.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NUMEL_MAX = 1 << 16, PATH_BYTES = 160 };

static char root[] = "/tmp/dpt-fuzz-weights-XXXXXX";
static int file = -1; /* the file with the input */
static struct dpt_model *model;

static void forget(void)
{
    struct dpt_err err;
    DPT_ASSERT(dpt_fs_remove_tree(root, &err) == DPT_OK);
    dpt_model_destroy(&model);
}

/* A folder's name that leads to the input. */
static void place_link(const char *folder, const char *name, const char *target)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", root, folder);
    (void)mkdir(path, 0700); /* it may be there */
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    DPT_ASSERT(symlink(target, path) == 0);
}

static struct dpt_model *make_fuzz_model(const struct dpt_config_sizes *sizes)
{
    static const char *const shortest[] = {"train.seq_len=1"};
    struct dpt_model *made = NULL;
    struct dpt_config config;
    struct dpt_err err;
    if (dpt_config_load(&(struct dpt_config_input){.text = "",
                                                   .bytes = 0,
                                                   .name = "fuzz",
                                                   .overrides = shortest,
                                                   .n_overrides = 1,
                                                   .sizes = sizes},
                        &config, &err) == DPT_OK &&
        dpt_model_create(&config, &made, &err) != DPT_OK)
        made = NULL;
    return made;
}

static void make_weights_folders(void)
{
    char target[64];
    const struct dpt_config_sizes sizes = {.source = "fuzz",
                                           .n = 5,
                                           .key = {{"model.n_layer", "", "1"},
                                                   {"model.n_head", "", "1"},
                                                   {"model.n_embd", "", "2"},
                                                   {"model.context", "", "3"},
                                                   {"model.vocab", "", "256"}}};
    file = memfd_create("weights", MFD_CLOEXEC);
    DPT_ASSERT(file >= 0 && mkdtemp(root) != NULL);
    DPT_ASSERT(atexit(forget) == 0);
    (void)snprintf(target, sizeof target, "/proc/self/fd/%d", file);
    place_link("config", "config.json", target);
    place_link("single", "model.safetensors", target);
    place_link("index", "model.safetensors.index.json", target);
    place_link("index", "a.safetensors", DPT_FUZZ_SHARD);
    place_link("llmc", "model.bin", target);
    model = make_fuzz_model(&sizes);
    DPT_ASSERT(model != NULL);
}

static void check_error(enum dpt_status status, const struct dpt_err *err)
{
    DPT_ASSERT(status == DPT_OK || err->text[0] != '\0');
}

static void published(const char *dir)
{
    struct dpt_published *weights = NULL;
    struct dpt_err err = {.status = DPT_OK};
    char names[DPT_PUBLISHED_LEFT_OUT_BYTES];
    struct dpt_hash128 hash;
    const enum dpt_status status = dpt_published_open(dir, model, &weights, &err);
    check_error(status, &err);
    if (status != DPT_OK)
        return;
    DPT_ASSERT(dpt_published_left_out(weights, names) >= 0 && strlen(names) < sizeof names);
    DPT_ASSERT(dpt_published_read_all(weights, NULL, &hash, &err) == DPT_OK);
    dpt_published_close(&weights);
}

static void config(const char *path)
{
    struct dpt_config_sizes sizes = {.n = 0};
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_hf_config_read(path, &sizes, &err);
    check_error(status, &err);
    DPT_ASSERT((status == DPT_OK) == (sizes.n > 0) && sizes.n <= DPT_CONFIG_SIZES_MAX);
    struct dpt_model *made = status == DPT_OK ? make_fuzz_model(&sizes) : NULL;
    dpt_model_destroy(&made);
    struct dpt_hf_tokens tokens;
    check_error(dpt_hf_config_tokens(path, &tokens, &err), &err);
}

static void llmc(const char *path)
{
    static float values[NUMEL_MAX];
    struct dpt_llmc *f = NULL;
    struct dpt_config_sizes sizes = {.n = 0};
    struct dpt_err err = {.status = DPT_OK};
    const enum dpt_status status = dpt_llmc_open(path, &f, &sizes, &err);
    check_error(status, &err);
    struct dpt_model *made = status == DPT_OK ? make_fuzz_model(&sizes) : NULL;
    for (int i = 0; made && i < dpt_model_n_params(made); i++) {
        const int64_t numel = dpt_model_param(made, i)->numel;
        const struct dpt_span span = {0, numel < NUMEL_MAX ? numel : NUMEL_MAX};
        const enum dpt_status read = dpt_llmc_read(f, made, i, span, values, &err);
        DPT_ASSERT(read == DPT_OK || read == DPT_ECORRUPT); /* NaN or infinite */
    }
    dpt_model_destroy(&made);
    dpt_llmc_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct feed feed = feed_from(data, bytes);
    char path[PATH_BYTES];
    if (file < 0)
        make_weights_folders();
    const uint32_t choice = feed_below(&feed, 4);
    const uint8_t *rest = feed_rest(&feed, &bytes);
    DPT_ASSERT(ftruncate(file, 0) == 0 && pwrite(file, rest, bytes, 0) == (ssize_t)bytes);
    static const char *const names[] = {"config/config.json", "single", "index", "llmc/model.bin"};
    (void)snprintf(path, sizeof path, "%s/%s", root, names[choice]);
    if (choice == 0)
        config(path);
    else if (choice == 3)
        llmc(path);
    else
        published(path);
    return 0;
}
