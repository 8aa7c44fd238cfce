/* The record that a rank writes about its memory at the end of a run (rank-N.memory.json), for the
 * benches that start ranks. */
#ifndef DPT_WORKER_BENCH_MEMORY_RECORD_H
#define DPT_WORKER_BENCH_MEMORY_RECORD_H

#include <jansson.h>
#include <stdint.h>

/* The number rank[key], or rank[key][inner] unless `inner` is NULL; 0 if it is absent. */
int64_t memory_record_bytes(const json_t *rank, const char *key, const char *inner);

/* The peak that the kernel reports for the rank's process, less the pages of other ranks. */
int64_t memory_record_true_peak(const json_t *rank);

/* Prints "Allocated vs Estimated" of the rank's memory to standard output: of its GPU, if it has
 * one, and of the host. */
void memory_record_print(const json_t *rank);

#endif
