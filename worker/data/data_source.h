/* The files behind a data source, for the readers of tokens and of the digest. */
#ifndef DPT_WORKER_DATA_DATA_SOURCE_H
#define DPT_WORKER_DATA_DATA_SOURCE_H

#include "worker/data/data.h"
#include "worker/data/data_file.h"
#include "worker/data/image_folder.h"
#include "worker/data/labelled.h"
#include "worker/data/tokenizer.h"
#include "worker/data/view.h"

enum {
    DPT_SHARD_HEADER_BYTES = 1024, /* 256 numbers of 32 bits */
    DPT_SHARD_MAGIC_GPT2 = 20240520,
    DPT_SHARD_VERSION_GPT2 = 1, /* tokens of 16 bits */
    DPT_SHARD_MAGIC_LLAMA3 = 20240801,
    DPT_SHARD_VERSION_LLAMA3 = 7 /* tokens of 32 bits */
};

/* One file of tokens: `tokens` numbers of `width` bytes (1, 2 or 4, little-endian) from byte `at`
 * on. In a file of CIFAR-10's binary version each byte counts as a token, and each record is a
 * sample. */
struct dpt_token_shard {
    struct dpt_data_file file;
    int64_t at, tokens;
    int width;
    int64_t first_sample, n_samples;
    uint32_t *encoded; /* (tokens) of text that was encoded when it was opened; else NULL */
};

struct dpt_data {
    const char *key; /* of the config, for errors: "data.train" or "data.val" */
    struct dpt_token_shard *shards;
    int n_shards;
    /* For classification. The only shard is then the table's file and has no tokens. */
    struct dpt_labelled *labelled;
    struct dpt_image_folder *folder; /* for kind images, which has no shards */
    struct dpt_view_rule view;       /* of cifar10 and images */
    enum dpt_data_kind kind;
    int64_t tokens, samples;
    struct dpt_sample_form form;
    int seq_len, vocab, labels;
};

/* dpt_token_shard_probe identifies the .bin shard `shard->file.path` and checks its magic, version
 * and length. dpt_token_shard_probe_text identifies a text, whose bytes are the tokens. Both fill
 * all other members except those about samples. */
DPT_MUST_USE enum dpt_status dpt_token_shard_probe(struct dpt_token_shard *shard,
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_token_shard_probe_text(struct dpt_token_shard *shard,
                                                        struct dpt_err *err);

/* Opens the config's tokenizer. DPT_ECONFIG: it has more tokens than model.vocab. Errors name the
 * key to set. */
DPT_MUST_USE enum dpt_status dpt_data_source_open_vocab(const struct dpt_config *config,
                                                        struct dpt_vocab **ret,
                                                        struct dpt_err *err);

/* After dpt_token_shard_probe_text: encodes the text and keeps its tokens. DPT_EOVERFLOW: the text
 * has more than DPT_ENCODE_BYTES_MAX bytes. */
DPT_MUST_USE enum dpt_status dpt_token_shard_encode_text(struct dpt_token_shard *shard,
                                                         const struct dpt_vocab *vocab,
                                                         struct dpt_err *err);

/* Warns of byte sequences that are not UTF-8 and became U+FFFD (dpt_encoder_replaced), if there are
 * any. `line`: the line of the first one, from 1; 0: not known. */
void dpt_data_source_warn_of_replaced(const char *path, int64_t line, int64_t replaced);

/* The shard that has sample `index`: the last shard whose first sample is at or before it. A shard
 * without samples begins where the next one does, so it is never the last. */
const struct dpt_token_shard *dpt_token_shard_of(const struct dpt_data *data, int64_t index);

/* Reads `n` tokens of the shard from token `first` on. DPT_ECORRUPT: a token is not below `vocab`.
 */
DPT_MUST_USE enum dpt_status dpt_token_shard_read(const struct dpt_token_shard *shard,
                                                  int64_t first, int64_t n, int vocab, int32_t *ret,
                                                  struct dpt_err *err);

/* For kinds cifar10 and images: opens the files of data->shards, or the folder `path`, and counts
 * the samples. Errors do not begin with the key. */
DPT_MUST_USE enum dpt_status dpt_images_open(const struct dpt_config *config, const char *path,
                                             struct dpt_data *data, struct dpt_err *err);

/* Reads sample `index`, which exists, and its label. */
DPT_MUST_USE enum dpt_status dpt_images_read(const struct dpt_data *data, int64_t index,
                                             int64_t number, float *ret_pixels, int32_t *ret_label,
                                             struct dpt_err *err);

#endif
