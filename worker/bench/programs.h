/* Starts programs of this build for benches. A program is found beside dpt-bench, and gets a
 * process group and a log file for its standard output and error. It dies with the bench. */
#ifndef DPT_WORKER_BENCH_PROGRAMS_H
#define DPT_WORKER_BENCH_PROGRAMS_H

#include "base/err.h"

#include <stdint.h>
#include <sys/types.h>

enum { BENCH_PATH_BYTES = 512 };

/* The path of program `name` in the folder of dpt-bench. DPT_ENOENT: the program is not built. */
DPT_MUST_USE enum dpt_status bench_program_find(const char *name, char ret[BENCH_PATH_BYTES],
                                                struct dpt_err *err);

/* Starts argv[0] (a path) with its output appended to `log`. The caller reaps the child. */
DPT_MUST_USE enum dpt_status bench_program_start(char *const *argv, const char *log, pid_t *ret,
                                                 struct dpt_err *err);

/* Starts dpt-rdzv with its files in folder `dir` (port, rdzv.log) and waits until it listens. Its
 * keys are there, too, and $DPT_KEY_DIR names them to programs that this process starts later.
 * `option`: one more of its options; NULL: none. DPT_EPEER: it ended; DPT_ETIMEOUT: it does not
 * listen in time; DPT_EABORTED: a signal came. The caller ends *ret_server, also after an error. */
DPT_MUST_USE enum dpt_status bench_server_start(const char *dir, const char *option,
                                                pid_t *ret_server, int *ret_port,
                                                struct dpt_err *err);

/* Starts dpt-worker as node `id` on host `host`. Its output goes to `id`.log in folder `dir`. The
 * caller reaps the child. */
enum { BENCH_SETS_MAX = 32 };
struct bench_worker {
    const char *dir, *id, *host;
    const char *config;      /* NULL: config.yaml in `dir` */
    const char *const *sets; /* [n_sets] KEY=VALUE, overrides of the config, applied in order */
    int n_sets;              /* at most BENCH_SETS_MAX */
    int port;                /* of the server */
};
DPT_MUST_USE enum dpt_status bench_worker_start(const struct bench_worker *worker, pid_t *ret,
                                                struct dpt_err *err);

/* Runs a server and a worker for each node, until all workers have ended with exit code 0. Node i
 * is n<i>: it is on host i * hosts / nodes, and its log.dir is `dir`/n<i>. `config`, `sets` (one
 * fewer than BENCH_SETS_MAX at most): see struct bench_worker. Ends every program, also after an
 * error, and then prints the ends of their output. DPT_ETIMEOUT: the run takes longer than
 * `timeout_ms`. */
enum { BENCH_NODES_MAX = 8 };
struct bench_cluster {
    const char *dir, *config;
    const char *const *sets;
    int n_sets, nodes, hosts;
    int64_t timeout_ms;
};
DPT_MUST_USE enum dpt_status bench_cluster_run(const struct bench_cluster *cluster,
                                               struct dpt_err *err);
/* Prints the end of each program's output to standard error. */
void bench_cluster_tell(const struct bench_cluster *cluster);

/* Call before any program is started. From then on SIGINT, SIGTERM and SIGHUP end waits with
 * DPT_EABORTED, so that a bench can end its programs and remove its files. Orphans of its programs
 * become its own children. */
DPT_MUST_USE enum dpt_status bench_programs_begin(struct dpt_err *err);

/* DPT_EABORTED after such a signal. */
DPT_MUST_USE enum dpt_status bench_programs_go_on(struct dpt_err *err);

/* Call after every program has ended or was killed. Waits until no process of them is left, orphans
 * included. DPT_ETIMEOUT: one is left. */
DPT_MUST_USE enum dpt_status bench_programs_end(struct dpt_err *err);

/* Waits for the child's end, until `deadline_ms` (dpt_now_ms) at most; DPT_ETIMEOUT, DPT_EABORTED.
 * `ret_status` is the status of waitpid. */
DPT_MUST_USE enum dpt_status bench_program_wait(pid_t pid, int64_t deadline_ms, int *ret_status,
                                                struct dpt_err *err);

/* Kills a child that still runs, with its process group, and reaps it; sets *pid to 0. Accepts
 * 0. */
void bench_program_kill(pid_t *pid);

/* Writes a text to train on: words of one to six letters, which a small model learns from. */
DPT_MUST_USE enum dpt_status bench_text_write(const char *path, size_t bytes, struct dpt_err *err);

/* Prints the end of a file to standard error. */
void bench_program_tell(const char *log);

#endif
