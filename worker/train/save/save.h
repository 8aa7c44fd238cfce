/* The room of checkpoint.dir: which states are saved and how, which checkpoints are there, and what
 * is read from them. Main thread; saver_thread.h has the thread that writes. */
#ifndef DPT_WORKER_TRAIN_SAVE_SAVE_H
#define DPT_WORKER_TRAIN_SAVE_SAVE_H

#include "worker/data/data.h"
#include "worker/train/save/saver_thread.h"
#include "worker/train/save/state_pieces.h"
#include "worker/train/state/rooms.h"

enum { DAMAGED_STEPS_MAX = 64 };

struct rank_save {
    struct dpt_saver *saver;
    char *config_yaml;          /* for state.json */
    char *hf_config;            /* the json file for transformers or PEFT */
    struct dpt_tensors tensors; /* of the model */

    /* Of the checkpoint that is being written: borrowed by the saver. */
    struct dpt_history saved_history;
    struct dpt_pieces saved_pieces;
    int64_t saved_damaged[DAMAGED_STEPS_MAX];
    uint64_t mark_before_save; /* of the folder that had this step's name before */

    /* Facts about the folder. */
    struct damaged_step {
        int64_t step;
        uint64_t mark;            /* of the damaged folder */
    } damaged[DAMAGED_STEPS_MAX]; /* each was told */
    int n_damaged;
    int64_t verified_step; /* newest checkpoint that this process found whole by reading it; -1 */
    int64_t loaded_step;   /* of the checkpoint last loaded; 0: none */
    char loaded_hash[DPT_HASH_HEX_BYTES]; /* its weights_hash; "": none was loaded in this formation
                                           */
    struct dpt_err folder_lost;           /* DPT_EREFUSED: the folder is another run's */
    char not_finite[DPT_ERR_TEXT_BYTES];  /* why a checkpoint of this state was dropped; "": none */

    /* Messages that were logged, so that they are not repeated. */
    bool told_kept, told_put_off;
    int64_t unsaved_told;      /* step that could not be saved when all left; 0: none */
    int64_t saves_failed;      /* for one reason, in a row ... */
    struct dpt_err save_error; /* ... which is this */
    struct dpt_err told_error; /* of checkpoint.dir, told last; DPT_OK: none */
    int64_t saves_seen;        /* dpt_saver_saved when it was last asked */
};

/* save_checkpoint.c. The table of tensors and the texts of a checkpoint; `data`: NULL in a run that
 * only evaluates. rank_close_save after the saver has been destroyed. */
DPT_MUST_USE enum dpt_status rank_open_save(struct dpt_rank *r, const struct dpt_data *data,
                                            struct dpt_err *err);
void rank_close_save(struct dpt_rank *r);
/* Begins an attempt to save the held state and returns when the weights may change again. A rank
 * without a checkpoint slot does nothing. */
void rank_save_begin(struct dpt_rank *r);
/* Waits until the saver is idle, and logs how an attempt failed. */
void rank_settle_saver(struct dpt_rank *r);
/* The spec of a save of the held state, without writer and attempt. */
struct dpt_checkpoint_spec rank_checkpoint_spec(struct dpt_rank *r);
/* Removes the remains of interrupted saves. One rank does so in each folder: the first writer, or
 * the first rank of a node whose folder has no writer now. None in a run that only evaluates. */
void rank_clear_leftovers(struct dpt_rank *r);

/* save_schedule.c. After a step: saves if a save is due and the saver was idle on all ranks when
 * they committed the step. Returns whether it did. */
bool rank_save_if_due(struct dpt_rank *r);
/* With all ranks, when all nodes leave, or too many: saves the held state before they go. */
void rank_save_before_leaving(struct dpt_rank *r);
/* With all ranks, at the end of the run. The last checkpoint is part of it: an error fails the run.
 */
DPT_MUST_USE enum dpt_status rank_save_last(struct dpt_rank *r, const char *weights_hash,
                                            struct dpt_err *err);
/* This rank's attempt at the held state in this generation has ended well. */
bool rank_has_saved(struct dpt_rank *r);
/* DPT_EREFUSED if the folder is another run's, which ends this run. */
DPT_MUST_USE enum dpt_status rank_check_folder(const struct dpt_rank *r, struct dpt_err *err);
/* Once, by the first writer: the pinned steps that get no checkpoint, and whether some checkpoints
 * have no validation loss to be kept for. */
void rank_warn_of_kept(struct dpt_rank *r);
/* The newest checkpoint that this rank took part in or loaded; 0: none. */
int64_t rank_saved_step(const struct dpt_rank *r);

/* load_checkpoint.c. Reads what the generation wants this rank to hold. */
DPT_MUST_USE enum dpt_status rank_load_checkpoint(struct dpt_rank *r, int64_t step,
                                                  struct dpt_err *err);
/* The weights hash of the held state, in hexadecimal. All ranks of the generation together; errors
 * as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_weights_hash(struct dpt_rank *r, char ret_hex[DPT_HASH_HEX_BYTES],
                                               struct dpt_err *err);
/* With all ranks: DPT_ECORRUPT if that is not the hash in the loaded checkpoint. */
DPT_MUST_USE enum dpt_status rank_check_loaded(struct dpt_rank *r, struct dpt_err *err);

/* find_checkpoint.c. Step of the newest checkpoint that the run could go on from, -1: none. One
 * that this process neither read nor wrote is read whole, once; a damaged one is passed over, and
 * told once. */
DPT_MUST_USE enum dpt_status rank_newest_checkpoint(struct dpt_rank *r, int64_t *ret_step,
                                                    struct dpt_err *err);
/* A save of r->state.step begins: a folder of its name is of an earlier history. */
void rank_mark_save(struct dpt_rank *r);
/* This step, or a later one, is whole on disk. */
bool rank_step_is_there(struct dpt_rank *r, int64_t step);
/* The damaged steps found so far, except `except`; returns their number. */
int rank_list_damaged(struct dpt_rank *r, int64_t except, int64_t ret[DAMAGED_STEPS_MAX]);
/* Whether the folder holds the held step with these weights, whole, from another generation or an
 * earlier run. */
DPT_MUST_USE enum dpt_status rank_is_saved(struct dpt_rank *r, const char *weights_hash, bool *ret,
                                           struct dpt_err *err);
/* DPT_ECONFIG in a run that only evaluates, which has no seed to begin from, and, without
 * --allow-fresh, where checkpoint.dir holds checkpoints and none of them is whole. */
DPT_MUST_USE enum dpt_status rank_refuse_seed(const struct dpt_rank *r, struct dpt_err *err);

/* resume_check.c. May the run go on from the newest checkpoint with this config and machine? */
DPT_MUST_USE enum dpt_status rank_check_resume(struct dpt_rank *r, struct dpt_err *err);
/* Is an opened source still what the agent found (dpt_data_check)? */
DPT_MUST_USE enum dpt_status rank_check_source(const struct dpt_data *data, const char *hash,
                                               const char *stamp, struct dpt_err *err);

/* rescue.c. After the generation was left: writes the held state as a rescue and waits until it is
 * whole, at most until deadline_ms (dpt_now_ms). */
DPT_MUST_USE enum dpt_status rank_write_rescue(struct dpt_rank *r, int64_t deadline_ms,
                                               struct dpt_err *err);

/* save_errors.c: one cause mostly keeps several checkpoints from the folder; it is told once. A
 * checkpoint was not written: the first is told, the next ones for the same reason are counted. */
void rank_note_unsaved(struct dpt_rank *r, const struct dpt_err *err);
/* A save since the last call ends the count, which is told. */
void rank_note_saves(struct dpt_rank *r);
/* At the end: the count. */
void rank_tell_unsaved(struct dpt_rank *r);

enum { RANK_WHY_BYTES = DPT_ERR_TEXT_BYTES + 2 };
/* The end of a message about checkpoint.dir: ": " and the error, or that it was told before.
 * Returns whether it is told now. */
bool rank_say_why(struct dpt_rank *r, const struct dpt_err *err, char ret[RANK_WHY_BYTES]);

#endif
