/* Stops a rank of the recovery bench between two messages of a commit, so that the bench can kill
 * it there. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_CATCH_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_CATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Traces the process `pid` until it is about to send a message of `bytes` bytes to a second peer
 * after one to a first peer. Leaves that thread stopped: the first peer has its message, the second
 * peer has none. Blocks for two seconds at most. False: the process did not come to this point, or
 * tracing is not permitted. The process stays traced: after its death call recover_catch_end. */
bool recover_catch(pid_t pid, size_t bytes);

/* Call after the process was killed: only then does its parent learn of its death. Blocks for five
 * seconds at most. No effect when nothing was traced. */
void recover_catch_end(void);

#endif
