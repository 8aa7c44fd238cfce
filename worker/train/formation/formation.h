/* The room of formations: from a plan to a communicator, a filled state, and the proof that all
 * ranks hold the same. Main thread.
 *
 * A rank keeps the state that it held beside the state that it is given until GO: only then it
 * knows that all ranks of the generation have theirs. A generation that fails before may be
 * followed by one that goes on from the old state. The next plan says which one counts
 * (Plan.state_generation). */
#ifndef DPT_WORKER_TRAIN_FORMATION_FORMATION_H
#define DPT_WORKER_TRAIN_FORMATION_FORMATION_H

#include "worker/train/formation/hello.h"
#include "worker/train/state/rooms.h"

struct rank_formation {
    uint64_t ran_generation; /* newest that this process trained in; 0: none */
    /* Generation whose formation has filled the strategy's `wanted` beside the held state; 0: none.
     */
    uint64_t pending_generation;
    bool gradient_void; /* the state has changed since the strategy's gradient was reduced */
    /* Times of the present formation, dpt_now_ms. */
    int64_t prepared_ms, quiesced_ms, plan_ms, rebuilt_ms, restored_ms;
    int64_t rebuild_step; /* at which the rebuilding of shadows began */
};

/* form.c. Carries out a PLAN. DPT_EPEER, DPT_ETIMEOUT, DPT_EABORTED: this generation came to
 * nothing, quiesce and wait; other errors are fatal. */
DPT_MUST_USE enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan,
                                       struct dpt_err *err);
/* Ends the generation; the state stays. */
void rank_leave_generation(struct dpt_rank *r);
/* GO: what the formation has filled is the state from now on. */
DPT_MUST_USE enum dpt_status rank_enter_generation(struct dpt_rank *r, struct dpt_err *err);

/* report_state.c. Reports the phase, and what is held in it. */
void rank_report(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation);

/* held_state.c. The state that is filled by the last formation becomes the held one if that
 * generation was sent off; else it is dropped. Before begin_generation. */
void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan);
/* A survivor that lacks only the outcome of a step applies the step with the plan's. DPT_EPEER: it
 * cannot. */
DPT_MUST_USE enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan,
                                               bool takes_state, struct dpt_err *err);
/* The strategy's `wanted` is filled and is held from now on; what it held is freed. */
DPT_MUST_USE enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err);
/* The held state is agreed upon in this generation. */
void rank_note_held(struct dpt_rank *r);
/* No state, until a new one is filled, also for a formation that comes before that. */
void rank_forget_state(struct dpt_rank *r);
/* Can apply step r->state.step, given its outcome. */
bool rank_holds_gradient(const struct dpt_rank *r);

/* fill_state.c. With the communicator of the generation: fills the state from the ranks that hold
 * it, a checkpoint or the seed, and proves that all ranks hold the same. */
DPT_MUST_USE enum dpt_status rank_fill_state(struct dpt_rank *r, const Dpt__Plan *plan,
                                             struct dpt_err *err);

/* initial_state.c. Makes the state of step 0: from the seed, or from model.init_from, whose hash
 * *ret_origin becomes where this rank compares it with other nodes'. DPT_ECONFIG: weights that
 * cannot be read; else as rank_refuse_seed. */
DPT_MUST_USE enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                              struct dpt_err *err);

/* run_account.c: what the ranks know of the run, `hellos` of all ranks [world_size]. After the
 * first exchange: the history's totals and the evaluation of the rank that knows most. */
void rank_adopt_account(struct dpt_rank *r, const struct dpt_hello *hellos, int64_t resume_step);
/* After the state was filled, with all ranks: one history, with this generation. */
DPT_MUST_USE enum dpt_status rank_extend_history(struct dpt_rank *r, struct dpt_err *err);
/* After the second exchange: a rank that took the state takes its loss scale and epoch, the others
 * must have the same scale (DPT_ECORRUPT). */
DPT_MUST_USE enum dpt_status rank_adopt_scale(struct dpt_rank *r, const struct dpt_hello *hellos,
                                              struct dpt_err *err);

/* redundancy.c. If the plan follows a loss and the shadow is large: leaves it out of what is filled
 * before GO, and returns its shard; of 0: not left out. */
struct dpt_shard rank_defer_shadow(struct dpt_rank *r, const Dpt__Plan *plan);
/* After the first exchange. */
DPT_MUST_USE enum dpt_status rank_begin_rebuild(struct dpt_rank *r, const struct dpt_hello *hellos,
                                                struct dpt_err *err);
/* After the second: how much of the state is on two nodes. */
DPT_MUST_USE enum dpt_status
rank_judge_redundancy(struct dpt_rank *r, const struct dpt_hello *hellos, struct dpt_err *err);
/* After a step was applied. When it made the last shadow whole: all ranks prove that, and it is
 * logged and reported. Errors as rank_compute_step's. */
DPT_MUST_USE enum dpt_status rank_look_after_rebuild(struct dpt_rank *r, struct dpt_err *err);

#endif
