/* Files whose heads cannot be read beside windows that can be reported. */
#ifndef DPT_WORKER_REPORT_DAMAGED_H
#define DPT_WORKER_REPORT_DAMAGED_H

#include "worker/report/found.h"

/* The windows that a command reports. */
struct report_wanted {
    bool replicated, sharded; /* strategies that replicate, that divide the training state */
    bool newest_only;         /* the newest of each strategy */
};

/* Warns of each damaged file that is of no window that is reported: its path names another
 * strategy, or the newest window has a later file of its rank. If another file is damaged, returns
 * its error. After report_group_windows. */
DPT_MUST_USE enum dpt_status report_settle_damaged(const struct report_found *found,
                                                   const struct report_wanted *wanted,
                                                   struct dpt_err *err);

#endif
