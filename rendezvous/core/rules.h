/* Rules of loss: ends of generations, progress, lost ranks and nodes, stalls, the restart
 * budget. */
#ifndef DPT_RENDEZVOUS_CORE_RULES_H
#define DPT_RENDEZVOUS_CORE_RULES_H

#include "rendezvous/core/run_state.h"

/* ---- transition.c: entering a phase, PREPARE, the end ---- */

/* Sets the phase and its start time. The answers of this step tell every node. */
void dpt_rdzv_enter_phase(struct run *run, enum dpt_rdzv_phase phase);

enum prepare { PREPARE_HARD, PREPARE_SOFT }; /* abort, or stop at the next step boundary */

/* Ends the generation in force and prepares a new one; makes a soft preparation hard. No effect on
 * a run that has ended. */
void dpt_rdzv_prepare(struct run *run, enum prepare how, struct cause cause);
/* PREPARING under a new number: every rank is asked, also those that have reported for another. */
void dpt_rdzv_prepare_number(struct run *run);

void dpt_rdzv_finish_run(struct run *run);
/* Ends a run because an operator wants it; its state is saved. */
void dpt_rdzv_stop_run(struct run *run);
/* No effect on a run that has ended. */
void dpt_rdzv_fail_run(struct run *run, const char *text);

/* ---- budget.c ---- */

/* To be called when a rank has reported its step. */
void dpt_rdzv_note_step(struct run *run, const struct rank *rank);
/* An error of a member at `at_ms`; the earliest since the budget was last full is kept. */
void dpt_rdzv_note_error(struct run *run, int64_t at_ms, const char *text);
/* Uses restarts; the run fails if too few were left. `what` is the error. */
void dpt_rdzv_count_crashes(struct run *run, uint32_t crashes, const char *what);
/* Uses a restart because members of the newest plan are lost, or because its generation failed by
 * itself. A plan costs one restart, however many members are lost. */
void dpt_rdzv_count_incident(struct run *run, const char *what);

/* ---- loss.c ---- */

/* To be called after the loss of a member or an error of the data plane. Ends the generation in
 * force, or makes the preparation of the next one hard. */
void dpt_rdzv_member_lost(struct run *run, struct cause cause);
/* Removes a lost node, and counts the loss if the node had a place and had not finished. */
void dpt_rdzv_node_lost(struct run *run, struct node *node, const char *why);
/* The time that it took to notice the loss of a process that was last heard at `heard_ms`. It ends
 * now, or earlier when the generation ended because the peers of the process had noticed the
 * loss. */
int64_t dpt_rdzv_detect_ms(const struct run *run, int64_t heard_ms);
/* Judges stalls, leases, broken connections and quiesce deadlines. To be called at a TICK without a
 * backlog. */
void dpt_rdzv_judge_losses(struct run *run);
/* The longest time since `progress.step_ms` that is not a stall; INT64_MAX: there is no limit. */
int64_t dpt_rdzv_stall_limit_ms(const struct run *run);

/* After two failed formations in a row without a loss, excludes for a time the node that most peers
 * accuse. Two nodes that cannot reach each other have control connections, so neither is lost, and
 * without this rule every formation would fail (test_pair_without_contact_does_not_stop_others in
 * loss_test.c). Call it before a plan is made. */
void dpt_rdzv_exclude_accused(struct run *run);

#endif
