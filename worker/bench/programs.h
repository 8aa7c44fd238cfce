/* The programs of the build, started by benches: found beside dpt-bench, each in a process group of
 * its own with standard output and error in a file. A program dies with the bench. */
#ifndef DPT_WORKER_BENCH_PROGRAMS_H
#define DPT_WORKER_BENCH_PROGRAMS_H

#include "base/err.h"

#include <sys/types.h>

enum { BENCH_PATH_BYTES = 512 };

/* Path of program `name` in the folder of this one. DPT_ENOENT when it is not built. */
DPT_MUST_USE enum dpt_status bench_program_find(const char *name, char ret[BENCH_PATH_BYTES],
                                                struct dpt_err *err);

/* Starts argv[0] (a path) with its output appended to `log`. The caller reaps the child. */
DPT_MUST_USE enum dpt_status bench_program_start(char *const *argv, const char *log, pid_t *ret,
                                                 struct dpt_err *err);

/* Starts dpt-rdzv with its files in the folder `dir` (port, rdzv.log) and waits until it listens.
 * DPT_EPEER: it ended; DPT_ETIMEOUT; DPT_EABORTED. The caller ends *ret_server, on failure too. */
DPT_MUST_USE enum dpt_status bench_server_start(const char *dir, pid_t *ret_server, int *ret_port,
                                                struct dpt_err *err);

/* The port that dpt-rdzv has written to its port file; 0: none yet. */
int bench_server_port(const char *port_file);

/* Before anything is started: SIGINT and SIGTERM end bench_program_wait (DPT_EABORTED), so that a
 * bench ends what it has started and removes its files; orphans of its programs become its own. */
DPT_MUST_USE enum dpt_status bench_programs_begin(struct dpt_err *err);

/* After all that was started has ended or was killed: waits until nothing of it is left, orphans
 * included; DPT_ETIMEOUT. */
DPT_MUST_USE enum dpt_status bench_programs_end(struct dpt_err *err);

/* Waits at most until `deadline_ms` (dpt_now_ms) for the child's end; DPT_ETIMEOUT, DPT_EABORTED.
 * `ret_status` as of waitpid. */
DPT_MUST_USE enum dpt_status bench_program_wait(pid_t pid, int64_t deadline_ms, int *ret_status,
                                                struct dpt_err *err);

/* Ends a child that still runs, with its group, and reaps it; sets *pid to 0. Accepts 0. */
void bench_program_kill(pid_t *pid);

/* Writes a text to train on: words of one to six letters, which a small model learns from. */
DPT_MUST_USE enum dpt_status bench_text_write(const char *path, size_t bytes, struct dpt_err *err);

/* The end of a file, to standard error. */
void bench_program_tell(const char *log);

#endif
