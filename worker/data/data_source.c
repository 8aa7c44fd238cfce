/* Opens data.train or data.val: the files that the key names, and the place of each sample. */
#include "worker/data/data_source.h"

#include "base/log.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>

enum { BYTE_VOCAB = 256 };

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct dpt_token_shard *)a)->file.path,
                  ((const struct dpt_token_shard *)b)->file.path);
}

static enum dpt_status list_paths(const char *const *paths, size_t n, struct dpt_data *data,
                                  struct dpt_err *err)
{
    if (n > DPT_SHARDS_MAX)
        return dpt_fail(err, DPT_EOVERFLOW, "%s: %zu files match, %d at most are read", data->key,
                        n, DPT_SHARDS_MAX);
    data->shards = calloc(n, sizeof *data->shards);
    if (!data->shards)
        return dpt_fail_nomem(err, "open the data");
    for (size_t i = 0; i < n; i++) {
        data->shards[i].file.path = strdup(paths[i]);
        data->n_shards = (int)i + 1;
        if (!data->shards[i].file.path)
            return dpt_fail_nomem(err, "open the data");
    }
    qsort(data->shards, n, sizeof *data->shards, compare_paths);
    return DPT_OK;
}

/* The remedy when no file is at `path`. For the files that configs/ name it is a script of
 * deploy/. */
static const char *remedy_of_absent(enum dpt_data_kind kind, const char *path)
{
    static const struct {
        const char *front, *remedy;
    } made[] = {{"data/cifar10/", "run `deploy/fetch cifar10`, which makes data/cifar10"},
                {"data/fineweb-10b/", "run `deploy/fetch fineweb-10b`, which makes it"},
                {"data/yelp/", "run `deploy/fetch yelp`, which makes it"},
                {"runs/digits/", "run `deploy/digits --tables`, which makes it"},
                {"runs/languages/", "run `deploy/languages --tables`, which makes it"},
                {"runs/quickstart/", "run `deploy/quickstart`, which makes it"}};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (strncmp(path, made[i].front, strlen(made[i].front)) == 0)
            return made[i].remedy;
    switch (kind) {
    case DPT_DATA_CIFAR10:
        return "correct the path, or run `deploy/fetch cifar10`, which makes data/cifar10";
    case DPT_DATA_TOKENS:
        return "correct the path, or make token shards of a text with `dpt-data encode`";
    default:
        return "correct the path";
    }
}

static enum dpt_status list_shards(const char *pattern, struct dpt_data *data, struct dpt_err *err)
{
    glob_t found = {0};
    enum dpt_status status;
    /* list_paths sorts: glob's order depends on the locale. */
    switch (glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found)) {
    case 0:
        status = list_paths((const char *const *)found.gl_pathv, found.gl_pathc, data, err);
        break;
    case GLOB_NOMATCH:
        status = dpt_fail(err, DPT_ENOENT, "%s: no file matches '%s'; %s", data->key, pattern,
                          remedy_of_absent(data->kind, pattern));
        break;
    case GLOB_NOSPACE:
        status = dpt_fail_nomem(err, "open the data");
        break;
    default:
        status = dpt_fail(err, DPT_EIO, "%s: a folder of '%s' is not there or cannot be read; %s",
                          data->key, pattern, remedy_of_absent(data->kind, pattern));
    }
    globfree(&found);
    return status;
}

/* The error of opening a file that the key names. For an absent file it has the remedy. */
static enum dpt_status refuse_file(const struct dpt_data *data, const char *path,
                                   enum dpt_status status, struct dpt_err *err)
{
    if (status != DPT_ENOENT || !err)
        return dpt_wrap(err, status, "%s", data->key);
    const struct dpt_err found = *err;
    return dpt_fail(err, status, "%s: %s; %s", data->key, found.text,
                    remedy_of_absent(data->kind, path));
}

/* Opens each shard and counts its samples. `vocab` encodes text; NULL: the text's bytes are the
 * tokens. */
static enum dpt_status open_shards(const struct dpt_vocab *vocab, struct dpt_data *data,
                                   struct dpt_err *err)
{
    for (int i = 0; i < data->n_shards; i++) {
        struct dpt_token_shard *shard = &data->shards[i];
        enum dpt_status status = data->kind == DPT_DATA_TEXT
                                     ? dpt_token_shard_probe_text(shard, err)
                                     : dpt_token_shard_probe(shard, err);
        if (status == DPT_OK && vocab)
            status = dpt_token_shard_encode_text(shard, vocab, err);
        if (status != DPT_OK)
            return refuse_file(data, shard->file.path, status, err);
        if (shard->width != data->shards[0].width)
            return dpt_fail(err, DPT_ECONFIG,
                            "%s: '%s' and '%s' are token shards of different kinds; name one kind",
                            data->key, data->shards[0].file.path, shard->file.path);
        shard->first_sample = data->samples;
        shard->n_samples = shard->tokens > 0 ? (shard->tokens - 1) / data->seq_len : 0;
        data->samples += shard->n_samples;
        data->tokens += shard->tokens;
    }
    return DPT_OK;
}

/* Encoding a table of this size takes seconds, so the log announces it. */
static const int64_t LONG_TABLE_BYTES = (int64_t)64 << 20;

/* Opens the one file as a table, whose rows become tokens. */
static enum dpt_status open_table(const struct dpt_config *config, bool val,
                                  const struct dpt_vocab *vocab, struct dpt_data *data,
                                  struct dpt_err *err)
{
    struct dpt_data_file *file = &data->shards[0].file;
    const struct dpt_labelled_source source = {
        .file = file,
        .key = val ? "data.val_samples" : "data.train_samples",
        .samples = val ? config->data.val_samples : config->data.train_samples};
    const enum dpt_status status = dpt_data_file_identify(file, err);
    if (status != DPT_OK)
        return refuse_file(data, file->path, status, err);
    if (file->bytes >= LONG_TABLE_BYTES && source.samples == 0)
        dpt_log(DPT_LOG_INFO, "%s: making tokens of the texts of '%s', %.1f GB", data->key,
                file->path, (double)file->bytes / 1e9);
    DPT_TRY(dpt_wrap(err, dpt_labelled_create(config, &source, vocab, &data->labelled, err), "%s",
                     data->key));
    data->samples = data->labelled->n;
    data->tokens = dpt_labelled_tokens(data->labelled);
    return DPT_OK;
}

static const char *expected_data(enum dpt_data_kind kind)
{
    switch (kind) {
    case DPT_DATA_CLASSIFICATION:
        return "a .csv, .tsv or .jsonl file";
    case DPT_DATA_CIFAR10:
        return "the .bin files of CIFAR-10's binary version";
    case DPT_DATA_IMAGES:
        return "a folder with a sub-folder of images for each class";
    default:
        return "a text file or token shards";
    }
}

static enum dpt_status check_config(const struct dpt_config *config, const char *key,
                                    const char *path, struct dpt_err *err)
{
    if (!path[0])
        return dpt_fail(err, DPT_ECONFIG, "%s is empty: name %s", key,
                        expected_data(config->data.kind));
    if (config->train.seq_len < 1)
        return dpt_fail(err, DPT_ECONFIG, "train.seq_len must be 1 at least");
    if (dpt_config_reads_text(config) && config->data.tokenizer == DPT_TOKENIZER_BYTES &&
        config->model.vocab < BYTE_VOCAB)
        return dpt_fail(err, DPT_ECONFIG,
                        "model.vocab is %d, the tokens of a text's bytes need %d at least; set "
                        "model.vocab: %d",
                        config->model.vocab, BYTE_VOCAB, BYTE_VOCAB);
    return DPT_OK;
}

static enum dpt_status open_samples(const struct dpt_config *config, bool val, const char *path,
                                    struct dpt_data *data, struct dpt_err *err)
{
    const enum dpt_data_kind kind = config->data.kind;
    const bool table = kind == DPT_DATA_CLASSIFICATION;
    struct dpt_vocab *vocab = NULL;
    if (kind == DPT_DATA_TOKENS || kind == DPT_DATA_CIFAR10)
        DPT_TRY(list_shards(path, data, err));
    else if (kind != DPT_DATA_IMAGES)
        DPT_TRY(list_paths(&path, 1, data, err));
    if (dpt_config_reads_images(config))
        return dpt_wrap(err, dpt_images_open(config, path, data, err), "%s", data->key);
    if (table || (kind == DPT_DATA_TEXT && config->data.tokenizer != DPT_TOKENIZER_BYTES))
        DPT_TRY(dpt_data_source_open_vocab(config, &vocab, err));
    const enum dpt_status status =
        table ? open_table(config, val, vocab, data, err) : open_shards(vocab, data, err);
    dpt_vocab_close(&vocab);
    if (status == DPT_OK && data->samples == 0)
        return dpt_fail(err, DPT_ECONFIG,
                        "%s: '%s' has %lld tokens, one sample needs train.seq_len + 1 = "
                        "%lld in one file; give more data or set a smaller train.seq_len",
                        data->key, path, (long long)data->tokens, (long long)data->seq_len + 1);
    return status;
}

static enum dpt_status open_key(const struct dpt_config *config, bool val, struct dpt_data **ret,
                                struct dpt_err *err)
{
    const char *key = val ? "data.val" : "data.train";
    const char *path = val ? config->data.val : config->data.train;
    DPT_TRY(check_config(config, key, path, err));
    struct dpt_data *data = calloc(1, sizeof *data);
    if (!data)
        return dpt_fail_nomem(err, "open the data");
    data->key = key;
    data->kind = config->data.kind;
    data->form = dpt_sample_form(config);
    data->view = dpt_view_rule(config);
    data->labels = config->model.labels;
    data->seq_len = config->train.seq_len;
    data->vocab = config->model.vocab;
    const enum dpt_status status = open_samples(config, val, path, data, err);
    if (status != DPT_OK)
        dpt_data_close(&data);
    else
        *ret = data;
    return status;
}

enum dpt_status dpt_data_open(const struct dpt_config *config, struct dpt_data **ret,
                              struct dpt_err *err)
{
    return open_key(config, false, ret, err);
}

enum dpt_status dpt_data_open_val(const struct dpt_config *config, struct dpt_data **ret,
                                  struct dpt_err *err)
{
    return open_key(config, true, ret, err);
}

void dpt_data_close(struct dpt_data **data)
{
    if (!*data)
        return;
    for (int i = 0; i < (*data)->n_shards; i++) {
        free((*data)->shards[i].file.path);
        free((*data)->shards[i].encoded);
    }
    free((*data)->shards);
    dpt_labelled_destroy(&(*data)->labelled);
    dpt_image_folder_close(&(*data)->folder);
    free(*data);
    *data = NULL;
}

int64_t dpt_data_samples(const struct dpt_data *data)
{
    return data->samples;
}

const struct dpt_sample_form *dpt_data_form(const struct dpt_data *data)
{
    return &data->form;
}

enum dpt_status dpt_data_read(const struct dpt_data *data, int64_t index, int64_t number,
                              const struct dpt_batch *batch, int64_t i, struct dpt_err *err)
{
    if (index < 0 || index >= data->samples)
        return dpt_fail(err, DPT_EINVAL, "sample %lld of %lld", (long long)index,
                        (long long)data->samples);
    if (data->labelled) {
        dpt_labelled_get(data->labelled, index,
                         dpt_batch_part(&data->form, batch, DPT_SAMPLE_INPUT, i),
                         dpt_batch_part(&data->form, batch, DPT_SAMPLE_LENGTH, i),
                         dpt_batch_part(&data->form, batch, DPT_SAMPLE_TARGET, i));
        return DPT_OK;
    }
    void *input = dpt_batch_part(&data->form, batch, DPT_SAMPLE_INPUT, i);
    int32_t *targets = dpt_batch_part(&data->form, batch, DPT_SAMPLE_TARGET, i);
    if (data->kind == DPT_DATA_CIFAR10 || data->kind == DPT_DATA_IMAGES)
        return dpt_wrap(err, dpt_images_read(data, index, number, input, targets, err), "%s",
                        data->key);
    const struct dpt_token_shard *shard = dpt_token_shard_of(data, index);
    const int64_t n = data->seq_len, first = (index - shard->first_sample) * n;
    int32_t *tokens = input, last = 0;
    enum dpt_status status = dpt_token_shard_read(shard, first, n, data->vocab, tokens, err);
    if (status == DPT_OK)
        status = dpt_token_shard_read(shard, first + n, 1, data->vocab, &last, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "%s", data->key);
    memcpy(targets, tokens + 1, (size_t)(n - 1) * sizeof *targets);
    targets[n - 1] = last;
    return DPT_OK;
}
