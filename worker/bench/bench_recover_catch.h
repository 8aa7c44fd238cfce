/* Catches a rank of the recovery bench between two words of a commit, for it to be killed there. */
#ifndef DPT_WORKER_BENCH_BENCH_RECOVER_CATCH_H
#define DPT_WORKER_BENCH_BENCH_RECOVER_CATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Traces the process `pid` until it is about to send `bytes` to a second peer after it has sent as
 * many to a first one, and leaves it stopped there; the first peer has what was sent to it. Blocks
 * for two seconds at most. False: it was not caught, or may not be traced. It is traced from then
 * on: after its death rec_catch_end. */
bool rec_catch(pid_t pid, size_t bytes);

/* Once it has been killed: lets its parent know. No effect when nothing was traced. */
void rec_catch_end(void);

#endif
