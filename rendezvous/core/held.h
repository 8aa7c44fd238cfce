/* Which training state the nodes hold together, from the reports of ranks that have quiesced: the
 * newest step that is whole, who has which part of it, and whether every part exists twice. */
#ifndef DPT_RENDEZVOUS_CORE_HELD_H
#define DPT_RENDEZVOUS_CORE_HELD_H

#include "rendezvous/core/state.h"

/* Nodes by whether they stay; sets of groups are bit sets. */
enum group {
    GROUP_STAYING = 1,
    GROUP_EXCLUDED = 2, /* for a time, after failures with a peer */
    GROUP_LEAVING = 4,
    GROUP_ALL = 7
};
enum group dpt_rdzv_group_of(const struct dpt_rdzv *core, const struct node *node);

/* Groups from which the plan is made. Excluded nodes take part where the minimum or a newer state
 * needs them, leaving nodes where they hold state that no other node and no checkpoint has. 0: too
 * few nodes. */
unsigned dpt_rdzv_admitted_groups(struct dpt_rdzv *core, const struct run *run);

/* Newest step of which the nodes of `groups`, without node `without` (NULL: none left out), hold
 * the whole state; -1: none. */
int64_t dpt_rdzv_step_held(struct dpt_rdzv *core, const struct run *run, unsigned groups,
                           const struct node *without);
/* The newest whole state of all nodes when no checkpoint that they see is as new; -1: one is. */
int64_t dpt_rdzv_step_unsaved(struct dpt_rdzv *core, const struct run *run);

/* The state from which a generation resumes. */
struct resume {
    int64_t step;                  /* completed steps; -1: no state */
    int64_t load_checkpoint;       /* >= 0: the checkpoint of `step` is loaded; -1: from memory */
    const struct rank *outcome_of; /* has the outcome of `step`; NULL: none */
    uint64_t state_generation;
    int64_t lost_step;        /* newer than `step`, and not whole; -1: none */
    struct dpt_shard missing; /* of lost_step, the lowest that no rank holds */
};
struct resume dpt_rdzv_choose_state(struct dpt_rdzv *core, const struct run *run, unsigned groups);
/* The rank holds its part of the state, or the gradient of the last step, or loads the checkpoint.
 */
bool dpt_rdzv_has_state(const struct run *run, const struct resume *resume,
                        const struct rank *rank);
/* Shards of the state that such a rank has in memory; returns their number. */
int dpt_rdzv_parts_of(const struct resume *resume, const struct rank *rank,
                      struct dpt_shard ret[DPT_PROTO_SHARDS_MAX]);
/* "shard 2 of 4 is lost with node c: going back to …"; "" when no step is lost. */
void dpt_rdzv_tell_loss(const struct run *run, const struct resume *resume,
                        char ret[DPT_PROTO_TEXT_BYTES]);

/* Sets progress.redundant and .rebuilding from what the ranks of the plan report. */
void dpt_rdzv_update_redundancy(struct dpt_rdzv *core, struct run *run);

#endif
