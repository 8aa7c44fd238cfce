/* Rules of loss: how a generation ends, progress, lost ranks and nodes, stalls, the restart budget.
 */
#ifndef DPT_RENDEZVOUS_CORE_RULES_H
#define DPT_RENDEZVOUS_CORE_RULES_H

#include "rendezvous/core/state.h"

/* ---- transition.c: entering a phase, PREPARE, the end ---- */

/* Sets the phase and its time; every node is told. */
void dpt_rdzv_enter_phase(struct run *run, enum dpt_rdzv_phase phase);

enum prepare { PREPARE_HARD, PREPARE_SOFT }; /* abort, or stop at the next step boundary */

/* Ends the generation in force and prepares a new one; makes a soft preparation hard. No effect on
 * a run that has ended. */
void dpt_rdzv_prepare(struct run *run, enum prepare how, struct cause cause);

void dpt_rdzv_finish_run(struct run *run);
/* No effect on a run that has ended. */
void dpt_rdzv_fail_run(struct run *run, const char *text);

/* ---- budget.c ---- */

/* A rank has reported its step. */
void dpt_rdzv_note_step(struct run *run, const struct rank *rank);
/* Uses restarts; the run fails if too few were left. `what` is the error. */
void dpt_rdzv_count_crashes(struct run *run, uint32_t crashes, const char *what);
/* Members of the newest plan are lost, or it failed by itself: one restart for each plan, however
 * many members are lost. */
void dpt_rdzv_count_incident(struct run *run, const char *what);

/* ---- loss.c ---- */

/* After the loss of a member or a broken data plane: ends the generation in force, or makes its
 * preparation hard. */
void dpt_rdzv_member_lost(struct run *run, struct cause cause);
/* Removes the node. */
void dpt_rdzv_node_lost(struct run *run, struct node *node, const char *why);
/* How long it took to notice the loss of a process last heard at `heard_ms`: until now, or until
 * the generation ended because its peers had noticed. */
int64_t dpt_rdzv_detect_ms(const struct run *run, int64_t heard_ms);
/* Judges stalls, leases, broken connections and quiesce deadlines; at a TICK without a backlog. */
void dpt_rdzv_judge_silence(struct run *run);

/* After two failed formations in a row, excludes the node that most peers name for a time: two
 * nodes that cannot reach each other must not stop the others. Call before a plan is made. */
void dpt_rdzv_exclude_accused(struct run *run);

#endif
