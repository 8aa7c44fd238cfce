/* Counters and lists that save scans of all nodes of a run: for the files of rendezvous/core
 * only. */
#ifndef DPT_RENDEZVOUS_CORE_TALLY_H
#define DPT_RENDEZVOUS_CORE_TALLY_H

#include "rendezvous/core/run_state.h"

/* Puts `rank` into the counters of its run (by = 1), or takes it out before a change (by = -1). */
void dpt_rdzv_count_rank(struct rank *rank, int by);
/* Counts all ranks anew, after a change of the plan or of the generation. */
void dpt_rdzv_count_all_ranks(struct run *run);
/* Sets readiness and ready_since_ms from the phases of the node's ranks. */
void dpt_rdzv_note_readiness(struct node *node);
/* At a TICK: nodes with READY_SOME whose other ranks have had timeout_ms become READY_LATE. */
void dpt_rdzv_note_late_nodes(struct run *run);
/* After deadlines have moved: no node is READY_LATE. */
void dpt_rdzv_forget_late_nodes(struct run *run);

/* Appends the node to a list, or moves it to the end. */
void dpt_rdzv_list_last(struct node *node, enum node_list list);
/* Takes the node out of a list, if it is there. */
void dpt_rdzv_list_remove(struct node *node, enum node_list list);
/* The connection over which the node speaks; 0: it is broken. */
void dpt_rdzv_set_conn(struct node *node, uint64_t conn);

#endif
