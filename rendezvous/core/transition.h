/* The elementary transitions of a run: entering a phase, preparing a generation, the end. */
#ifndef DPT_RENDEZVOUS_CORE_TRANSITION_H
#define DPT_RENDEZVOUS_CORE_TRANSITION_H

#include "rendezvous/core/state.h"

/* Sets the phase and its time; every node is told. */
void dpt_rdzv_enter(struct dpt_rdzv *core, struct run *run, enum dpt_rdzv_phase phase);

enum prepare { PREPARE_HARD, PREPARE_SOFT }; /* abort, or stop at the next step boundary */

/* Ends the generation in force and prepares a new one; makes one that is prepared soft hard. A run
 * that has ended stays as it is. */
void dpt_rdzv_prepare(struct dpt_rdzv *core, struct run *run, enum prepare how,
                      const struct cause *cause);
/* The same for a cause that is no loss, so that nothing was detected. */
void dpt_rdzv_prepare_for(struct dpt_rdzv *core, struct run *run, enum prepare how,
                          enum cause_kind kind, const char *fmt, ...) DPT_PRINTF(5, 6);

void dpt_rdzv_done(struct dpt_rdzv *core, struct run *run);
/* A run that has ended stays as it is. */
void dpt_rdzv_fail(struct dpt_rdzv *core, struct run *run, const char *text);

#endif
