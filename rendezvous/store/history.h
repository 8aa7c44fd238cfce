/* The history in a journal, for people and programs. */
#ifndef DPT_RENDEZVOUS_STORE_HISTORY_H
#define DPT_RENDEZVOUS_STORE_HISTORY_H

#include "base/err.h"

#include <stdbool.h>
#include <stdio.h>

struct dpt_history_options {
    const char *dir; /* the state folder of a server, which may be running */
    const char *run; /* runs of this name only; NULL: all */
    bool json;       /* one JSON object; else text */
};

/* Writes runs with their generations, failures, checkpoints and nodes to `out`, oldest first.
 * Changes nothing. The caller checks `out` for errors. DPT_ENOENT: there is no journal, or no such
 * run. The refusals of dpt_store_open but DPT_EEXIST. */
DPT_MUST_USE enum dpt_status dpt_store_history(const struct dpt_history_options *options, FILE *out,
                                               struct dpt_err *err);

#endif
