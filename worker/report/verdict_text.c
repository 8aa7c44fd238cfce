/* The paragraph of a verdict (verdict.h). */
#include "worker/report/remedy.h"

#include <stdio.h>

/* The text after "The bottleneck is ". */
static void write_finding(const struct dpt_report_verdict *v,
                          const struct report_verdict_facts *facts, char *text, size_t bytes)
{
    switch (v->cause) {
    case REPORT_COMMUNICATION:
        (void)snprintf(text, bytes, "communication that computation does not hide");
        break;
    case REPORT_STRAGGLER:
        (void)snprintf(text, bytes,
                       "rank %d, a straggler: it computes longer than the other ranks, which wait "
                       "for it",
                       v->rank);
        break;
    case REPORT_IMBALANCE:
        if (facts->work_excess_percent >= REPORT_WORK_EXCESS_PERCENT)
            (void)snprintf(text, bytes,
                           "imbalance: the last rank of a step has %.0f %% more work than the "
                           "others, which wait for it",
                           facts->work_excess_percent);
        else
            (void)snprintf(text, bytes,
                           "imbalance: a different rank is late in each step, and the others wait "
                           "for it");
        break;
    case REPORT_DATA:
        if (facts->is_of_one_rank)
            (void)snprintf(text, bytes,
                           "data: rank %d waits for its micro-batches, and the others wait for it",
                           v->rank);
        else
            (void)snprintf(text, bytes, "data: the ranks wait for their micro-batches");
        break;
    case REPORT_CHECKPOINT:
        (void)snprintf(text, bytes, "the checkpoint: training waits until it is written");
        break;
    case REPORT_EVALUATION:
        (void)snprintf(text, bytes, "the evaluation: training waits until it is over");
        break;
    case REPORT_COMPUTE:
    case REPORT_CAUSES:
        (void)snprintf(text, bytes, "computation: no other part takes %.0f %% of the step",
                       REPORT_CAUSE_PERCENT);
        break;
    }
}

void report_verdict_write(struct dpt_report_verdict *verdict,
                          const struct report_verdict_facts *facts)
{
    char finding[256], remedies[256];
    struct report_remedy remedy;
    report_remedy_find(verdict, facts, &remedy);
    write_finding(verdict, facts, finding, sizeof finding);
    (void)snprintf(verdict->key, sizeof verdict->key, "%s", remedy.key);
    (void)snprintf(verdict->text, sizeof verdict->text,
                   "The bottleneck is %s. This takes %.1f ms of the mean step of %.1f ms "
                   "(%.0f %%). %s.",
                   finding, facts->lost_ms, facts->step_ms, verdict->share[verdict->cause],
                   remedy.text);
    verdict->warning[0] = '\0';
    if (verdict->exposed_percent <= REPORT_EXPOSED_WARN_PERCENT)
        return;
    report_remedies_of_communication(facts->run, remedies, sizeof remedies);
    (void)snprintf(verdict->warning, sizeof verdict->warning,
                   "%.0f %% of the step is exposed communication (more than %.0f %%). "
                   "Remedies: %s.",
                   verdict->exposed_percent, REPORT_EXPOSED_WARN_PERCENT, remedies);
}
