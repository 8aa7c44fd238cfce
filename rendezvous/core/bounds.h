/* What machines have taken of the server: answers to questions, for status.c; lines of the log, for
 * reply.c. */
#ifndef DPT_RENDEZVOUS_CORE_BOUNDS_H
#define DPT_RENDEZVOUS_CORE_BOUNDS_H

#include "base/log.h"
#include "rendezvous/core/core.h"

enum { ANSWERED_MAX = 32 }; /* in a second */

/* Questions of operators that were answered in the present second, and the keys of their
 * machines. */
struct answered {
    int n;
    uint8_t keys[ANSWERED_MAX][DPT_RDZV_KEY_BYTES];
};
struct status_answers {
    int64_t since_ms;
    struct answered of_definers, of_others; /* of machines that may define any run, of others */
    struct dpt_log_bound unanswered;
};

/* Refused nodes since `since_ms`. */
struct refused_lines {
    int64_t since_ms;
    uint64_t n;
};

#endif
