/* The stacks of the threads of this process, for an operator's `dpt-ctl dump`.
 *
 * A signal (SIGUSR2) asks one thread after the other. Its handler walks the thread's stack
 * (backtrace(3)) into memory of this file. A thread that blocks the signal is not asked. A
 * thread that hangs in the kernel does not answer in time. The text says so. */
#ifndef DPT_WORKER_TRAIN_LINK_STACKS_H
#define DPT_WORKER_TRAIN_LINK_STACKS_H

#include <stddef.h>
#include <stdint.h>

/* Installs the handler and loads what it needs: the first backtrace(3) allocates. Once, at the
 * start of the process. */
void dpt_stacks_prepare(void);

enum { DPT_STACKS_ANSWER_MS = 100 }; /* a thread that runs answers in far less */

/* Writes a line for each thread but the caller: "thread 17 (main): step_forward+0x1f < …", cut to
 * `bytes`. A thread that does not answer within `answer_ms`, that blocks the signal, or that
 * `time_ms` leaves no time for, has a line that says so. One caller at a time. */
void dpt_stacks_print(char *ret, size_t bytes, int64_t answer_ms, int64_t time_ms);

#endif
