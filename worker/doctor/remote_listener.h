/* `dpt-doctor net --listen` on another machine, started by a command such as ssh:
 *
 *   SHELL ADDRESS dpt-doctor net --listen 0 --bind ADDRESS --for S --until-eof
 *
 * The program there has the path of this one. It listens until its standard input ends, which the
 * command connects with a pipe of this process, so it ends when this process does. */
#ifndef DPT_WORKER_DOCTOR_REMOTE_LISTENER_H
#define DPT_WORKER_DOCTOR_REMOTE_LISTENER_H

#include "base/err.h"
#include "worker/doctor/matrix.h"

#include <stdint.h>
#include <sys/types.h>

enum { DPT_REMOTE_LINE_BYTES = 256, DPT_REMOTE_START_MS = 30000, DPT_REMOTE_END_MS = 3000 };

struct dpt_remote {
    pid_t pid;   /* of the command; 0: not started */
    int in, out; /* its standard input and output */
    char said[DPT_REMOTE_LINE_BYTES];
    size_t n_said;
    int port;                       /* where it listens; 0: not known */
    char why[DPT_MATRIX_WHY_BYTES]; /* why it does not listen; "": it does, or may still */
};

/* Starts the command. shell: words of sh(1). address: numeric. for_s: the listener ends by itself
 * after this time. An error is in ret->why. */
void dpt_remote_start(const char *shell, const char *address, int64_t for_s,
                      struct dpt_remote *ret);

/* Waits until each command that was started has told its port or has ended, at most until
 * deadline_ms (of dpt_now_ms). n: at most DPT_MATRIX_NODES_MAX. Blocks. */
void dpt_remote_await(struct dpt_remote *remotes, int n, int64_t deadline_ms);

/* Lets the listeners end. Waits until the commands have closed their output, at most
 * DPT_REMOTE_END_MS, and ends those that still run. Blocks. */
void dpt_remote_end(struct dpt_remote *remotes, int n);

#endif
