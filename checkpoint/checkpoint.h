/* Checkpoints: `DIR/step-00001000/`, whole or absent.
 *
 * Written by one or several processes ("writers", slots 0 … n-1) that share DIR. The files are a
 * function of the tensors alone, so each writes the ranges it owns to their places in them:
 *   every writer  dpt_checkpoint_write_part  own ranges into a temporary folder whose name carries
 *                                            step, generation and attempt; fsync; then the report
 *                                            part-NNNNN.json (runs of bytes with the checksums of
 *                                            their parts of blocks, hashes of whole blocks of
 *                                            weights)
 *   slot 0        dpt_checkpoint_collect     waits for all reports; the weights hash, for which the
 *                                            few blocks that no writer has whole are read back;
 *                                            index, config.json (or adapter_config.json),
 *                                            state.json
 *   slot 0        (here the caller asks the server for its grant)
 *   slot 0        dpt_checkpoint_commit      MANIFEST.json, fsync, rename, fsync of DIR; then older
 *                                            ones are pruned
 * A failed write or fsync is never retried: the attempt is dropped (dpt_checkpoint_abandon) and
 * reported. Reading verifies sizes and checksums and reads only what is asked for. The files:
 *   model-0000i-of-0000n.safetensors, model.safetensors.index.json, config.json
 *                                     Hugging Face's form, f32 masters
 *   adapter_model.safetensors, adapter_config.json
 *                                     of adapters in their place: PEFT's form, one file, no index
 *   optimizer/m-0000i-of-0000n.safetensors, optimizer/v-…
 *                                     moments under the same names (absent if there are none)
 *   state.json                        what the run needs beside tensors
 *   MANIFEST.json                     every file, its size and a CRC32C per MiB; sealed by its own
 *
 * Every function blocks on the disk. None is tied to a thread; calls for different specs or open
 * checkpoints may run at the same time. */
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
    DPT_CHECKPOINT_FILES_MAX = 1024, /* of one kind */
    DPT_CHECKPOINT_FILE_BYTES = 1 << 30,
    DPT_CHECKPOINT_NDIM_MAX = 4
};

/* One parameter with its moments, in the model's order. All f32, row-major, numel values each: read
 * from when writing, written to when reading (NULL: not wanted). */
struct dpt_checkpoint_tensor {
    const char *name;
    int ndim;
    int64_t dim[DPT_CHECKPOINT_NDIM_MAX];
    float *param, *m, *v;
};

/* Elements of a tensor. */
int64_t dpt_checkpoint_numel(const struct dpt_checkpoint_tensor *tensor);

/* Elements [first, end) of a tensor in the table. */
struct dpt_checkpoint_piece {
    int tensor;
    int64_t first, end;
    float *param, *m, *v; /* of element `first`; read from when writing, written to when reading
                             (NULL: not wanted) */
};

/* What a run needs beside tensors. Strings are borrowed, none other may be NULL. */
struct dpt_checkpoint_state {
    int64_t step;    /* completed steps */
    int64_t samples; /* samples consumed: the position in the data */
    uint64_t seed;
    const char *config_yaml;  /* canonical config of the run */
    const char *weights_hash; /* of dpt_weights_hash, as hex; worked out when writing, not asked */
    const char *data_digest;  /* of the data that it was trained on, as hex; NULL: not known */
    const char *fingerprint;  /* of the kind of device that computed it; NULL: not known */
    const char *history_json; /* a JSON array (generations, failures); blanks are not kept */
    /* Of the loss in fp16, and of steps that were left out. All 0: the run has none. */
    struct {
        double scale; /* 0: of another precision now */
        int64_t good_steps, skipped_steps, diverged_in_row;
    } scaler;
    /* Of the epoch that the run is in, or that ends here: after which step it is counted, and the
     * sums up to `step`. */
    struct {
        bool has;
        int64_t from, finite_steps, timed_steps;
        double loss_sum, seconds;
    } epoch;
    bool has_val_loss;
    double val_loss; /* of these weights, finite */
    /* Of a rescue (dpt_checkpoint_seal): who wrote it, for people. NULL: it is a checkpoint. */
    struct {
        const char *run, *node;
        uint64_t generation;
    } rescue;
};

struct dpt_checkpoint_spec {
    const char *dir; /* checkpoint.dir; created when absent */
    int writer, n_writers;
    uint64_t generation;
    /* 1 to 64 of [0-9a-z-], the same on all writers of this attempt and never used before for this
     * step and generation: e.g. the plan's nonce in hex. "rescue-…" of a rescue, and of no other.
     */
    const char *attempt;
    const struct dpt_checkpoint_tensor *tensors; /* all tensors of the model, on every writer */
    int n_tensors;
    bool moments; /* m and v are written too */
    bool no_v;    /* with moments: there is no second one; zeroes are written, v is NULL */
    /* What this writer writes, in the order of tensors and elements, disjoint; then the values of
     * `tensors` are not looked at. NULL: every writer has all tensors whole, and they are dealt
     * evenly. All writers' pieces together are every element once (DPT_ECORRUPT at collect). */
    const struct dpt_checkpoint_piece *pieces;
    int n_pieces;
    int64_t file_bytes;                /* wanted size of a file; 0: FILE_BYTES */
    bool adapters;                     /* of a model: in PEFT's form; alike on all writers */
    const char *hf_config_json;        /* slot 0: config.json, or of adapters adapter_config.json */
    struct dpt_checkpoint_state state; /* strings: slot 0 */
    /* Whole checkpoints kept after a commit: the newest ones, the new one included, >= 1; those of
     * some steps; those of the lowest val_loss. */
    int keep;
    const int64_t *keep_steps;
    int64_t n_keep_steps;
    int keep_best;
    const int64_t *damaged; /* steps that the caller has found to be: kept, and counted as none */
    int n_damaged;
    /* Polled every 2 MiB and before a file is synced (NULL: never); true ends the call with
     * DPT_EABORTED. */
    bool (*cancelled)(void *ctx);
    /* dpt_checkpoint_write_part calls it (NULL: not) when it has read the last value: the tensors
     * may change while it waits for the disk. Its return says the same. */
    void (*taken)(void *ctx);
    /* dpt_checkpoint_commit asks it at the rename itself (NULL: not), when all that takes time is
     * done; false ends it with DPT_EABORTED. */
    bool (*may_rename)(void *ctx);
    void *ctx;                   /* of all three */
    struct dpt_account *account; /* what the writer's buffers count into; NULL: nothing */
};

/* A flat vector in which tensors lie one after another, perhaps with gaps. */
struct dpt_checkpoint_vector {
    const struct dpt_checkpoint_tensor *tensors; /* [n] */
    const int64_t *offset;                       /* [n]: first element of each, ascending */
    int n;
};

/* Elements of a flat vector, and the memory of the first of them (NULL as in a piece). */
struct dpt_checkpoint_range {
    int64_t first, end;
    float *param, *m, *v;
};

/* Cuts ranges, ascending and disjoint, into pieces of the tensors. Returns the number of pieces and
 * writes the first `max` of them (0: counts only). */
int dpt_checkpoint_cut(const struct dpt_checkpoint_vector *vector,
                       const struct dpt_checkpoint_range *ranges, int n_ranges,
                       struct dpt_checkpoint_piece *ret, int max);

/* Deals pieces that `n_replicas` writers have alike: those of replica `replica`, cut where a block
 * of the weights hash begins, so that nobody has to read it back. Returns their number, at most
 * `n`, written to `ret`. */
int dpt_checkpoint_deal(const struct dpt_checkpoint_piece *pieces, int n, int replica,
                        int n_replicas, struct dpt_checkpoint_piece *ret);

/* A value that is not finite is never committed: the writer that has it reports it and fails with
 * DPT_EDIVERGED, and so does collect.
 * Errors of the three steps begin with "checkpoint of step N in 'DIR' dropped". DPT_ENOSPC: the
 * disk is full; DPT_ETIMEOUT: a writer has not reported within timeout_ms; DPT_EINVAL: the spec;
 * DPT_EABORTED also when slot 0 has abandoned the attempt while another writer was at it.
 * Nothing that was whole before is touched unless commit returns DPT_OK. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_write_part(const struct dpt_checkpoint_spec *spec,
                                                       struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_collect(const struct dpt_checkpoint_spec *spec,
                                                    int timeout_ms, struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_checkpoint_commit(const struct dpt_checkpoint_spec *spec,
                                                   struct dpt_err *err);

/* A rescue: `DIR/rescue-step-00001000/` is a checkpoint in all but its name and the server's grant:
 * what a node holds that leaves while there is no server. Every writer writes its part
 * (dpt_checkpoint_write_part; one that another writer has begun under the same attempt is
 * DPT_EEXIST) and then calls this: the first that finds all parts makes the rescue whole, and the
 * others return when it is. DPT_ETIMEOUT: it is not by deadline_ms (dpt_now_ms).
 * Where a step is looked for the rescue is taken if it is whole, else the checkpoint. The commit of
 * this step or a later one removes it, with all attempts at it. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_seal(const struct dpt_checkpoint_spec *spec,
                                                 int64_t deadline_ms, struct dpt_err *err);

/* Removes the attempt's temporary folder, best effort. */
void dpt_checkpoint_abandon(const struct dpt_checkpoint_spec *spec);

/* Removes the temporary folders of every attempt but `attempt` of `generation`: leftovers of killed
 * processes. A server that starts anew counts its generations anew, so the number alone does not
 * tell what is left over. Attempts at rescues stay: a node that no generation counts may be writing
 * one. An absent `dir` is fine. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_clean(const char *dir, uint64_t generation,
                                                  const char *attempt, struct dpt_err *err);

/* Newest step in `dir` whose manifest is intact and whose files have the manifest's sizes (their
 * checksums are verified when read); -1 when there is none or `dir` is absent. Damaged ones are
 * passed over with one log line (warn) that says what is wrong and what is used; a process that
 * finds the same again logs at debug. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest(const char *dir, int64_t *ret_step,
                                                   struct dpt_err *err);

/* The same among the steps below `below`: where to go on when opening or reading a newer one gave
 * DPT_ECORRUPT. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_newest_below(const char *dir, int64_t below,
                                                         int64_t *ret_step, struct dpt_err *err);

/* How many checkpoints `dir` has, whole or damaged; 0 when it is absent. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_count(const char *dir, int64_t *ret,
                                                  struct dpt_err *err);

struct dpt_checkpoint;

/* Opens step `step`, its rescue if there is a whole one: manifest, sizes of all files, state,
 * headers of all tensor files. Damage is DPT_ECORRUPT (a missing file DPT_ENOENT) and names the
 * file, and the block where it is inside one; DPT_EVERSION for one of another format version. Owned
 * by the caller. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_open(const char *dir, int64_t step,
                                                 struct dpt_checkpoint **ret, struct dpt_err *err);
void dpt_checkpoint_close(struct dpt_checkpoint **checkpoint);

/* Valid until close. */
const struct dpt_checkpoint_state *
dpt_checkpoint_get_state(const struct dpt_checkpoint *checkpoint);

/* Fills the tensors by name from any number of files, reading the blocks that hold them and
 * verifying each. A tensor that is absent or has another shape is DPT_ECONFIG, damage DPT_ECORRUPT;
 * then some of the tensors may have been written. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_read(struct dpt_checkpoint *checkpoint,
                                                 const struct dpt_checkpoint_tensor *tensors,
                                                 int n_tensors, struct dpt_err *err);

/* The same for pieces of the tensors, in the order of tensors and elements: reads the blocks of the
 * files that hold them and no others. Only names and shapes of `tensors` are used. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_read_pieces(struct dpt_checkpoint *checkpoint,
                                                        const struct dpt_checkpoint_tensor *tensors,
                                                        const struct dpt_checkpoint_piece *pieces,
                                                        int n_pieces, struct dpt_err *err);

/* Whether the checkpoint has weights of these tensors alone: DPT_ECONFIG names one that it has
 * beside them. (One that it lacks is found when it is read.) */
DPT_MUST_USE enum dpt_status dpt_checkpoint_check_names(const struct dpt_checkpoint *checkpoint,
                                                        const struct dpt_checkpoint_tensor *tensors,
                                                        int n_tensors, struct dpt_err *err);

/* Weights hash of the masters in the model's order: h = 0, then for each block of 65,536 elements
 * (each tensor starts a new block) h <- XXH3-128(h, XXH3-128(block)), numbers little-endian.
 * Independent of layout, padding and world. Only shape and `param` of the tensors are used. */
struct dpt_hash128 dpt_weights_hash(const struct dpt_checkpoint_tensor *tensors, int n_tensors);

/* The same of the tensors in an open checkpoint; verifies what it reads. */
DPT_MUST_USE enum dpt_status dpt_checkpoint_hash(const struct dpt_checkpoint *checkpoint,
                                                 struct dpt_hash128 *ret, struct dpt_err *err);

/* Reads every block of every file, and checks the index and the weights hash against the tensors.
 */
DPT_MUST_USE enum dpt_status dpt_checkpoint_verify(const struct dpt_checkpoint *checkpoint,
                                                   struct dpt_err *err);

#endif
