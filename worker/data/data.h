/* Training data: sources of tokens and images, samples, and the loader that reads ahead.
 *
 * A sample of cifar10 and images is an image, a view (view.h) of the picture, and its label. A
 * sample of classification is a row of a table: the first seq_len tokens of its text, their number,
 * and the label. A sample of tokens and text is seq_len + 1 consecutive tokens of one shard, from
 * index * seq_len on: tokens are the first seq_len, targets the last seq_len. */
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

/* Opens data.train of the config. It names a text file; a table of texts and labels, which is read
 * and encoded here and kept as tokens (labelled.h); .bin shards or .bin files of CIFAR-10 by a glob
 * (sorted bytewise); or a folder of images (image_folder.h). Checks magic, version and length of
 * every shard, length and labels of every file of CIFAR-10, and that there is a sample. Errors name
 * the file and the remedy. Reading is by pread, so a file that is truncated later is an error,
 * never a signal. Thread-safe after opening. */
DPT_MUST_USE enum dpt_status dpt_data_open(const struct dpt_config *config, struct dpt_data **ret,
                                           struct dpt_err *err);
/* The same for data.val. */
DPT_MUST_USE enum dpt_status dpt_data_open_val(const struct dpt_config *config,
                                               struct dpt_data **ret, struct dpt_err *err);
void dpt_data_close(struct dpt_data **data);

int64_t dpt_data_samples(const struct dpt_data *data);

/* dpt_sample_form of the config. */
const struct dpt_sample_form *dpt_data_form(const struct dpt_data *data);

/* Names of the classes 0 … model.labels - 1 of images: the names of the sub-folders, or the lines
 * of the file batches.meta.txt that CIFAR-10's binary version has beside its batches. *ret NULL:
 * the classes have no names, or unusable names, of which a warning tells. Else the caller owns the
 * names (dpt_fs_list_free). */
DPT_MUST_USE enum dpt_status dpt_data_class_names(const struct dpt_data *data, char ***ret,
                                                  struct dpt_err *err);

enum { DPT_DATA_NOT_VARIED = -1 };

/* Reads sample `index` to place `i` of a micro-batch that is not closed. `number`: the sample's
 * number in the run (dpt_sampler_number), which keys the variation of images, or
 * DPT_DATA_NOT_VARIED in an evaluation. DPT_ECORRUPT: a token of a shard is not below model.vocab,
 * or an image is damaged. */
DPT_MUST_USE enum dpt_status dpt_data_read(const struct dpt_data *data, int64_t index,
                                           int64_t number, const struct dpt_batch *batch, int64_t i,
                                           struct dpt_err *err);

/* The identity of a source. `hash`: of all its content, in shard order. `stamp`: of the identity of
 * its files (device, inode, size, time of the last change); it needs no reading of the files. Both
 * "": the config does not use the source. */
struct dpt_data_identity {
    char hash[DPT_HASH_HEX_BYTES], stamp[DPT_HASH_HEX_BYTES];
};

struct dpt_data_digest {
    /* Hash of the sources that the config uses: data.train unless the run only evaluates, and
     * data.val if it evaluates. Equal on two nodes that have the same data. */
    char used[DPT_HASH_HEX_BYTES];
    struct dpt_data_identity train, val;
    int64_t train_samples; /* 0: data.train is not read */
};

/* Opens all data and reads it once; if that takes seconds, the log says so. DPT_ECONFIG also: a
 * token is not below model.vocab, or data.train and data.val have different classes of images.
 * DPT_ECORRUPT also: an image cannot be decoded. */
DPT_MUST_USE enum dpt_status dpt_data_digest(const struct dpt_config *config,
                                             struct dpt_data_digest *ret, struct dpt_err *err);

/* Checks that `data` has the content that another process of this machine found. Reads the data
 * again only if the stamp differs. DPT_ECORRUPT: the content differs. If `was` is empty, nothing is
 * compared. */
DPT_MUST_USE enum dpt_status dpt_data_check(const struct dpt_data *data,
                                            const struct dpt_data_identity *was,
                                            struct dpt_err *err);

/* The loader: a thread that reads the micro-batches of this rank's slots ahead, in order, one step
 * after another. Sample j of slot s of step k is element s * micro_batch + j of the step
 * (dpt_sampler_number in worker/plan/sampler.h). DPT_ECONFIG: the data has fewer samples than
 * train.epoch_steps need. */
DPT_MUST_USE enum dpt_status dpt_loader_create(const struct dpt_config *config,
                                               const struct dpt_data *data, struct dpt_loader **ret,
                                               struct dpt_err *err);
void dpt_loader_destroy(struct dpt_loader **loader);
/* Bytes of the loader's micro-batches. */
size_t dpt_loader_bytes(const struct dpt_loader *loader);

/* Starts (again) at `step` for slots first_slot, first_slot + stride, … below end_slot; drops the
 * micro-batches that were read ahead. With an empty range the loader idles. */
void dpt_loader_start(struct dpt_loader *loader, int64_t step, int first_slot, int end_slot,
                      int stride);

/* Waits for the next micro-batch in order. DPT_EINVAL: it is not the micro-batch of (step, slot).
 * Its memory belongs to the loader and stays valid until the next call. Returns the reader's error
 * if reading failed. No allocation. */
DPT_MUST_USE enum dpt_status dpt_loader_next(struct dpt_loader *loader, int64_t step, int slot,
                                             struct dpt_batch *ret, struct dpt_err *err);

#endif
