/* Names the bottleneck of a run from measured times. Pure.
 *
 * Ranks of a step wait for the last of them. So the time of a step is that of the rank with the
 * longest time of its own: its computation, its wait for data, its save, its evaluation, and the
 * transfer that nothing hides. The time by which this rank computes longer than the mean of the
 * others is lost to a straggler or to imbalance. It is imbalance if the rank had more work, or if
 * another rank is the last in each step. */
#ifndef DPT_WORKER_REPORT_VERDICT_H
#define DPT_WORKER_REPORT_VERDICT_H

#include "worker/report/times.h"

/* Steps that all ranks have traced. */
struct report_run_times {
    const struct report_step_times *at; /* [n_ranks][n_steps] */
    size_t n_ranks, n_steps;            /* each 1 or more */
    const int *rank;                    /* [n_ranks]: their numbers */
    /* Remedies depend on the following. */
    const char *strategy;
    int world_size;
    int64_t memory_peak; /* bytes, the largest of the ranks; REPORT_UNKNOWN */
    struct report_setup setup;
};

/* A cause below this share of the step is not a bottleneck: then it is compute. */
#define REPORT_CAUSE_PERCENT 10.0
/* Work below this excess is the same. */
#define REPORT_WORK_EXCESS_PERCENT 1.0

void report_verdict_find(const struct report_run_times *times, struct dpt_report_verdict *ret);

/* Writes the paragraph, the key and the warning of *verdict; the shares are known. For
 * report_verdict_find. */
struct report_verdict_facts {
    double step_ms, lost_ms;    /* mean step; the part of it that the cause takes */
    double work_excess_percent; /* work of the last rank over the mean of the others */
    bool knows_work;            /* else the excess is 0 */
    bool is_of_one_rank;        /* data: one rank waits, the others do not */
    const struct report_run_times *run;
};
void report_verdict_write(struct dpt_report_verdict *verdict,
                          const struct report_verdict_facts *facts);

#endif
