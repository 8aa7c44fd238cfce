/* "Allocated vs Estimated": the memory of a rank that the formulas give beside the memory that it
 * has, by category, as a table for a person. Pure. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_MEMORY_REPORT_H
#define DPT_WORKER_STRATEGY_MEMORY_MEMORY_REPORT_H

#include "base/account.h"

#include <stdbool.h>

/* Bytes of a rank's memory in one place: the host's, or a GPU's. */
struct dpt_memory_report {
    const char *place;                   /* "GPU" or "host"; NULL: the rank has one place */
    bool workspace_apart;                /* the workspace has no estimate, and a row of its own */
    int64_t estimated[DPT_MEMORY_COUNT]; /* memory_formula.h */
    int64_t allocated[DPT_MEMORY_COUNT], peak[DPT_MEMORY_COUNT]; /* by dpt's account */
    int64_t allocated_all, peak_all;
    int64_t reserved, reserved_peak; /* whole pages that the system gave for the allocations */
    int64_t true_peak; /* VmHWM of the process less the pages of other ranks; 0: not known */
};

/* Takes allocations and peaks of an account, with the estimates by tag. true_peak is 0. */
struct dpt_memory_report dpt_memory_report_of(const struct dpt_memory_use *use,
                                              const int64_t estimated[DPT_MEMORY_COUNT]);

/* Prints the table: one call of `line` for each line, without a newline. MB are 2^20 bytes. */
void dpt_memory_report_print(const struct dpt_memory_report *report,
                             void (*line)(void *ctx, const char *text), void *ctx);

/* The running line of a rank, in MB of 2^20 bytes:
 * "[Rank 0] model=474.7 grad=474.7 optim=949.4 alloc=… reserved=… peak_alloc=… peak_reserved=…". */
enum { DPT_MEMORY_LINE_BYTES = 256 };
void dpt_memory_line(int rank, const struct dpt_memory_use *use, char ret[DPT_MEMORY_LINE_BYTES]);

#endif
