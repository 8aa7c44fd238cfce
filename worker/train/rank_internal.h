/* What the files of worker/train share: one rank and its parts. */
#ifndef DPT_WORKER_TRAIN_RANK_INTERNAL_H
#define DPT_WORKER_TRAIN_RANK_INTERNAL_H

#include "checkpoint/checkpoint.h"
#include "kernels/op_times.h"
#include "worker/data/data.h"
#include "worker/optim/divergence.h"
#include "worker/plan/schedule.h"
#include "worker/strategy/strategy.h"
#include "worker/train/device/accelerator.h"
#include "worker/train/device/frozen_base.h"
#include "worker/train/state/epoch.h"
#include "worker/train/state/eval_shares.h"
#include "worker/train/state/generation_history.h"
#include "worker/train/link/link.h"
#include "worker/train/log/pending_lines.h"
#include "worker/train/state/outcome.h"
#include "worker/train/save/state_pieces.h"
#include "worker/train/rank.h"
#include "worker/train/save/saver_thread.h"
#include "worker/train/step/replica_hashes.h"

#include <pthread.h>

enum { STEP_TIMES_COUNT = 16, DAMAGED_STEPS_MAX = 64 };

/* What a generation is to this rank: the plan in a form for use. */
struct generation {
    uint64_t number; /* 0: none */
    int rank, world_size, position, host;
    int n_trainers; /* the ranks from here on are guests: they hand over their state, that is all */
    bool begun;     /* the strategy's generation; not a guest's */
    int *rank_of_position, *host_of_position, *node_of_position; /* [world_size] */
    int *node_of_rank;                                           /* [world_size] */
    bool redundant;              /* every part of the state is on two nodes at least */
    bool rebuilding;             /* shadows are copied beside the steps: … */
    bool will_be_redundant;      /* … as it will be then */
    int *host_of_rank;           /* [world_size] */
    struct dpt_world world;      /* of the trainers */
    struct dpt_comm_peer *peers; /* [world_size - 1] */
    bool *takes_state;           /* [world_size], by rank */
    bool farewell;               /* too few stay: what is held is saved, no step is made */
    bool writes_log;
    int checkpoint_slot, checkpoint_writers;
    struct dpt_shard *shards;        /* [world_size] own shards of all ranks, by rank */
    struct dpt_shard *writer_shards; /* [checkpoint_writers] by slot */
    char attempt[2 * DPT_COMM_NONCE_BYTES + 1];
    uint64_t plan_hash;          /* of the plan's digest: compared in the first exchange */
    struct dpt_assignment slots; /* of this rank */
    int slots_max;               /* the most that any rank has */
    void *contributions;         /* [world_size x dpt_contribution_bytes(slots_max)] */
    uint8_t *eval_shares;        /* [world_size x DPT_EVAL_SHARE_BYTES] */
    uint8_t *verify_shares;      /* [world_size x DPT_VERIFY_SHARE_BYTES] */
    bool ready;
    /* Why there is this generation, for events.jsonl. */
    char cause[DPT_PROTO_TEXT_BYTES], cause_kind[DPT_PROTO_NAME_BYTES];
    uint64_t detect_ms;
    int64_t steps_lost;
};

struct dpt_rank {
    const struct dpt_rank_options *options;
    const struct dpt_config *config;
    char *config_yaml;
    int slots; /* G */
    struct dpt_sample_form form;

    struct dpt_account memory; /* all that is allocated in the large */
    int64_t memory_at_start;   /* of the process, before that */
    struct {
        bool begun;
        int64_t steps;                    /* since, those again included that were lost */
        struct dpt_op_times host, device; /* after the first step */
    } op_times;
    int64_t memory_first;      /* what `memory` had after the first step of this process */
    struct dpt_device *device; /* the host */
    const struct dpt_ops *ops;
    struct dpt_stream *stream, *comm_stream;
    struct dpt_stream *gpu_comm_stream;  /* the communication thread's, on the GPU; NULL: no NCCL */
    struct dpt_accelerator *accelerator; /* that the model is computed on; NULL: on the host */
    char fingerprint[DPT_FINGERPRINT_BYTES];
    int threads;                       /* that `stream` computes with, */
    int threads_max, threads_prepared; /* could, and has memory for */
    int threads_told;                  /* in the log; 0: never */
    struct dpt_model *model;
    struct dpt_base *base; /* that the model's adapters go with; NULL: it has none */
    int64_t unit_offset[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;      /* of the model's units */
    struct dpt_data *data;     /* NULL when the run only evaluates, */
    struct dpt_loader *loader; /* likewise */
    struct dpt_data *val;      /* NULL when the run does not evaluate */
    struct dpt_comm_listener *listener;
    struct dpt_comm_thread *comm_thread;
    struct dpt_strategy *strategy;
    struct dpt_link *link;
    struct dpt_saver *saver;
    struct dpt_logbook *book; /* NULL: nothing is logged */
    struct dpt_runlog log;    /* into the book */
    int64_t grace_ms;         /* so long after the server's word this node is not expelled */
    char *hf_config;
    struct dpt_tensors tensors;

    /* Activations of one micro-batch; NULL when the accelerator has them. */
    void *saved, *scratch;
    size_t saved_bytes, scratch_bytes;
    float *losses;       /* [micro_batch * form.losses] of a slot or of a batch of an evaluation */
    float *right;        /* [micro_batch] of a batch of an evaluation, with labels; else NULL */
    double *slot_losses; /* [G]; those of this rank's slots */
    void *contribution;  /* [dpt_contribution_bytes(G)] */

    int64_t val_samples; /* of an evaluation */
    void *val_memory;    /* of val_batch */
    struct dpt_batch val_batch;
    uint8_t val_share[DPT_EVAL_SHARE_BYTES];
    struct validation {
        int64_t step;               /* completed steps when it was made; -1: none */
        double loss;                /* mean, nats */
        int64_t right;              /* with labels: samples whose label is predicted */
        double ms;                  /* that it took; 0: made by others, or by several worlds */
    } validation;                   /* the newest */
    struct dpt_eval_part eval_part; /* of one that was given up, or is under way */

    pthread_mutex_t report_mutex;
    struct dpt_rank_report report; /* under report_mutex */

    int64_t step;               /* completed; -1: no state yet */
    struct dpt_outcome outcome; /* of step - 1, when has_outcome */
    bool has_outcome;
    bool told_divergence, told_kept;
    bool told_put_off;         /* a checkpoint, since the last that was begun */
    int64_t unsaved_told;      /* step that could not be saved when all left; 0: none */
    bool reading_failed;       /* the newest sample was not read; the state is what it was */
    int64_t records_lost;      /* of the run's log, since one was written */
    int64_t saves_failed;      /* checkpoints that were not written, for one reason, in a row */
    struct dpt_err save_error; /* that reason, when saves_failed > 0 */
    struct dpt_err told_error; /* of checkpoint.dir, that was told last; DPT_OK: none */
    int64_t saves_seen;        /* of dpt_saver_saved, when that was last looked at */
    bool diverged;             /* the next step is not finite and ends the run */
    uint8_t outcome_bytes[DPT_OUTCOME_BYTES_MAX];
    struct dpt_scaler scaler; /* as of `step` */
    struct dpt_epoch epoch;   /* likewise, with train.epochs */
    int64_t start_step;       /* where this run began */
    int64_t steps_lost;       /* in all re-formations so far */
    struct dpt_history history;
    struct dpt_history saved_history; /* of a checkpoint being written: borrowed by the saver; */
    struct dpt_pieces saved_pieces;   /* likewise */
    bool loaded_rescue;               /* the generation that is formed goes on from one */
    bool reread_state;                /* it goes on from a checkpoint, a rescue or the seed */
    char loaded_hash[DPT_HASH_HEX_BYTES]; /* what the checkpoint just read says of its weights; "":
                                             none was read */
    uint8_t verify_share[DPT_VERIFY_SHARE_BYTES];
    struct flip_place {
        int rank; /* -1: not set */
        int64_t step;
    } flip_gradient, flip_weight; /* DPT_TEST_FLIP_GRADIENT_BIT, DPT_TEST_FLIP_WEIGHT_BIT */
    struct spoilt_steps {
        int64_t first, n;
        double factor; /* of the loss, and so of the gradient */
    } spoilt;          /* DPT_TEST_SPOIL_STEPS */
    struct damaged_step {
        int64_t step;
        uint64_t mark;
    } damaged[DAMAGED_STEPS_MAX]; /* whose bytes were read here; each was told */
    int n_damaged;
    uint64_t mark_before_save;                /* of the step that was saved last */
    int64_t saved_damaged[DAMAGED_STEPS_MAX]; /* borrowed by the saver */
    int64_t verified_step;  /* checkpoint found whole by reading all of it; -1: none yet */
    int64_t committed_step; /* newest that this process has committed; under report_mutex */
    /* Why a checkpoint of this state was dropped, for a value that is not finite; "": none was. */
    char not_finite[DPT_ERR_TEXT_BYTES];
    struct dpt_err folder_lost; /* DPT_EREFUSED: checkpoint.dir is another's; DPT_OK: it is not */
    uint64_t generations;       /* that trained */
    uint64_t ran_generation;    /* newest that it was sent off in; 0: none */
    /* Of the formation that has filled the strategy's `wanted` beside what is held; 0: none. */
    uint64_t pending_generation;
    /* The generation, and its attempt, in which what is held became so: equal on all that hold
     * parts of one state. */
    uint64_t held_generation;
    char held_attempt[2 * DPT_COMM_NONCE_BYTES + 1];
    bool gradient_void; /* the state moved since the gradient that the strategy has was reduced */
    struct generation gen;

    /* Times of the present re-formation, CLOCK_MONOTONIC ms. */
    int64_t prepared_ms, quiesced_ms, plan_ms, rebuilt_ms, restored_ms;
    int64_t rebuild_step;                 /* that the rebuilding of shadows began with */
    int64_t last_step_ns;                 /* when the last step ended, or what came after it; */
    struct dpt_comm_account last_account; /* as of then */
    int64_t step_ms[STEP_TIMES_COUNT];
    int n_step_ms;
    int64_t tokens_trained; /* by this process's generations, for the mean rate */
    double train_seconds;
    int64_t line_tokens; /* as of the last step that has a line (train.log_every), ... */
    double line_seconds; /* ... or of the generation's begin */
    int64_t steps_made;
    int64_t began_ms; /* when training began, here or with those who were before; 0: not yet */
    int64_t checkpoints_told; /* saved by others before this process took part */
    int64_t loaded_step;      /* of the checkpoint last read; 0: none */
};

/* form.c: carries out a PLAN. DPT_EPEER, DPT_ETIMEOUT, DPT_EABORTED: this generation came to
 * nothing, quiesce and wait; others are fatal. */
DPT_MUST_USE enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan,
                                       struct dpt_err *err);
void rank_leave_generation(struct dpt_rank *r);

/* restore.c. What waits from the last formation becomes what is held, if that generation was sent
 * off; else it is dropped. Before begin_generation. */
void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan);
/* A survivor that lacks only the outcome applies it now. DPT_EPEER: it cannot. */
DPT_MUST_USE enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan,
                                               bool takes_state, struct dpt_err *err);
/* With the communicator of the generation: puts the state in place, beside the old where that may
 * still be needed, and proves that all hold the same. */
DPT_MUST_USE enum dpt_status rank_restore(struct dpt_rank *r, const Dpt__Plan *plan,
                                          struct dpt_err *err);
/* redundancy.c. With a plan that follows a loss: leaves this rank's shadow out of what is filled
 * before GO, if there is much of it, and returns its shard; of 0: no. */
struct dpt_shard rank_defer_shadow(struct dpt_rank *r, const Dpt__Plan *plan);
/* With the hellos of the first exchange, those of all ranks [world_size x DPT_HELLO_BYTES]. */
DPT_MUST_USE enum dpt_status rank_begin_rebuild(struct dpt_rank *r, const uint8_t *hellos,
                                                struct dpt_err *err);
/* With those of the second: how much of the state is on two nodes. */
DPT_MUST_USE enum dpt_status rank_judge_redundancy(struct dpt_rank *r, const uint8_t *hellos,
                                                   struct dpt_err *err);
/* After a step was applied; when the last shadow has become whole by it all ranks prove that, and
 * the log, the events and the server are told. Errors as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_look_after_rebuild(struct dpt_rank *r, struct dpt_err *err);
/* As events.jsonl says it. */
const char *rank_redundancy(const struct dpt_rank *r);
/* What is held has been agreed upon in this generation. */
void rank_note_held(struct dpt_rank *r);
/* What the strategy wants is filled, and is held from now on; what it held is freed. */
DPT_MUST_USE enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err);
/* Before what is held is read: a device may have the newest of it. */
DPT_MUST_USE enum dpt_status rank_fetch_state(struct dpt_rank *r, struct dpt_err *err);
/* Can apply step r->step, if its outcome is told. */
bool rank_holds_gradient(const struct dpt_rank *r);

/* threads.c. Makes r->stream. */
DPT_MUST_USE enum dpt_status rank_open_stream(struct dpt_rank *r, struct dpt_err *err);
/* With the communicator of the generation: all say which cores they may use, and each computes with
 * its share from here on, which it logs when it changes. Notes what the host's ranks compute with
 * together. By the thread that computes. */
DPT_MUST_USE enum dpt_status rank_deal_cores(struct dpt_rank *r, struct dpt_err *err);

enum train_end {
    TRAIN_FINISHED, /* all steps applied, final checkpoint and summary written */
    TRAIN_REFORM,   /* all ranks agreed to stop after this step */
    TRAIN_BROKEN    /* the communicator broke or a PREPARE came */
};

/* train.c: trains until the generation ends. */
DPT_MUST_USE enum dpt_status rank_train(struct dpt_rank *r, enum train_end *ret,
                                        struct dpt_err *err);
/* Applies step r->step with r->outcome. */
DPT_MUST_USE enum dpt_status rank_apply(struct dpt_rank *r, struct dpt_err *err);

/* record.c. The fence for a record of this rank alone. Waits for leave, log.wait_s at most; then
 * `what` ("… is") is told as not written. False, too: the generation has ended, which is not told.
 */
bool rank_may_record(const struct dpt_rank *r, const char *what);

/* divergence.c. After the small all-reduce of a step that is not applied and ends the run; fills
 * err with why. Returns DPT_EDIVERGED. */
enum dpt_status rank_judge_diverged(struct dpt_rank *r, struct dpt_err *err);
/* With all ranks of the generation: a step is over whose checkpoint some rank could not write,
 * for the state is not finite, though loss and gradient are. As rank_end_diverged; nothing is
 * saved. */
DPT_MUST_USE enum dpt_status rank_end_not_finite(struct dpt_rank *r, bool writes_log,
                                                 struct dpt_err *err);
/* With all ranks of the generation, before the last checkpoint: DPT_EDIVERGED on all when what some
 * rank would save is not finite. Errors else as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_check_last_state(struct dpt_rank *r, struct dpt_err *err);
/* After rank_judge_diverged, with all ranks: saves what is held, and returns once all have; `err`
 * says why the run ends, the newest checkpoint, and what to change. DPT_EDIVERGED; else as
 * rank_compute_step. `writes_log`: an event, too. */
enum dpt_status rank_end_diverged(struct dpt_rank *r, bool writes_log, struct dpt_err *err);
/* Of the step that was applied or left out last and is not finite: a line, or a line for all that
 * follow; with `writes_log` also an event. */
void rank_tell_divergence(struct dpt_rank *r, bool writes_log);

/* worklog.c. A generation begins: the log's writer completes the file with what the last one could
 * not write, and where the run goes on from a rescue with the lines that no server had confirmed
 * before it. */
void rank_begin_log(struct dpt_rank *r);
/* The generation has ended: what waits is for the next one's writer. */
void rank_end_log(struct dpt_rank *r);
/* Nobody is left who knows what became of the run after the checkpoint, or the seed, that it goes
 * on from: adds what events.jsonl says of it. */
void rank_complete_history(struct dpt_rank *r);
/* Whether this rank keeps lines of the log, written by it or not. */
bool rank_keeps_log(const struct dpt_rank *r);
/* Appends what may be by now; after each step. */
void rank_flush_log(struct dpt_rank *r);
/* Whether the step made last ends an epoch whose account is here. Writes the line of that; and, as
 * a generation begins, if nobody did. */
bool rank_ends_epoch(const struct dpt_rank *r);
void rank_log_epoch(struct dpt_rank *r);
void rank_log_missed_epoch(struct dpt_rank *r);
/* After a line was handed to r->log: likewise; and says it if there was none. */
void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);
/* Whether this rank writes files beside the lines; it waits until it may, and for the lines. */
bool rank_settles_log(struct dpt_rank *r);
DPT_MUST_USE enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err);

/* memory.c. After every step: notes what the first one left allocated. */
void rank_note_first_step(struct dpt_rank *r);
/* Writes what this rank holds beside what it should, at the run's end; a file that cannot be
 * written is logged, and no failure. */
void rank_write_memory(struct dpt_rank *r);

/* op_times.c: what the kernels took, of the steps after the first of this process. The former after
 * each step; the latter at the run's end, when a file that cannot be written is logged and no
 * failure. */
void rank_note_op_times(struct dpt_rank *r);
void rank_write_op_times(struct dpt_rank *r);

/* step.c: one step up to its outcome (not applied). DPT_EABORTED: interrupted or a peer failed (the
 * comm thread knows). */
DPT_MUST_USE enum dpt_status rank_compute_step(struct dpt_rank *r, struct dpt_err *err);
/* A unit's forward, and the end of a micro-batch: losses are there. */
void rank_forward(struct dpt_rank *r, int unit, const struct dpt_slot *slot);
DPT_MUST_USE enum dpt_status rank_end_slot(struct dpt_rank *r, const struct dpt_slot *slot,
                                           struct dpt_err *err);
/* What is being computed is in vain: the generation ends. */
bool rank_in_vain(const struct dpt_rank *r);
/* The status of reading samples: a disk that fails, or is gone, is this machine's (DPT_EDEVICE). */
enum dpt_status rank_own_disk(struct dpt_rank *r, enum dpt_status status, struct dpt_err *err);
/* Makes everything one micro-batch needs on the host ready, so that steps do not allocate. */
DPT_MUST_USE enum dpt_status rank_prepare_ops(struct dpt_rank *r, struct dpt_err *err);

/* evaluate.c. Evaluates the weights on data.val, with all ranks of the generation; fills
 * r->validation. *ret_stopped: given up at a batch's end because the world shall change, with
 * *ret_all_leave when every node drains; else it is whole. Errors as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_evaluate(struct dpt_rank *r, bool *ret_stopped,
                                           bool *ret_all_leave, struct dpt_err *err);
/* Samples of data.val that have labels; 0: the model predicts the next token. */
int64_t rank_labelled_samples(const struct dpt_rank *r);
/* What r->validation is in the files of the run; and its line there, and rank 0's in the log. */
struct dpt_eval_record rank_evaluation_record(const struct dpt_rank *r);
void rank_log_evaluation(struct dpt_rank *r);
/* Opens data.val and makes the buffers. */
DPT_MUST_USE enum dpt_status rank_open_validation(struct dpt_rank *r, struct dpt_err *err);

/* verify.c. Compares with the other ranks what several of them hold, at step r->step: DPT_ECORRUPT
 * names who differs. Errors else as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_verify(struct dpt_rank *r, struct dpt_err *err);
/* When it is known who holds what: says of which parts there is nothing to compare. */
void rank_warn_of_unverified(const struct dpt_rank *r);
/* In a formation, `theirs` is how rank `source`, the lowest that has the state, scales the loss:
 * who takes the state takes it, the others must have the same (DPT_ECORRUPT). */
DPT_MUST_USE enum dpt_status rank_adopt_scaler(struct dpt_rank *r, int source,
                                               const struct dpt_scaler *theirs,
                                               struct dpt_err *err);
/* What tests ask for by DPT_TEST_ variables, read once. */
void rank_read_faults(struct dpt_rank *r);
/* DPT_TEST_FLIP_WEIGHT_BIT, after step r->step was applied. */
void rank_damage_weights(struct dpt_rank *r);

/* save.c. Saving begins an attempt and returns when the weights are free again; a rank without a
 * checkpoint slot does nothing. */
void rank_save_begin(struct dpt_rank *r);
/* Once: the first writer says which pinned steps get no checkpoint, and whether some checkpoints
 * get no validation loss to be kept for. */
void rank_warn_of_kept(struct dpt_rank *r);
/* What a save of the state of r->step writes, less who writes it as which attempt. Borrows
 * r->saved_history and r->saved_pieces, which are filled first. */
struct dpt_checkpoint_spec rank_checkpoint_spec(struct dpt_rank *r);
/* rescue.c. This node leaves while there is no server: ends the generation, writes what is held of
 * r->step as a rescue, waits until it is whole, at most until deadline_ms (CLOCK_MONOTONIC), and
 * tells the agent. After this the rank only waits for EXIT. */
void rank_publish_rescue(struct dpt_rank *r, int64_t deadline_ms);
/* Removes what saves that were cut short left in the checkpoint folder. One rank does it in each
 * folder: the first writer, or the first of a node whose folder nobody writes to now. None does it
 * in a run that only evaluates. */
void rank_clear_leftovers(struct dpt_rank *r);
/* Waits until the saver is idle and logs how an attempt ended that failed. */
void rank_settle_saver(struct dpt_rank *r);
/* Reads what the generation wants this rank to hold, and no more. */
DPT_MUST_USE enum dpt_status rank_load_checkpoint(struct dpt_rank *r, int64_t step,
                                                  struct dpt_err *err);
/* begin.c. Makes the state before the first step: from the seed, or from model.init_from, of which
 * *ret_origin becomes the hash where this rank compares it with other nodes'. Errors as
 * rank_refuse_seed's, and DPT_ECONFIG for weights that cannot be read. */
DPT_MUST_USE enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                              struct dpt_err *err);
/* newest.c. Step of the newest checkpoint that this rank could resume from, -1: none. One that this
 * process neither read nor wrote is read whole, once; a damaged one is passed over, and told
 * once. */
DPT_MUST_USE enum dpt_status rank_newest_checkpoint(struct dpt_rank *r, int64_t *ret_step,
                                                    struct dpt_err *err);
/* A save of r->step begins: what is there under its name is of an earlier history. */
void rank_mark_save(struct dpt_rank *r);
/* This step, or a later one, is whole on disk. */
bool rank_step_is_there(struct dpt_rank *r, int64_t step);
/* The damaged steps found so far, but for one; their number. */
int rank_list_damaged(struct dpt_rank *r, int64_t but, int64_t ret[DAMAGED_STEPS_MAX]);
/* resume.c. May the run go on from the newest checkpoint, as it is configured here? */
DPT_MUST_USE enum dpt_status rank_check_resume(struct dpt_rank *r, struct dpt_err *err);
/* Is an opened source still what the agent found (dpt_data_check)? */
DPT_MUST_USE enum dpt_status rank_check_source(const struct dpt_data *data, const char *hash,
                                               const char *stamp, struct dpt_err *err);
/* DPT_ECONFIG for a run that only evaluates, which begins from no seed, and, without --allow-fresh,
 * where checkpoint.dir holds checkpoints: a run that finds none of them whole does not begin anew.
 */
DPT_MUST_USE enum dpt_status rank_refuse_seed(const struct dpt_rank *r, struct dpt_err *err);
/* Whether checkpoint.dir already holds this step with these very weights, whole, from another
 * generation or an earlier run. */
DPT_MUST_USE enum dpt_status rank_is_saved(struct dpt_rank *r, const char *weights_hash, bool *ret,
                                           struct dpt_err *err);
/* The weights hash of the held state: all ranks of the generation ask for it together. Errors as
 * rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_weights_hash(struct dpt_rank *r, char ret_hex[DPT_HASH_HEX_BYTES],
                                               struct dpt_err *err);
/* Compares it with what the checkpoint that was just read says; DPT_ECORRUPT. */
DPT_MUST_USE enum dpt_status rank_check_loaded(const struct dpt_rank *r, const char *weights_hash,
                                               struct dpt_err *err);

/* report.c. Keeps r->step where the agent finds it when this process is dead. */
void rank_keep_step(const struct dpt_rank *r);
/* Changes the report under its lock and sends it. */
void rank_publish(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation);
void rank_publish_progress(struct dpt_rank *r);
void rank_publish_busy(struct dpt_rank *r, bool busy);
/* While busy: something of it is done, so it is no stall, however long the whole may take. */
void rank_publish_work(struct dpt_rank *r);
/* A checkpoint of `step` is whole. */
void rank_publish_saved(struct dpt_rank *r, int64_t step);
void rank_publish_failure(struct dpt_rank *r, uint64_t generation, int suspect, const char *text);

/* last_words.c: the end with an error, which the agent is told; returns the exit code. */
int rank_tell_end(struct dpt_rank *r, enum dpt_status status, bool at_work, struct dpt_err *err);

/* What became of a record of the run's log. A write is fenced and never ends the training: the
 * record is lost. The first is said, those after it are counted until one is written. */
void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err);
/* At the end: how often what was said once happened again. */
void rank_tell_repeated(struct dpt_rank *r);
/* A checkpoint that was saved since the last call ends a count of those that were not, and is the
 * end of what was told of checkpoint.dir. */
void rank_note_saves(struct dpt_rank *r);
/* A checkpoint was not written. The first is said, those after it for the same reason are counted
 * until one is written. */
void rank_note_unsaved(struct dpt_rank *r, const struct dpt_err *err);

enum { RANK_WHY_BYTES = DPT_ERR_TEXT_BYTES + 2 };

/* The end of a message about checkpoint.dir: ": " and the error, or, where that was told already,
 * that it was. Returns whether it is news, which it is not the next time. */
bool rank_say_why(struct dpt_rank *r, const struct dpt_err *err, char ret[RANK_WHY_BYTES]);

/* room.c: DPT_ENOMEM with what is wanted, what there is and the keys that change it, if no world of
 * this run lets a rank fit into the memory that this process can take; and the same words for an
 * allocation that failed (`status` DPT_ENOMEM). */
DPT_MUST_USE enum dpt_status rank_check_memory(const struct dpt_rank *r, struct dpt_err *err);
void rank_explain_memory(enum dpt_status status, struct dpt_err *err);

#endif
