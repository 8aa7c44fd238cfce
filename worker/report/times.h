/* The time of each step of each rank, divided into classes that exclude each other. Pure.
 *
 * An evaluation comes first. Then computation: a time in which a compute kernel runs is
 * computation, also if the rank communicates at the same time. Then, in this order: the wait for
 * data, the save, the wait for late peers, the transfer. The rest of the step is the rank's own
 * time, with the computation. */
#ifndef DPT_WORKER_REPORT_TIMES_H
#define DPT_WORKER_REPORT_TIMES_H

#include "worker/report/calls.h"
#include "worker/report/phases.h"

struct report_step_times {
    double step_ns;
    double own_ns; /* computation, and what the host does between its kernels */
    double data_ns, save_ns, evaluation_ns;
    double wait_ns;     /* for late peers, nothing else runs */
    double transfer_ns; /* exposed communication without that wait */
    double work;        /* positions or elements of the step's batches; 0: not known */
};

/* Fills ret[scope->n]. DPT_ENOMEM. */
DPT_MUST_USE enum dpt_status report_times_find(const struct report_trace *trace,
                                               const struct report_scope *scope,
                                               const struct report_calls *calls,
                                               const struct report_phases *phases,
                                               struct report_step_times *ret, struct dpt_err *err);

#endif
