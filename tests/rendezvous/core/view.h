/* The state of the server's state machine for tests: its runs, and the rank of a process. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_VIEW_H
#define DPT_TESTS_RENDEZVOUS_CORE_VIEW_H

#include "rendezvous/core/core.h"

/* "RUNNING", …; "?" for a value out of range. */
const char *dpt_rdzv_phase_name(enum dpt_rdzv_phase phase);

/* Whether the loss of one node costs the steps since the newest checkpoint. */
enum dpt_rdzv_redundancy {
    DPT_RDZV_REDUNDANCY_NONE,       /* some part of the state is on one node only */
    DPT_RDZV_REDUNDANCY_REBUILDING, /* copies are still being made */
    DPT_RDZV_REDUNDANCY_WHOLE,      /* every part is on two nodes at least */
    DPT_RDZV_REDUNDANCY_COUNT
};

struct dpt_rdzv_run_view {
    char run[DPT_PROTO_NAME_BYTES];
    enum dpt_rdzv_phase phase;
    uint64_t generation;
    uint64_t run_generation; /* newest generation that has run or was adopted; 0: none */
    char plan_digest[DPT_PROTO_DIGEST_BYTES]; /* "" while no plan is in force */
    uint32_t nodes, world_size, restarts_left;
    int64_t step; /* newest applied step that a member reported; -1: none */
    enum dpt_rdzv_redundancy redundancy;
    bool held;                       /* an operator has paused or stopped the run */
    char text[DPT_PROTO_TEXT_BYTES]; /* cause of this generation or of the end */
    char cause_kind[DPT_PROTO_NAME_BYTES];
};

/* The number of known runs; the view of run `i`. */
size_t dpt_rdzv_runs(const struct dpt_rdzv *core);
void dpt_rdzv_run_view(const struct dpt_rdzv *core, size_t i, struct dpt_rdzv_run_view *ret);

struct dpt_rdzv_process {
    const char *run, *node;
    uint64_t incarnation;
    uint32_t local_rank, spawn;
};
/* The process's rank in the plan in force; -1: none. For the simulator. */
int dpt_rdzv_rank_of(const struct dpt_rdzv *core, const struct dpt_rdzv_process *process);

#endif
