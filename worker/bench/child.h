/* A part of a bench in a process of its own. The memory that the part takes goes back to the system
 * with the process, and a part that the kernel ends for lack of memory leaves the bench alive. */
#ifndef DPT_WORKER_BENCH_CHILD_H
#define DPT_WORKER_BENCH_CHILD_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

/* Measures something; runs in the child. *ret is owned by the caller. */
typedef enum dpt_status (*dpt_bench_part)(const void *ctx, json_t **ret, struct dpt_err *err);

/* Forks, runs `part` in the child and waits for its end. The calling process has one thread. *ret:
 * what the part returned; the caller owns it. Errors of the part, with their status and text.
 * DPT_ENOMEM: the kernel ended the child for lack of memory: it died of SIGKILL, and the kernel's
 * counter of such ends has grown (dpt_memory_oom_kills), or there is no counter. DPT_EABORTED: the
 * child ended in another way without an answer. The child ends with the calling process. */
DPT_MUST_USE enum dpt_status dpt_bench_in_child(dpt_bench_part part, const void *ctx, json_t **ret,
                                                struct dpt_err *err);

/* Whether the error says that a part had too little memory: an allocation that failed, a rank that
 * refused for this reason, or a child that the kernel ended. */
bool dpt_bench_is_oom(const struct dpt_err *err);

#endif
