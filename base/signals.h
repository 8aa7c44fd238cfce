/* Signals that ask a program to end. */
#ifndef DPT_BASE_SIGNALS_H
#define DPT_BASE_SIGNALS_H

#include "base/err.h"

#include <signal.h>

/* Fills *ret with SIGTERM, SIGINT, SIGQUIT (Ctrl-\), and SIGHUP (the terminal or the connection is
 * gone), and blocks them in the calling thread, so that a signalfd reads them. A SIGHUP that is
 * ignored when the program starts, as nohup(1) leaves it, stays so. Writes to a closed pipe, or
 * beyond the largest size of a file (ulimit -f), fail from then on instead of ending the process.
 * Call it before other threads are started, which inherit the mask. */
DPT_MUST_USE enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err);

#endif
