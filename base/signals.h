/* Signals that ask a program to end. */
#ifndef DPT_BASE_SIGNALS_H
#define DPT_BASE_SIGNALS_H

#include "base/err.h"

#include <signal.h>

/* The end signals are SIGTERM, SIGINT, SIGQUIT (Ctrl-\), and SIGHUP (the terminal or the connection
 * is closed). */

enum { DPT_SIGNALS_LINE_S = 1 }; /* an end waits at most this long for standard output */

/* From now on an end signal ends the process at once with this exit code, after `line` is written
 * to standard output. This holds for signals that are not ignored now, and not blocked when they
 * arrive. `line` includes its newline, is shorter than PIPE_BUF, and is borrowed for the life of
 * the process. A second signal of the same kind has its default effect. */
DPT_MUST_USE enum dpt_status dpt_signals_end_at_once(const char *line, int exit_code,
                                                     struct dpt_err *err);

/* Fills *ret with the end signals and blocks them in the calling thread, so that a signalfd there
 * reads them. Threads that start later inherit the mask. Threads that started earlier, such as
 * those of CUDA's driver, do not block the signals; a signal that reaches such a thread is sent on
 * to the calling thread. When the calling thread unblocks the signals, they have their former
 * effect. A SIGHUP that is ignored when the program starts, as by nohup(1), stays ignored. From now
 * on a write to a closed pipe, or beyond the largest size of a file (ulimit -f), fails instead of
 * ending the process. */
DPT_MUST_USE enum dpt_status dpt_signals_block_ends(sigset_t *ret, struct dpt_err *err);

#endif
