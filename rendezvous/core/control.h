/* Commands of an operator (dpt-ctl): Control of dpt.proto, judged and carried out. */
#ifndef DPT_RENDEZVOUS_CORE_CONTROL_H
#define DPT_RENDEZVOUS_CORE_CONTROL_H

#include "rendezvous/core/reply.h"

/* ---- control_info.c: facts, in memory of the outbox ---- */

/* A reply that adds facts as long as there is memory. NULL: no memory. */
Dpt__ControlReply *dpt_rdzv_new_reply(struct dpt_rdzv *core, Dpt__ControlVerb verb);
void dpt_rdzv_reply_add_run(Dpt__ControlReply *reply, struct run *run);
/* True: PAUSE or STOP is in force and no rank trains. After a restart of the server that is known
 * when the members are back. */
bool dpt_rdzv_is_held_now(struct run *run);
/* True: all living ranks have answered the newest DUMP, or its time is over. */
bool dpt_rdzv_is_dumped(const struct run *run);
/* True: the run has the node, may get it back, has removed it, or denies it. */
bool dpt_rdzv_knows_node(const struct run *run, const char *node);
/* Adds the nodes of the run (NULL: of all runs), members that are not back since a restart of the
 * server, and denied ids; leaves the first `first` of them out. */
void dpt_rdzv_reply_add_nodes(struct dpt_rdzv *core, Dpt__ControlReply *reply,
                              const struct run *run, uint32_t first);

/* ---- control.c ---- */

/* Carries out the command of the message and answers it. The same command again changes nothing,
 * and its answer says whether it is done. Sends nothing if many messages were answered within a
 * second. */
void dpt_rdzv_take_control(const struct inquiry *from);

#endif
