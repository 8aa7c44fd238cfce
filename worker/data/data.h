/* Training data: sources of tokens and images, samples, and the loader that reads ahead.
 *
 * Of cifar10 and images a sample is an image, as view.h makes it of the picture, and its label. Of
 * classification a sample is a row of a table: the first seq_len tokens of its text, their
 * number, and the label. Else a sample is seq_len + 1 consecutive tokens starting at index *
 * seq_len of the (concatenated, per shard: samples do not cross shards) stream: tokens are the
 * first seq_len, targets the last seq_len. */
#ifndef DPT_WORKER_DATA_DATA_H
#define DPT_WORKER_DATA_DATA_H

#include "base/config.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/sample.h"

#include <stdint.h>

enum { DPT_SHARDS_MAX = 65536 };

struct dpt_data;
struct dpt_loader;

/* Opens data.train of the config: a text file, a table of texts and labels, which is read and
 * encoded here and kept as tokens (labelled.h), the .bin shards or the .bin files of CIFAR-10 that
 * a glob names (sorted bytewise), or a folder of images (image_folder.h). Checks magic, version,
 * length of every shard, length and labels of every file of CIFAR-10, and that one sample at least
 * exists. Errors name the file and what to do. Reading is by pread: a file truncated later is an
 * error, never a signal. Thread-safe after opening. */
DPT_MUST_USE enum dpt_status dpt_data_open(const struct dpt_config *config, struct dpt_data **ret,
                                           struct dpt_err *err);
/* The same of data.val. */
DPT_MUST_USE enum dpt_status dpt_data_open_val(const struct dpt_config *config,
                                               struct dpt_data **ret, struct dpt_err *err);
void dpt_data_close(struct dpt_data **data);

int64_t dpt_data_samples(const struct dpt_data *data);
int64_t dpt_data_tokens(const struct dpt_data *data);

/* The form of its samples: dpt_sample_form of the config. */
const struct dpt_sample_form *dpt_data_form(const struct dpt_data *data);

/* Names of the classes 0 … model.labels - 1 of images: the names of the sub-folders, or the lines
 * of the file batches.meta.txt that CIFAR-10's binary version has beside its batches. *ret NULL:
 * the classes have no names, or unusable names, which a warning tells; else it is owned by the
 * caller: dpt_fs_list_free. */
DPT_MUST_USE enum dpt_status dpt_data_class_names(const struct dpt_data *data, char ***ret,
                                                  struct dpt_err *err);

enum { DPT_DATA_NOT_VARIED = -1 };

/* Reads sample `index` to place `i` of a micro-batch that is not closed. `number`: which sample of
 * the run it is (dpt_sample_number), by which images are varied, or DPT_DATA_NOT_VARIED in an
 * evaluation. A shard's token >= vocab is DPT_ECORRUPT; text has none, by the check of its
 * tokenizer. DPT_ECORRUPT also: an image that is damaged. */
DPT_MUST_USE enum dpt_status dpt_data_read(const struct dpt_data *data, int64_t index,
                                           int64_t number, const struct dpt_batch *batch, int64_t i,
                                           struct dpt_err *err);

/* What a source holds: `hash` over all its tokens' bytes, in shard order; `stamp` of which files
 * these are (place, size, time of the last change), which costs next to nothing to look at. Both
 * "": the config does not use the source. */
struct dpt_data_identity {
    char hash[DPT_HASH_HEX_BYTES], stamp[DPT_HASH_HEX_BYTES];
};

struct dpt_data_digest {
    /* Of what the config uses: of data.train unless the run only evaluates, and of data.val if it
     * evaluates. Equal on two nodes if they work on the same data. */
    char used[DPT_HASH_HEX_BYTES];
    struct dpt_data_identity train, val;
    int64_t train_samples; /* 0: data.train is not read */
};

/* Opens and reads everything once; a line of the log says so where that takes a while. DPT_ECONFIG
 * also: a token is not below model.vocab, or data.train and data.val have other classes of images.
 * DPT_ECORRUPT also: an image cannot be decoded. */
DPT_MUST_USE enum dpt_status dpt_data_digest(const struct dpt_config *config,
                                             struct dpt_data_digest *ret, struct dpt_err *err);

/* Does `data` hold what another process of this machine found? Read again only where the stamp is
 * another. DPT_ECORRUPT: it does not. An empty `was` says nothing. */
DPT_MUST_USE enum dpt_status dpt_data_check(const struct dpt_data *data,
                                            const struct dpt_data_identity *was,
                                            struct dpt_err *err);

/* The loader: a thread that reads the micro-batches of this rank's slots ahead, in order, for step
 * after step. Sample j of slot s of step k is element s * micro_batch + j of the step
 * (dpt_sample_number in worker/plan/sampler.h). DPT_ECONFIG: fewer samples than
 * train.epoch_steps. */
DPT_MUST_USE enum dpt_status dpt_loader_create(const struct dpt_config *config,
                                               const struct dpt_data *data, struct dpt_loader **ret,
                                               struct dpt_err *err);
void dpt_loader_destroy(struct dpt_loader **loader);
/* Bytes of the micro-batches that it has room for. */
size_t dpt_loader_bytes(const struct dpt_loader *loader);

/* Starts (again) at `step` for slots first_slot, first_slot + stride, … below end_slot; what was
 * read ahead is dropped. An empty range idles the loader. */
void dpt_loader_start(struct dpt_loader *loader, int64_t step, int first_slot, int end_slot,
                      int stride);

/* Waits for the next micro-batch in order; it must be (step, slot), which is checked. Its memory is
 * the loader's, to be read until the next call. Returns the reader's error if reading failed. No
 * allocation. */
DPT_MUST_USE enum dpt_status dpt_loader_next(struct dpt_loader *loader, int64_t step, int slot,
                                             struct dpt_batch *ret, struct dpt_err *err);

#endif
