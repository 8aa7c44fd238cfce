/* Signals that ask a program to end. */
#ifndef DPT_BASE_SIGNALS_H
#define DPT_BASE_SIGNALS_H

#include "base/err.h"

#include <signal.h>

/* The end signals are SIGTERM, SIGINT, SIGQUIT (Ctrl-\), and SIGHUP (the terminal or the connection
 * is closed). */

enum { DPT_SIGNALS_LINE_S = 1 }; /* longest wait of an end for standard output */

/* From now on an end signal that is neither ignored now nor blocked when it arrives ends the
 * process at once with this exit code, after writing `line` to standard output. `line` has its
 * newline, is shorter than PIPE_BUF, and is borrowed for the life of the process. A second signal
 * of the same kind has its default effect. */
DPT_MUST_USE enum dpt_status dpt_signals_end_at_once(const char *line, int exit_code,
                                                     struct dpt_err *err);

/* Fills *ret with the end signals and blocks them in the calling thread, so that a signalfd reads
 * them there. Later threads inherit the mask. Threads that were started earlier, such as those of
 * CUDA's driver, do not block them: a signal to such a thread is sent on to the calling thread.
 * When the calling thread unblocks them, they have their former effect. A SIGHUP that is ignored
 * when the program starts, as by nohup(1), stays ignored. Writes to a closed pipe, or beyond the
 * largest size of a file (ulimit -f), fail from then on instead of ending the process. */
DPT_MUST_USE enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err);

#endif
