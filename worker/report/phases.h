/* The named parts of the steps of a rank, and their classes. Pure. */
#ifndef DPT_WORKER_REPORT_PHASES_H
#define DPT_WORKER_REPORT_PHASES_H

#include "worker/report/intervals.h"
#include "worker/report/scope.h"

enum report_phase {
    REPORT_PHASE_FORWARD,
    REPORT_PHASE_BACKWARD,
    REPORT_PHASE_OPTIMIZER,
    REPORT_PHASE_GRAD_SYNC, /* waits for the reduced gradient */
    REPORT_PHASE_SYNC,      /* other waits for ranks: commit, weights */
    REPORT_PHASE_DATA,
    REPORT_PHASE_SAVE,
    REPORT_PHASE_EVALUATION,
    REPORT_PHASE_FORMATION, /* a generation begins */
    REPORT_PHASES           /* none of these */
};

/* The phase of an annotation's name. dpt's and PyTorch's names. */
enum report_phase report_phase_of(const char *name);

/* The times of the phases on the thread of the steps, in the steps that count. */
struct report_phases {
    struct report_intervals of[REPORT_PHASES]; /* merged */
};

/* The caller frees *phases, also after a failure. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_phases_find(const struct report_trace *trace,
                                                const struct report_scope *scope,
                                                struct report_phases *phases, struct dpt_err *err);
void report_phases_free(struct report_phases *phases);

/* Sums; but peer_wait_ns, which the collectives give. */
struct dpt_report_phases report_phases_sum(const struct report_phases *phases);

#endif
