/* "Allocated vs Estimated": the memory of a rank that the formulas give beside the memory that it
 * has, by category, as a table for a person. Pure. */
#ifndef DPT_WORKER_STRATEGY_MEMORY_MEMORY_REPORT_H
#define DPT_WORKER_STRATEGY_MEMORY_MEMORY_REPORT_H

#include "base/account.h"

/* Bytes of a rank's host memory. */
struct dpt_memory_report {
    int64_t estimated[DPT_MEMORY_COUNT];                         /* memory_formula.h */
    int64_t allocated[DPT_MEMORY_COUNT], peak[DPT_MEMORY_COUNT]; /* by dpt's account */
    int64_t allocated_all, peak_all;
    int64_t reserved, reserved_peak; /* whole pages that the system gave for the allocations */
    int64_t true_peak; /* VmHWM of the process less the pages of other ranks; 0: not known */
};

/* Prints the table: one call of `line` for each line, without a newline. MB are 2^20 bytes. */
void dpt_memory_report_print(const struct dpt_memory_report *report,
                             void (*line)(void *ctx, const char *text), void *ctx);

/* The running line of a rank, in MB of 2^20 bytes:
 * "[Rank 0] model=474.7 grad=474.7 optim=949.4 alloc=… reserved=… peak_alloc=… peak_reserved=…". */
enum { DPT_MEMORY_LINE_BYTES = 256 };
void dpt_memory_line(int rank, const struct dpt_memory_use *use, char ret[DPT_MEMORY_LINE_BYTES]);

#endif
