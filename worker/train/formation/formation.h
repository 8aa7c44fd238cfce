/* The room of formations: from a plan to a communicator, a filled state, and the comparison of the
 * state on all ranks. Main thread.
 *
 * Until GO a rank keeps its old state beside the filled state: only GO shows that all ranks of the
 * generation have theirs. If the generation fails before GO, the next one may continue from the old
 * state. The next plan tells which state counts (Plan.state_generation). */
#ifndef DPT_WORKER_TRAIN_FORMATION_FORMATION_H
#define DPT_WORKER_TRAIN_FORMATION_FORMATION_H

#include "worker/train/formation/hello.h"
#include "worker/train/state/rooms.h"

struct rank_formation {
    uint64_t ran_generation; /* newest generation in which this process trained; 0: none */
    /* Generation whose filled state waits beside the held state for GO; 0: none. */
    uint64_t pending_generation;
    bool gradient_void; /* the state has changed since the strategy's gradient was reduced */
    /* Times of the present formation, dpt_now_ms. */
    int64_t prepared_ms, quiesced_ms, plan_ms, rebuilt_ms, restored_ms;
    int64_t rebuild_step; /* step at which the rebuilding of shadows began */
};

/* form.c. Carries out a PLAN. DPT_EPEER, DPT_ETIMEOUT, DPT_EABORTED: this generation cannot be
 * formed, quiesce and wait; other errors are fatal. */
DPT_MUST_USE enum dpt_status rank_form(struct dpt_rank *r, const Dpt__Plan *plan,
                                       struct dpt_err *err);
/* Ends the generation; the state stays. */
void rank_leave_generation(struct dpt_rank *r);
/* GO: the filled state is the held state from now on. */
DPT_MUST_USE enum dpt_status rank_enter_generation(struct dpt_rank *r, struct dpt_err *err);

/* report_state.c. Reports the phase and the held state. */
void rank_report(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation);

/* held_state.c. The state that waits for GO becomes the held state if the plan says that its
 * generation got GO; else it is dropped. Before dpt_strategy_begin_generation. */
void rank_settle_pending(struct dpt_rank *r, const Dpt__Plan *plan);
/* A survivor that lacks only the outcome of a step applies the step with the plan's outcome.
 * DPT_EPEER: it has no gradient of the step. */
DPT_MUST_USE enum dpt_status rank_take_outcome(struct dpt_rank *r, const Dpt__Plan *plan,
                                               bool takes_state, struct dpt_err *err);
/* The strategy's filled `wanted` is the held state from now on; the old state is freed. */
DPT_MUST_USE enum dpt_status rank_adopt_state(struct dpt_rank *r, struct dpt_err *err);
/* All ranks have agreed on the held state in this generation. */
void rank_note_held(struct dpt_rank *r);
/* This rank holds no state until one is filled, in this formation or a later one. */
void rank_forget_state(struct dpt_rank *r);
/* Whether this rank can apply step r->state.step, given its outcome. */
bool rank_holds_gradient(const struct dpt_rank *r);

/* fill_state.c. With all ranks of the generation: fills the state from the ranks that hold it, a
 * checkpoint or the seed, and compares it. DPT_ECORRUPT: two ranks hold different values. */
DPT_MUST_USE enum dpt_status rank_fill_state(struct dpt_rank *r, const Dpt__Plan *plan,
                                             struct dpt_err *err);

/* initial_state.c. Makes the state of step 0, from the seed or from model.init_from. *ret_origin
 * becomes the hash of model.init_from on the rank that compares it with other nodes. DPT_ECONFIG:
 * weights that cannot be read; else as rank_refuse_seed. */
DPT_MUST_USE enum dpt_status rank_begin_state(struct dpt_rank *r, struct dpt_hash128 *ret_origin,
                                              struct dpt_err *err);

/* run_account.c: the accounts of the run, from the `hellos` of all ranks [world_size]. After the
 * first exchange: adopts the totals and the evaluation of the rank with the most complete account.
 */
void rank_adopt_account(struct dpt_rank *r, const struct dpt_hello *hellos, int64_t resume_step);
/* After the state was filled, with all ranks: shares one history and adds this generation to it. */
DPT_MUST_USE enum dpt_status rank_extend_history(struct dpt_rank *r, struct dpt_err *err);
/* After the second exchange: a rank that received the state adopts its loss scale and epoch; the
 * other ranks must have the same scale (DPT_ECORRUPT). */
DPT_MUST_USE enum dpt_status rank_adopt_scale(struct dpt_rank *r, const struct dpt_hello *hellos,
                                              struct dpt_err *err);

/* redundancy.c. If the plan follows a loss and the shadow is large: the shadow is not filled before
 * GO. Returns its shard; of 0: the shadow is filled. */
struct dpt_shard rank_defer_shadow(struct dpt_rank *r, const Dpt__Plan *plan);
/* After the first exchange: begins the rebuilding of shadows that ranks have deferred. */
DPT_MUST_USE enum dpt_status rank_begin_rebuild(struct dpt_rank *r, const struct dpt_hello *hellos,
                                                struct dpt_err *err);
/* After the second exchange: computes whether the state is on two nodes, and warns if not. */
DPT_MUST_USE enum dpt_status
rank_judge_redundancy(struct dpt_rank *r, const struct dpt_hello *hellos, struct dpt_err *err);
/* After a step was applied. If the last shadow is complete now, all ranks compare their replicas,
 * and the redundancy is logged and reported. Errors as rank_compute_step. */
DPT_MUST_USE enum dpt_status rank_finish_rebuild(struct dpt_rank *r, struct dpt_err *err);

#endif
