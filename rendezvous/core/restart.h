/* A server that takes over from an earlier one whose journal it has (docs/membership.md, "Server
 * restart"). It knows the members, and waits for them and for nobody else. */
#ifndef DPT_RENDEZVOUS_CORE_RESTART_H
#define DPT_RENDEZVOUS_CORE_RESTART_H

#include "rendezvous/core/run_state.h"

/* Records the start of the server, and makes the runs of the journal ready to go on. To be called
 * once, in the first step. */
void dpt_rdzv_begin(struct dpt_rdzv *core);

/* True: the server was restarted less than a lease ago, the journal names the members of the run,
 * and no node knows a generation that the journal lacks. */
bool dpt_rdzv_knows_members(const struct run *run);
/* True: dpt_rdzv_knows_members, and a member is not back yet that may hold the newest state, or
 * that was there for the first formation. */
bool dpt_rdzv_awaits_members(struct run *run);
/* True: dpt_rdzv_knows_members, and an earlier server had begun a formation that never ran. */
bool dpt_rdzv_was_forming(const struct run *run);
/* Removes the members that did not come back within a lease. To be called at a TICK without a
 * backlog. */
void dpt_rdzv_give_up_members(struct run *run);

#endif
