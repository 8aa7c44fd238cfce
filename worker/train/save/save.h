/* The part of a rank that uses checkpoint.dir: saves states, finds checkpoints, loads them. Main
 * thread; saver_thread.h has the thread that writes. */
#ifndef DPT_WORKER_TRAIN_SAVE_SAVE_H
#define DPT_WORKER_TRAIN_SAVE_SAVE_H

#include "worker/data/data.h"
#include "worker/train/save/saver_thread.h"
#include "worker/train/save/state_pieces.h"
#include "worker/train/state/rooms.h"

enum { DAMAGED_STEPS_MAX = 64 };

struct rank_save {
    struct dpt_saver *saver;
    char *config_yaml;                /* text of the config for state.json */
    char *hf_config;                  /* the JSON file for transformers or PEFT */
    struct dpt_state_tensors tensors; /* tensors of the model */

    /* Texts and lists of the checkpoint that is being written. The saver borrows them. */
    struct dpt_history saved_history;
    struct dpt_state_pieces saved_pieces;
    int64_t saved_damaged[DAMAGED_STEPS_MAX];
    /* Mark of the step's folders before the save: an older folder may have the same name. */
    uint64_t mark_before_save;

    /* Facts about the folder. */
    struct damaged_step {
        int64_t step;
        uint64_t mark;            /* mark of the damaged folder */
    } damaged[DAMAGED_STEPS_MAX]; /* each entry was logged */
    int n_damaged;
    /* Newest checkpoint that this process has read and found intact; -1: none. */
    int64_t verified_step;
    int64_t loaded_step; /* step of the checkpoint loaded last; 0: none */
    /* weights_hash of that checkpoint; "": none was loaded in this formation. */
    char loaded_hash[DPT_HASH_HEX_BYTES];
    struct dpt_err folder_lost; /* DPT_EREFUSED: another run has taken the folder */
    /* Why a checkpoint of this state was dropped; "": none was. */
    char not_finite[DPT_ERR_TEXT_BYTES];

    /* Messages that were logged, so that they are not repeated. */
    bool told_kept, told_put_off;
    /* Step that could not be saved before all nodes left; 0: none. */
    int64_t unsaved_told;
    /* Step and generation of the save that was begun last; step 0: none. */
    int64_t begun_step;
    uint64_t begun_generation;
    int64_t saves_failed; /* failed saves in a row, all with save_error */
    struct dpt_err save_error;
    /* Error about checkpoint.dir that was logged last; DPT_OK: none. */
    struct dpt_err told_error;
    /* dpt_saver_saved().n at the last call of rank_note_saves. */
    int64_t saves_seen;
};

/* save_checkpoint.c. rank_open_save makes the table of tensors and the texts of a checkpoint;
 * `data` is NULL in a run that only evaluates. rank_close_save is called after the saver has been
 * destroyed. */
DPT_MUST_USE enum dpt_status rank_open_save(struct dpt_rank *r, const struct dpt_data *data,
                                            struct dpt_err *err);
void rank_close_save(struct dpt_rank *r);
/* Begins an attempt to save the held state. Returns when the weights may change again. A rank
 * without a checkpoint slot does nothing. */
void rank_save_begin(struct dpt_rank *r);
/* Waits until the saver is idle. Logs why an attempt failed. */
void rank_settle_saver(struct dpt_rank *r);
/* Makes the spec for a save of the held state, without writer and attempt. */
struct dpt_checkpoint_spec rank_checkpoint_spec(struct dpt_rank *r);
/* Removes the remains of interrupted saves. In each folder one rank does so: the first writer, or
 * the first rank of a node whose folder has no writer now. A run that only evaluates removes
 * nothing. */
void rank_clear_leftovers(struct dpt_rank *r);

/* save_schedule.c. Whether an operator wants a checkpoint of the next completed step, and this rank
 * has begun none for that in this generation. Called before a commit. */
bool rank_save_is_wanted(struct dpt_rank *r);
/* Called after a step. Saves if a save is due and the saver was idle on all ranks
 * when they committed the step. Returns whether it saved. */
bool rank_save_if_due(struct dpt_rank *r);
/* All ranks call this together when all nodes leave, or so many that too few stay. Saves the held
 * state before that. */
void rank_save_before_leaving(struct dpt_rank *r);
/* All ranks call this together at the end of the run. Saves the last checkpoint. It belongs to the
 * run, so an error fails the run. */
DPT_MUST_USE enum dpt_status rank_save_last(struct dpt_rank *r, const char *weights_hash,
                                            struct dpt_err *err);
/* Whether this rank has saved its part of the held state in this generation. */
bool rank_has_saved(struct dpt_rank *r);
/* DPT_EREFUSED: another run has taken the folder. This ends the run. */
DPT_MUST_USE enum dpt_status rank_check_folder(const struct dpt_rank *r, struct dpt_err *err);
/* On the first writer: warns once of pinned steps that get no checkpoint, and of checkpoints
 * without a validation loss, which checkpoint.keep_best cannot keep. */
void rank_warn_of_kept(struct dpt_rank *r);
/* The newest checkpoint that this rank took part in or loaded; 0: none. */
int64_t rank_saved_step(const struct dpt_rank *r);

/* load_checkpoint.c. Reads the parts of the state that this rank must hold in the generation. */
DPT_MUST_USE enum dpt_status rank_load_checkpoint(struct dpt_rank *r, int64_t step,
                                                  struct dpt_err *err);
/* Computes the weights hash of the held state, in hexadecimal. All ranks of the generation call
 * this together. Errors as rank_compute_step. */
DPT_MUST_USE enum dpt_status rank_weights_hash(struct dpt_rank *r, char ret_hex[DPT_HASH_HEX_BYTES],
                                               struct dpt_err *err);
/* All ranks call this together. DPT_ECORRUPT: the weights hash differs from that of the loaded
 * checkpoint. */
DPT_MUST_USE enum dpt_status rank_check_loaded(struct dpt_rank *r, struct dpt_err *err);

/* find_checkpoint.c. Finds the step of the newest intact checkpoint; -1: none. A checkpoint that
 * this process has neither read nor written is read completely, once. A damaged one is passed over,
 * and logged once. */
DPT_MUST_USE enum dpt_status rank_newest_checkpoint(struct dpt_rank *r, int64_t *ret_step,
                                                    struct dpt_err *err);
/* Called before a save of r->state.step: an existing folder of that step belongs to an earlier
 * history. */
void rank_mark_save(struct dpt_rank *r);
/* Whether a complete checkpoint of this step, or of a later one, is on disk. */
bool rank_step_is_there(struct dpt_rank *r, int64_t step);
/* The damaged steps found so far, except `except`; returns their number. */
int rank_list_damaged(struct dpt_rank *r, int64_t except, int64_t ret[DAMAGED_STEPS_MAX]);
/* Whether another generation, or an earlier start, has saved the held step with these weights, and
 * the checkpoint is intact. */
DPT_MUST_USE enum dpt_status rank_is_saved(struct dpt_rank *r, const char *weights_hash, bool *ret,
                                           struct dpt_err *err);
/* DPT_ECONFIG in a run that only evaluates, because it cannot begin from the seed. Also
 * DPT_ECONFIG, without --allow-fresh, if checkpoint.dir has checkpoints and all are damaged. */
DPT_MUST_USE enum dpt_status rank_refuse_seed(const struct dpt_rank *r, struct dpt_err *err);

/* resume_check.c. DPT_ECONFIG: the run must not continue from the newest checkpoint, because the
 * config's trajectory keys, the data or the kind of machine differ from those of the checkpoint. On
 * one node without an intact checkpoint: as rank_refuse_seed. */
DPT_MUST_USE enum dpt_status rank_check_resume(struct dpt_rank *r, struct dpt_err *err);
/* Checks that an opened source is still the one that the agent has found (dpt_data_check). */
DPT_MUST_USE enum dpt_status rank_check_source(const struct dpt_data *data, const char *hash,
                                               const char *stamp, struct dpt_err *err);

/* rescue.c. Called between generations. Writes the held state as a rescue, and waits until the
 * rescue is complete, at most until deadline_ms (dpt_now_ms). */
DPT_MUST_USE enum dpt_status rank_write_rescue(struct dpt_rank *r, int64_t deadline_ms,
                                               struct dpt_err *err);

/* save_errors.c. An error that prevents several checkpoints is logged once. rank_note_unsaved: a
 * checkpoint was not written; logs the first error and counts the next equal ones. */
void rank_note_unsaved(struct dpt_rank *r, const struct dpt_err *err);
/* If a save has succeeded since the last call: ends the count and logs it. */
void rank_note_saves(struct dpt_rank *r);
/* Logs the count at the end of the process. */
void rank_tell_unsaved(struct dpt_rank *r);

enum { RANK_WHY_BYTES = DPT_ERR_TEXT_BYTES + 2 };
/* Writes the end of a message about checkpoint.dir: ": " and the error, or ", for the reason logged
 * before". Returns whether the error is new. */
bool rank_quote_error(struct dpt_rank *r, const struct dpt_err *err, char ret[RANK_WHY_BYTES]);

#endif
