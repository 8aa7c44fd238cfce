/* The report of a node: what its ranks hold and do, what has died or failed there. */
#ifndef DPT_RENDEZVOUS_CORE_REPORT_H
#define DPT_RENDEZVOUS_CORE_REPORT_H

#include "rendezvous/core/reply.h"
#include "rendezvous/core/state.h"

/* Takes the message of a node that is a member of the run. The node may be removed by it: NULL is
 * returned then. */
struct node *dpt_rdzv_take_report(struct dpt_rdzv *core, struct run *run, struct node *node,
                                  const struct inquiry *from);

#endif
