/* What a server needs of a journal: the records of the core (core.h), made durable before the
 * messages of their turn leave. rendezvous/store keeps one in SQLite; tests have others.
 *
 * The functions are called by the thread of the server. `ctx` is their first argument. */
#ifndef DPT_RENDEZVOUS_CORE_JOURNAL_H
#define DPT_RENDEZVOUS_CORE_JOURNAL_H

#include "rendezvous/core/core.h"

struct dpt_journal {
    void *ctx; /* borrowed */
    /* Gives the records of earlier servers to `core`, which has made no step yet. DPT_ECORRUPT: the
     * journal is damaged. */
    enum dpt_status (*restore)(void *ctx, struct dpt_rdzv *core, struct dpt_err *err);
    /* Takes a copy of the record for the next commit. DPT_ENOSPC: too many records wait, because
     * commits have failed for too long. */
    enum dpt_status (*add)(void *ctx, const struct dpt_rdzv_record *record, struct dpt_err *err);
    /* Makes all records since the last commit durable, all or none of them. DPT_ENOSPC, DPT_EIO:
     * none is durable yet, all are kept, and the commit may be tried again. Any other failure ends
     * the server. */
    enum dpt_status (*commit)(void *ctx, struct dpt_err *err);
};

#endif
