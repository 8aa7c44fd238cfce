/* Checkpoints: `DIR/step-00001000/`, whole or absent (DESIGN §9).
 *
 * Writing, by one or several processes ("writers", slots 0 … n-1) that share DIR; tensors are dealt
 * over them by bytes: every writer   dpt_checkpoint_write_part   own tensors into a temporary
 * directory whose name carries step, generation and attempt, fsync, then part-NNNNN.json (sizes and
 * block checksums of its files) atomically slot 0         dpt_checkpoint_collect      waits for all
 * parts; index, config.json, state.json slot 0         (the server's grant is asked for here, by
 * the caller) slot 0         dpt_checkpoint_commit       MANIFEST.json, fsync, rename, fsync of
 * DIR; then old ones are pruned A failed fsync or write is never retried: the attempt is dropped
 * (dpt_checkpoint_abandon) and reported. Reading verifies sizes and checksums, reads only the bytes
 * asked for. Files: model-0000i-of-0000n.safetensors, model.safetensors.index.json, config.json:
 * Hugging Face's form, f32 masters optimizer/m-0000i-of-0000n.safetensors, optimizer/v-…: moments
 * under the same names, state.json, MANIFEST.json */
#ifndef DPT_CHECKPOINT_CHECKPOINT_H
#define DPT_CHECKPOINT_CHECKPOINT_H

#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CHECKPOINT_VERSION = 1,
    DPT_CHECKPOINT_TENSORS_MAX = 65536,
    DPT_CHECKPOINT_WRITERS_MAX = 1024,
    DPT_CHECKPOINT_NDIM_MAX = 4
};

/* One parameter with its moments, in the model's order. All f32, row-major. numel values each: read
 * from when writing (param always; m and v for all tensors or for none), written to when reading
 * (NULL: not wanted). */
struct dpt_checkpoint_tensor {
    const char *name;
    int ndim;
    int64_t dim[DPT_CHECKPOINT_NDIM_MAX];
    float *param, *m, *v;
};

/* What a run needs beside tensors. Strings owned by the struct holder. */
struct dpt_checkpoint_state {
    int64_t step;    /* completed steps */
    int64_t samples; /* samples consumed: the position in the data */
    uint64_t seed;
    const char *config_yaml; /* canonical config of the run */
    const char *weights_hash;
    const char *history_json; /* a JSON array (generations, failures), kept verbatim; may be "[]" */
};

struct dpt_checkpoint_spec {
    const char *dir; /* checkpoint.dir */
    int writer, n_writers;
    uint64_t generation;
    const char *
        attempt; /* [0-9a-z-], equal on all writers of this attempt, e.g. the plan's nonce in hex */
    const struct dpt_checkpoint_tensor *tensors; /* all tensors of the model, on every writer */
    int n_tensors;
    const char *hf_config_json;
    struct dpt_checkpoint_state state;
    int keep; /* newest whole checkpoints kept after commit; >= 1 */
    /* Polled often (any thread safe function of the caller); true abandons the attempt with
     * DPT_EABORTED. */
    bool (*cancelled)(void *ctx);
    void *ctx;
};

DPT_MUST_USE enum dpt_status dpt_checkpoint_write_part(const struct dpt_checkpoint_spec *spec,
                                                       struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_collect(const struct dpt_checkpoint_spec *spec,
                                                    int timeout_ms, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_commit(const struct dpt_checkpoint_spec *spec,
                                                   struct dpt_err *err);
void dpt_checkpoint_abandon(
    const struct dpt_checkpoint_spec *spec); /* removes the temporary directory, best effort */

/* Removes temporary directories of attempts of other generations than `generation` (leftovers of
 * killed processes). */
DPT_MUST_USE enum dpt_status dpt_checkpoint_clean(const char *dir, uint64_t generation,
                                                  struct dpt_err *err);

/* Newest step in `dir` whose manifest is present and whose files have the manifest's sizes
 * (checksums are verified when read); -1 when there is none or `dir` is absent. Damaged ones are
 * passed over with one log line (warn) that says what is wrong and what is used. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest(const char *dir, int64_t *ret_step,
                                                   struct dpt_err *err);

/* The same among the steps below `below`: where to go on when reading the newest one finds damage.
 */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest_below(const char *dir, int64_t below,
                                                         int64_t *ret_step, struct dpt_err *err);

struct dpt_checkpoint;

/* Opens step `step` and parses index and state. dpt_checkpoint_read fills the tensors by name
 * (shapes must match; every tensor wanted must exist), verifying the block checksums of what it
 * reads: DPT_ECORRUPT names file and block. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_open(const char *dir, int64_t step,
                                                 struct dpt_checkpoint **ret, struct dpt_err *err);
void dpt_checkpoint_close(struct dpt_checkpoint **checkpoint);
const struct dpt_checkpoint_state *
dpt_checkpoint_get_state(const struct dpt_checkpoint *checkpoint);
DPT_MUST_USE enum dpt_status dpt_checkpoint_read(struct dpt_checkpoint *checkpoint,
                                                 const struct dpt_checkpoint_tensor *tensors,
                                                 int n_tensors, struct dpt_err *err);

/* Weights hash of the masters in the model's order: h = 0, then for each block of 65,536 elements
 * (each tensor starts a new block) h <- XXH3-128(h, XXH3-128(block)), numbers little-endian.
 * Independent of layout, padding and world. Only shape and `param` of the tensors are used. */
struct dpt_hash128 dpt_weights_hash(const struct dpt_checkpoint_tensor *tensors, int n_tensors);

#endif
