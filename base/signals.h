/* Signals that ask a program to end. */
#ifndef DPT_BASE_SIGNALS_H
#define DPT_BASE_SIGNALS_H

#include "base/err.h"

#include <signal.h>

/* The signals that end a program: SIGTERM, SIGINT, SIGQUIT (Ctrl-\), and SIGHUP (the terminal or
 * the connection is gone). */

enum { DPT_SIGNALS_LINE_S = 1 }; /* standard output that takes nothing holds up an end so long */

/* From now on those that are neither ignored now nor blocked when they come end the process at once
 * with this exit code, after writing `line` to standard output. `line` has its newline, is shorter
 * than PIPE_BUF, and is kept. A second signal of the same kind ends the process as if this had not
 * been called. */
DPT_MUST_USE enum dpt_status dpt_signals_end_at_once(const char *line, int exit_code,
                                                     struct dpt_err *err);

/* Fills *ret with them and blocks them in the calling thread, so that a signalfd reads them there.
 * Threads inherit the mask. A thread that was started earlier does not block them, such as those of
 * CUDA's driver: what such a thread gets is sent on to the calling thread. When the calling thread
 * unblocks them, they do what they did before this call. A SIGHUP that is ignored when the program
 * starts, as nohup(1) leaves it, stays so. Writes to a closed pipe, or beyond the largest size of a
 * file (ulimit -f), fail from then on instead of ending the process. */
DPT_MUST_USE enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err);

#endif
