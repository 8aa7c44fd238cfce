/* The config key that shortens a step, and the sentence that names it. Pure.
 *
 * A remedy is advised only if the run does not have it, if its other keys allow it, and if it saves
 * time on its hosts. What the traces do not say is taken as possible. */
#ifndef DPT_WORKER_REPORT_REMEDY_H
#define DPT_WORKER_REPORT_REMEDY_H

#include "worker/report/verdict.h"

enum { REPORT_REMEDY_BYTES = 256 };

struct report_remedy {
    const char *key;
    char text[REPORT_REMEDY_BYTES]; /* without the full stop */
};

/* The remedy of verdict->cause. */
void report_remedy_find(const struct dpt_report_verdict *verdict,
                        const struct report_verdict_facts *facts, struct report_remedy *ret);

/* Writes all remedies of exposed communication, "a larger batch (train.global_batch), …". */
void report_remedies_of_communication(const struct report_run_times *run, char *text, size_t bytes);

#endif
