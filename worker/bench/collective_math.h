/* Sizes, values and rates of dpt-bench collectives, as nccl-tests defines them
 * (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md). Pure. */
#ifndef DPT_WORKER_BENCH_COLLECTIVE_MATH_H
#define DPT_WORKER_BENCH_COLLECTIVE_MATH_H

#include "base/err.h"
#include "worker/plan/pattern.h"

#include <stdint.h>

/* algbw is size / time. busbw is algbw times this factor: the rate of the slowest link that the
 * operation needs, so that it can be compared with the hardware's, for any number of ranks. */
double collective_bus_factor(enum dpt_collective collective, int n_ranks);

/* "4096", "1K", "26M", "1G", in units of 1024. DPT_EINVAL: the text is no size from min to max. */
DPT_MUST_USE enum dpt_status collective_parse_size(const char *text, int64_t min, int64_t max,
                                                   int64_t *ret_bytes, struct dpt_err *err);

/* Sizes from begin to end, each `factor` times the one before. Returns their number, at most
 * `max`. */
int collective_sizes(int64_t begin, int64_t end, int64_t factor, int64_t *ret, int max);

/* The elements (floats) of the vector for a size in bytes, at most as many as fit. Where each rank
 * has an equal share, a share is a multiple of 16 bytes. */
int64_t collective_numel(enum dpt_collective collective, int n_ranks, int64_t bytes);
/* The number in column `count`: elements that a rank gives (all_gather) or receives
 * (reduce_scatter), else of the vector. */
int64_t collective_count(enum dpt_collective collective, int n_ranks, int64_t numel);

/* Writes this rank's values: small integers, so that every order of addition has the same sum. */
void collective_fill(float *vector, int64_t numel, int rank);

/* The number of wrong elements in a rank's result. Elements that the collective does not define are
 * not compared. */
struct collective_result {
    enum dpt_collective collective;
    int n_ranks, rank, root;
    const float *vector; /* [numel] */
    int64_t numel;
};
int64_t collective_wrong(const struct collective_result *result);

#endif
