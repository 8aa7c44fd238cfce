/* The formation of a generation on a rank: from a plan to a communicator, a filled state, and the
 * comparison of the state on all ranks. Main thread.
 *
 * Until GO a rank keeps its old state beside the filled state, because only GO shows that all ranks
 * of the generation have their states. If the generation fails before GO, the next one may continue
 * from the old state. The next plan says which state counts (Plan.state_generation). */
#ifndef DPT_WORKER_TRAIN_FORMATION_FORMATION_H
#define DPT_WORKER_TRAIN_FORMATION_FORMATION_H

#include "worker/train/formation/hello.h"
#include "worker/train/state/rooms.h"

struct rank_formation {
    uint64_t ran_generation; /* newest generation in which this process trained; 0: none */
    /* Generation whose filled state waits for GO beside the held state; 0: none. */
    uint64_t pending_generation;
    /* The state has changed since the strategy reduced its gradient. */
    bool gradient_void;
    /* Times of the present formation (dpt_now_ms). */
    int64_t prepared_ms, quiesced_ms, plan_ms, rebuilt_ms, restored_ms;
    int64_t rebuild_step; /* step at which shadows began to be rebuilt */
};

/* form.c. Carries out a PLAN. DPT_EPEER, DPT_ETIMEOUT, DPT_EABORTED: this generation cannot be
 * formed, and the rank must quiesce and wait. Other errors are fatal. */
DPT_MUST_USE enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan,
                                       struct dpt_err *err);
/* Ends the generation; the state stays. */
void rank_leave_generation(struct dpt_rank *r);
/* Called at GO: from now on the filled state is the held state. */
DPT_MUST_USE enum dpt_status rank_enter_generation(struct dpt_rank *r, struct dpt_err *err);

/* align_clocks.c. All ranks of the generation call this together, after the communicator is open.
 * In a world of several hosts, if some rank is traced, ranks compare their clocks with rank 0's for
 * the times of their traces (worker/comm/clock_offset.h). */
DPT_MUST_USE enum dpt_status rank_align_clocks(struct dpt_rank *r, struct dpt_err *err);

/* report_state.c. Reports the phase and the held state. */
void rank_report(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation);

/* held_state.c. Decides about the state that waits for GO: it becomes the held state if the plan
 * says that its generation got GO, else it is dropped. Called before
 * dpt_strategy_begin_generation. */
void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan);
/* On a survivor that lacks only the outcome of a step: applies the step with the plan's outcome.
 * DPT_EPEER: the rank has no gradient of the step. */
DPT_MUST_USE enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan,
                                               bool takes_state, struct dpt_err *err);
/* From now on the strategy's filled `wanted` is the held state. Frees the old state. */
DPT_MUST_USE enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err);
/* Notes that all ranks have agreed on the held state in this generation. */
void rank_note_held(struct dpt_rank *r);
/* From now on this rank holds no state, until this formation or a later one fills one. */
void rank_forget_state(struct dpt_rank *r);
/* Whether this rank could apply step r->state.step if it had the outcome. */
bool rank_holds_gradient(const struct dpt_rank *r);

/* fill_state.c. All ranks of the generation call this together. Fills the state from the ranks that
 * hold it, from a checkpoint or from the seed, and compares it. DPT_ECORRUPT: two ranks hold
 * different values. */
DPT_MUST_USE enum dpt_status rank_fill_state(struct dpt_rank *r, const Dpt__Plan *plan,
                                             struct dpt_err *err);

/* initial_state.c. Makes the state of step 0, from the seed or from model.init_from. On the rank
 * that compares model.init_from with other nodes, *ret_origin becomes its hash. DPT_ECONFIG: the
 * weights cannot be read; else as rank_refuse_seed. */
DPT_MUST_USE enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                              struct dpt_err *err);

/* run_account.c. The accounts of the run, from the `hellos` of all ranks [world_size].
 * rank_adopt_account is called after the first exchange. It adopts the totals and the evaluation of
 * the rank with the most complete account. */
void rank_adopt_account(struct dpt_rank *r, const struct dpt_hello *hellos, int64_t resume_step);
/* All ranks call this together after the state was filled. Shares one history and adds this
 * generation to it. */
DPT_MUST_USE enum dpt_status rank_extend_history(struct dpt_rank *r, struct dpt_err *err);
/* Called after the second exchange. A rank that received the state adopts its loss scale and its
 * epoch's account. The other ranks must have the same scale (DPT_ECORRUPT). */
DPT_MUST_USE enum dpt_status rank_adopt_scale(struct dpt_rank *r, const struct dpt_hello *hellos,
                                              struct dpt_err *err);

/* redundancy.c. If the plan follows a loss and the shadow is large, the shadow is not filled before
 * GO. Returns the shard of this shadow; with 0 parts (dpt_shard_is_none): the shadow is filled
 * before GO. */
struct dpt_shard rank_defer_shadow(struct dpt_rank *r, const Dpt__Plan *plan);
/* Called after the first exchange. Begins to rebuild the shadows that ranks have deferred. */
DPT_MUST_USE enum dpt_status rank_begin_rebuild(struct dpt_rank *r, const struct dpt_hello *hellos,
                                                struct dpt_err *err);
/* Called after the second exchange. Computes whether the state is on two nodes, and warns if it is
 * not. */
DPT_MUST_USE enum dpt_status
rank_judge_redundancy(struct dpt_rank *r, const struct dpt_hello *hellos, struct dpt_err *err);
/* Called after a step was applied. When the last shadow is complete, all ranks compare their
 * replicas, and the redundancy is logged and reported. Errors as rank_compute_step. */
DPT_MUST_USE enum dpt_status rank_finish_rebuild(struct dpt_rank *r, struct dpt_err *err);

#endif
