/* A small model with known values, and checkpoints of it, for the tests of checkpoint/. */
#ifndef DPT_TESTS_CHECKPOINT_FIXTURE_H
#define DPT_TESTS_CHECKPOINT_FIXTURE_H

#include "checkpoint/checkpoint.h"

#include <stdbool.h>

enum { MODEL_TENSORS_MAX = 16 };

struct model {
    struct dpt_checkpoint_tensor tensors[MODEL_TENSORS_MAX];
    int n;
    char hash[DPT_HASH_HEX_BYTES];
};

/* The tensors of a two-layer toy; `wide` scales the embedding so that files span several blocks.
 * Values are a function of `step` alone. */
void model_init(struct model *model, int64_t step, int wide);
void model_zero(struct model *model);
void model_fini(struct model *model);
bool model_equal(const struct model *a, const struct model *b);

/* A spec for writer `writer` of `n_writers`, without pieces, with as many files of each kind as
 * writers (but no more than tensors); it borrows the model. */
struct dpt_checkpoint_spec model_spec(const struct model *model, const char *dir, int64_t step,
                                      int writer, int n_writers);

/* Gives the spec's writer its share of the tensors, all of which every writer holds. `pieces` must
 * live as long as the spec. */
void model_share(struct dpt_checkpoint_spec *spec,
                 struct dpt_checkpoint_piece pieces[MODEL_TENSORS_MAX]);

/* dpt_checkpoint_write_part of this share, for a spec without pieces. */
enum dpt_status model_write_part(const struct dpt_checkpoint_spec *spec, struct dpt_err *err);

/* All writers one after another, collect, commit; the first failure is returned, after abandon. */
enum dpt_status model_write(const struct model *model, const char *dir, int64_t step, int n_writers,
                            struct dpt_err *err);
/* The same into `n_files` of each kind. */
enum dpt_status model_write_files(const struct model *model, const char *dir, int64_t step,
                                  int n_writers, int n_files, struct dpt_err *err);

/* Opens step `step`, reads everything, and compares with what model_init(step) gives. */
enum dpt_status model_check(const char *dir, int64_t step, int wide, struct dpt_err *err);

/* A fresh folder under the system's temporary one; `root` is the current one. */
extern char root[128];
int make_root(void **state);
int make_fast_root(void **state); /* in memory where that is possible */
int remove_root(void **state);
/* root/name, in one of eight rotating buffers. */
const char *in_root(const char *name);

/* Fails the test with the text of the file's `err`. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        enum dpt_status ok_ = (call);                                                              \
        if (ok_ != DPT_OK)                                                                         \
            fail_msg("%s: %s", #call, err.text);                                                   \
    } while (0)

#endif
