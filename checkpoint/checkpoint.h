/* Checkpoints: `DIR/step-00001000/`, complete or absent.
 *
 * One or several processes (writers 0 … n-1) that share DIR write a checkpoint. The layout of the
 * files depends on the tensors alone, so each writer writes its ranges to their places:
 *   every writer  dpt_checkpoint_write_part  writes its ranges into a temporary folder (its name
 *                                            has step, generation and attempt) and syncs them;
 *                                            then writes its report part-NNNNN.json: runs of bytes,
 *                                            the CRC32C of the run's bytes in each block of a file,
 *                                            and the hashes of whole blocks of weights
 *   writer 0      dpt_checkpoint_collect     waits for all reports; computes the weights hash, for
 *                                            which it reads the blocks that no writer holds whole;
 *                                            writes the index, config.json (or
 *                                            adapter_config.json) and state.json
 *   writer 0      (here the caller asks the server for its grant)
 *   writer 0      dpt_checkpoint_commit      writes and syncs MANIFEST.json, renames the folder,
 *                                            syncs DIR; then removes older checkpoints
 * A failed write or fsync is never retried: the caller drops the attempt (dpt_checkpoint_abandon)
 * and reports the failure. Reading verifies sizes and checksums, and reads only the requested
 * ranges. The files:
 *   model-0000i-of-0000n.safetensors, model.safetensors.index.json, config.json
 *                                     Hugging Face's format, f32 masters
 *   adapter_model.safetensors, adapter_config.json
 *                                     PEFT's format, in their place when adapters are trained
 *   optimizer/m-0000i-of-0000n.safetensors, optimizer/v-…
 *                                     moments under the same names (absent if there are none)
 *   state.json                        the state of the run except the tensors
 *   MANIFEST.json                     every file, its size and a CRC32C per MiB; has its own CRC32C
 *
 * Every function blocks on the disk. No function is tied to a thread; calls for different specs or
 * open checkpoints may run at the same time. */
#ifndef DPT_CHECKPOINT_CHECKPOINT_H
#define DPT_CHECKPOINT_CHECKPOINT_H

#include "base/account.h"
#include "base/err.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CHECKPOINT_VERSION = 1,
    DPT_CHECKPOINT_TENSORS_MAX = 65536,
    DPT_CHECKPOINT_WRITERS_MAX = 1024,
    DPT_CHECKPOINT_FILES_MAX = 1024, /* files of one kind */
    DPT_CHECKPOINT_FILE_BYTES = 1 << 30,
    DPT_CHECKPOINT_NDIM_MAX = 4
};

/* One parameter with its moments, in the model's order. All f32, row-major, numel values each.
 * Writing reads them, reading fills them (NULL: not wanted). */
struct dpt_checkpoint_tensor {
    const char *name;
    int ndim;
    int64_t dim[DPT_CHECKPOINT_NDIM_MAX];
    float *param, *m, *v;
};

/* Elements of a tensor. */
int64_t dpt_checkpoint_numel(const struct dpt_checkpoint_tensor *tensor);

/* Elements [first, end) of tensor number `tensor`. */
struct dpt_checkpoint_piece {
    int tensor;
    int64_t first, end;
    /* Values of element `first`. Writing reads them, reading fills them (NULL: not wanted). */
    float *param, *m, *v;
};

/* The state of a run except the tensors. Strings are borrowed and may not be NULL, except where
 * noted. */
struct dpt_checkpoint_state {
    int64_t step;    /* completed steps */
    int64_t samples; /* consumed samples: the position in the data */
    uint64_t seed;
    const char *config_yaml;  /* canonical config of the run */
    const char *weights_hash; /* hex; reading sets it, writing computes it (dpt_weights_hash) */
    const char *data_digest;  /* hex hash of the training data; NULL: not known */
    const char *fingerprint;  /* kind of the device that computed the state; NULL: not known */
    const char *history_json; /* a JSON array (generations, failures); blanks are not kept */
    /* Loss scaling of fp16, and counts of skipped steps. All 0: the run has none. */
    struct {
        double scale; /* 0: the run has another precision now */
        int64_t good_steps, skipped_steps, diverged_in_row;
    } scaler;
    /* The epoch in progress, or the epoch that ends with this step. `from`: the step before its
     * first step. The other numbers are sums over its steps up to `step`. */
    struct {
        bool has;
        int64_t from, finite_steps, timed_steps;
        double loss_sum, seconds;
    } epoch;
    bool has_val_loss;
    double val_loss; /* validation loss of these weights, finite */
    /* The writer of a rescue (dpt_checkpoint_seal), for people. `node` NULL: this is a
     * checkpoint. */
    struct {
        const char *run, *node;
        uint64_t generation;
    } rescue;
};

struct dpt_checkpoint_spec {
    const char *dir; /* checkpoint.dir; created when absent */
    int writer, n_writers;
    uint64_t generation;
    /* 1 to 64 characters of [0-9a-z-], the same on all writers of this attempt, and never used
     * before for this step and generation: for example the plan's nonce in hex. Only attempts at
     * rescues begin with DPT_NAME_RESCUE_ATTEMPT, and all of them do. */
    const char *attempt;
    const struct dpt_checkpoint_tensor *tensors; /* all tensors of the model, on every writer */
    int n_tensors;
    bool moments; /* m and v are written too */
    bool no_v;    /* with moments: v is NULL, and zeros are written */
    /* This writer's part: disjoint pieces, in the order of tensors and elements. The values in
     * `tensors` are not used. The pieces of all writers together cover every element once; else
     * collect fails with DPT_ECORRUPT. */
    const struct dpt_checkpoint_piece *pieces;
    int n_pieces;
    int64_t file_bytes;                /* wanted size of a file; 0: DPT_CHECKPOINT_FILE_BYTES */
    bool adapters;                     /* PEFT's format; the same on all writers */
    const char *hf_config_json;        /* writer 0: config.json, for adapters adapter_config.json */
    struct dpt_checkpoint_state state; /* strings: writer 0 */
    /* A commit keeps these complete checkpoints: the newest `keep` (>= 1, this one included), those
     * of `keep_steps`, and the `keep_best` with the lowest val_loss. */
    int keep;
    const int64_t *keep_steps;
    int64_t n_keep_steps;
    int keep_best;
    const int64_t *damaged; /* damaged steps that the caller found: kept, but not counted */
    int n_damaged;
    /* Polled every 2 MiB and before a file is synced (NULL: never). True: the call ends with
     * DPT_EABORTED. */
    bool (*cancelled)(void *ctx);
    /* dpt_checkpoint_write_part calls it (NULL: not) after it has read the last value. From then on
     * the tensors may change while the call waits for the disk. They may also change after the call
     * has returned. */
    void (*taken)(void *ctx);
    /* dpt_checkpoint_commit calls it (NULL: not) immediately before the rename, after all slow
     * work; false ends the commit with DPT_EABORTED. */
    bool (*may_rename)(void *ctx);
    void *ctx;                   /* for the three functions */
    struct dpt_account *account; /* counts the writer's buffers; NULL: not counted */
};

/* One piece for each tensor, with all of its elements. `ret`: [n]. The piece of a tensor without
 * elements is empty: dpt_checkpoint_divide drops it, dpt_checkpoint_write_part refuses it. */
void dpt_checkpoint_whole_tensors(const struct dpt_checkpoint_tensor *tensors, int n,
                                  struct dpt_checkpoint_piece *ret);

/* A flat vector that holds tensors one after another, with gaps or without. */
struct dpt_checkpoint_vector {
    const struct dpt_checkpoint_tensor *tensors; /* [n] */
    const int64_t *offset;                       /* [n]: first element of each, ascending */
    int n;
};

/* Elements of a flat vector. param, m, v: the values of element `first` (NULL as in a piece). */
struct dpt_checkpoint_range {
    int64_t first, end;
    float *param, *m, *v;
};

/* Cuts ranges, ascending and disjoint, into pieces of the tensors. Returns the number of pieces and
 * writes the first `max` of them (0: counts only). */
int dpt_checkpoint_cut(const struct dpt_checkpoint_vector *vector,
                       const struct dpt_checkpoint_range *ranges, int n_ranges,
                       struct dpt_checkpoint_piece *ret, int max);

/* Divides pieces that `n_replicas` writers all hold, and returns the share of replica `replica`.
 * Cuts only at blocks of the weights hash, so that no block must be read back. Returns the number
 * of pieces in `ret`, at most `n`; `ret` may be `pieces`. */
int dpt_checkpoint_divide(const struct dpt_checkpoint_piece *pieces, int n, int replica,
                          int n_replicas, struct dpt_checkpoint_piece *ret);

/* A value that is not finite is never committed: its writer reports it and fails with
 * DPT_EDIVERGED, and collect fails with DPT_EDIVERGED, too. Errors of the three steps begin with
 * "checkpoint of step N in 'DIR' dropped". DPT_ENOSPC: the disk is full; DPT_ETIMEOUT: a writer has
 * not reported within timeout_ms; DPT_EINVAL: the spec is wrong; DPT_EABORTED: the caller cancelled
 * the attempt, or writer 0 abandoned it while another writer worked on it. Unless commit returns
 * DPT_OK, the complete checkpoints in DIR stay unchanged. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_write_part(const struct dpt_checkpoint_spec *spec,
                                                       struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_collect(const struct dpt_checkpoint_spec *spec,
                                                    int timeout_ms, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_commit(const struct dpt_checkpoint_spec *spec,
                                                   struct dpt_err *err);

/* A rescue, `DIR/rescue-step-00001000/`, is a checkpoint without the server's grant. A node that
 * leaves while no server answers saves its state this way. Every writer writes its part
 * (dpt_checkpoint_write_part; DPT_EEXIST: another writer is writing the report of this part under
 * the same attempt) and then calls this function. The first writer that finds all parts completes
 * the rescue. The other writers return when the rescue is complete. DPT_ETIMEOUT: it is not
 * complete at deadline_ms (dpt_now_ms). Readers use the rescue of a step if it is complete, else
 * the checkpoint. The commit of the same or a later step removes the rescue and all attempts at it.
 */
DPT_MUST_USE enum dpt_status dpt_checkpoint_seal(const struct dpt_checkpoint_spec *spec,
                                                 int64_t deadline_ms, struct dpt_err *err);

/* Removes the attempt's temporary folder, best effort. */
void dpt_checkpoint_abandon(const struct dpt_checkpoint_spec *spec);

/* Removes the temporary folders that killed processes left: all attempts except `attempt` of
 * `generation`. (A generation's number alone does not identify an attempt, because a restarted
 * server counts generations from the beginning.) Attempts at rescues stay, because a node outside
 * of all generations may be writing one. An absent `dir` is DPT_OK. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_clean(const char *dir, uint64_t generation,
                                                  const char *attempt, struct dpt_err *err);

/* The newest step in `dir` with an intact manifest and files of the sizes in the manifest; -1:
 * there is none, or `dir` is absent. Checksums are verified only when a checkpoint is read. One
 * warning in the log tells which damage the search found and which checkpoint is used. Later
 * searches of this process with the same result log at debug. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest(const char *dir, int64_t *ret_step,
                                                   struct dpt_err *err);

/* The newest step below `below` that meets the same conditions: the fallback when reading a newer
 * step returned DPT_ECORRUPT. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest_below(const char *dir, int64_t below,
                                                         int64_t *ret_step, struct dpt_err *err);

/* The number of steps with a checkpoint in `dir`, complete or damaged; 0 when it is absent. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_count(const char *dir, int64_t *ret,
                                                  struct dpt_err *err);

struct dpt_checkpoint;

/* Opens step `step`: its rescue if that is complete, else its checkpoint. Reads the manifest, the
 * sizes of all files, the state, and the headers of all tensor files. DPT_ECORRUPT names the
 * damaged file, and the block if the damage is inside a block; DPT_ENOENT: a file is missing;
 * DPT_EVERSION: another format version. Owned by the caller. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_open(const char *dir, int64_t step,
                                                 struct dpt_checkpoint **ret, struct dpt_err *err);
void dpt_checkpoint_close(struct dpt_checkpoint **checkpoint);

/* Valid until close. */
const struct dpt_checkpoint_state *
dpt_checkpoint_get_state(const struct dpt_checkpoint *checkpoint);

/* Fills the tensors by name, from any number of files. Reads and verifies only the blocks that hold
 * them. DPT_ECONFIG: a tensor is absent or has another shape; DPT_ECORRUPT: damage. After an error
 * some tensors may already be filled. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_read(struct dpt_checkpoint *checkpoint,
                                                 const struct dpt_checkpoint_tensor *tensors,
                                                 int n_tensors, struct dpt_err *err);

/* dpt_checkpoint_read for pieces of the tensors, in the order of tensors and elements. Only names
 * and shapes of `tensors` are used. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_read_pieces(struct dpt_checkpoint *checkpoint,
                                                        const struct dpt_checkpoint_tensor *tensors,
                                                        const struct dpt_checkpoint_piece *pieces,
                                                        int n_pieces, struct dpt_err *err);

/* DPT_ECONFIG names a tensor of the checkpoint that is not among `tensors`. (dpt_checkpoint_read
 * reports a tensor that the checkpoint lacks.) */
DPT_MUST_USE enum dpt_status dpt_checkpoint_check_names(const struct dpt_checkpoint *checkpoint,
                                                        const struct dpt_checkpoint_tensor *tensors,
                                                        int n_tensors, struct dpt_err *err);

/* Elements of a block of the weights hash; each tensor starts a new block. */
enum { DPT_WEIGHTS_HASH_BLOCK = 65536 };

/* Weights hash of the masters in the model's order: h = 0, then for each block
 * h <- XXH3-128(h, XXH3-128(block)), numbers little-endian. Independent of layout, padding and
 * world. Only shape and `param` of the tensors are used. */
struct dpt_hash128 dpt_weights_hash(const struct dpt_checkpoint_tensor *tensors, int n_tensors);

/* One step of the weights hash: adds the blocks of the next `n` values of a tensor to `so_far` (0
 * at first). The values start at a block. The owner of a whole block can hash it alone;
 * dpt_hash128_join joins these hashes in order, without the values. */
struct dpt_hash128 dpt_weights_hash_add(struct dpt_hash128 so_far, const float *values, int64_t n);

/* The weights hash of an open checkpoint; verifies the blocks that it reads. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_hash(const struct dpt_checkpoint *checkpoint,
                                                 struct dpt_hash128 *ret, struct dpt_err *err);

/* Verifies every block of every file, the index and the weights hash. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_verify(const struct dpt_checkpoint *checkpoint,
                                                   struct dpt_err *err);

#endif
