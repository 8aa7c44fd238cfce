/* A small model with known values, and checkpoints of it, for the tests of checkpoint/. */
#ifndef DPT_TESTS_CHECKPOINT_CHECKPOINT_FIXTURE_H
#define DPT_TESTS_CHECKPOINT_CHECKPOINT_FIXTURE_H

#include "checkpoint/checkpoint.h"

#include <stdbool.h>

enum { MODEL_TENSORS_MAX = 16 };

struct model {
    struct dpt_checkpoint_tensor tensors[MODEL_TENSORS_MAX];
    int n;
    char hash[DPT_HASH_HEX_BYTES];
};

/* The tensors of a small model of two layers. `wide` scales the embedding, so that files can have
 * several blocks. Values depend on `step` only. */
void model_init(struct model *model, int64_t step, int wide);
void model_zero(struct model *model);
void model_fini(struct model *model);
bool model_equal(const struct model *a, const struct model *b);

/* A spec without pieces for writer `writer` of `n_writers`. It has min(writers, tensors) files of
 * each kind and borrows the model. */
struct dpt_checkpoint_spec model_spec(const struct model *model, const char *dir, int64_t step,
                                      int writer, int n_writers);

/* Sets the pieces of the spec's writer to its share of the tensors; every writer holds all tensors.
 * `pieces` must live as long as the spec. */
void model_share(struct dpt_checkpoint_spec *spec,
                 struct dpt_checkpoint_piece pieces[MODEL_TENSORS_MAX]);

/* Calls dpt_checkpoint_write_part with this share; the spec has no pieces. */
enum dpt_status model_write_part(const struct dpt_checkpoint_spec *spec, struct dpt_err *err);

/* Runs all writers one after another, then collects and commits. On an error abandons the
 * checkpoint and returns the first error. */
enum dpt_status model_write(const struct model *model, const char *dir, int64_t step, int n_writers,
                            struct dpt_err *err);
/* The same with `n_files` files of each kind. */
enum dpt_status model_write_files(const struct model *model, const char *dir, int64_t step,
                                  int n_writers, int n_files, struct dpt_err *err);

/* Opens the checkpoint of `step`, reads all of it, and compares it with model_init(step). */
enum dpt_status model_check(const char *dir, int64_t step, int wide, struct dpt_err *err);

/* Setups that make a new temporary folder `root`, and the teardown. */
extern char root[128];
int make_root(void **state);
int make_fast_root(void **state); /* in memory if possible */
int remove_root(void **state);
/* root/name, in one of eight rotating buffers. */
const char *in_root(const char *name);

/* On an error fails the test with the text of `err`, a variable of the test file. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        enum dpt_status ok_ = (call);                                                              \
        if (ok_ != DPT_OK)                                                                         \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

#endif
