/* Words and memory of the figures (figures.h). */
#include "worker/report/figures.h"

#include <stdlib.h>

const char *dpt_report_collective_word(enum dpt_report_collective_kind kind)
{
    static const char *const words[REPORT_COLLECTIVES] = {
        [REPORT_ALL_REDUCE] = "all_reduce",
        [REPORT_REDUCE_SCATTER] = "reduce_scatter",
        [REPORT_ALL_GATHER] = "all_gather",
        [REPORT_BROADCAST] = "broadcast",
        [REPORT_ALL_TO_ALL] = "all_to_all",
        [REPORT_SEND_RECV] = "send_recv",
        [REPORT_OTHER_COLLECTIVE] = "other_collective",
    };
    return words[kind];
}

const char *dpt_report_cause_word(enum dpt_report_cause cause)
{
    static const char *const words[REPORT_CAUSES] = {
        [REPORT_COMPUTE] = "compute",
        [REPORT_COMMUNICATION] = "communication",
        [REPORT_STRAGGLER] = "straggler",
        [REPORT_IMBALANCE] = "imbalance",
        [REPORT_DATA] = "data",
        [REPORT_CHECKPOINT] = "checkpoint",
        [REPORT_EVALUATION] = "evaluation",
    };
    return words[cause];
}

void dpt_report_free(struct dpt_report *report)
{
    for (size_t r = 0; r < report->n_ranks; r++) {
        free(report->ranks[r].path);
        free(report->ranks[r].step_ns);
        free(report->ranks[r].step);
        free(report->ranks[r].memory.points);
        free(report->ranks[r].spans);
    }
    free(report->ranks);
    *report = (struct dpt_report){0};
}
