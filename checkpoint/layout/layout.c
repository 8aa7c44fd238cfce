/* Intervals, grids, and the division of tensors among files (layout.h). */
#include "checkpoint/layout/layout.h"

#include "base/err.h"

struct dpt_interval dpt_interval_intersect(struct dpt_interval a, struct dpt_interval b)
{
    struct dpt_interval both = {a.first > b.first ? a.first : b.first,
                                a.end < b.end ? a.end : b.end};
    return both.first < both.end ? both : (struct dpt_interval){0, 0};
}

/* The number of runs when each run takes as many items as fit into `most` bytes. */
static int runs_needed(const int64_t *bytes, int n_items, int64_t most)
{
    int runs = 1;
    int64_t filled = 0;
    for (int i = 0; i < n_items; i++) {
        if (bytes[i] > most - filled) {
            runs++;
            filled = 0;
        }
        filled += bytes[i];
    }
    return runs;
}

/* The smallest `most` with which n_runs runs suffice. It lies between the largest item and the
 * sum. */
static int64_t least_most(const int64_t *bytes, int n_items, int n_runs)
{
    int64_t low = 0, high = 0;
    for (int i = 0; i < n_items; i++) {
        DPT_ASSERT(bytes[i] >= 0 && bytes[i] <= INT64_MAX - high);
        low = bytes[i] > low ? bytes[i] : low;
        high += bytes[i];
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (runs_needed(bytes, n_items, middle) <= n_runs)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int dpt_layout_divide(const int64_t *bytes, int n_items, int n_runs_max, int *ret_first)
{
    DPT_ASSERT(n_items >= 0 && n_runs_max >= 1);
    const int n_runs = n_items < n_runs_max ? n_items : n_runs_max;
    const int64_t most = least_most(bytes, n_items, n_runs);
    int item = 0;
    for (int run = 0; run < n_runs; run++) {
        ret_first[run] = item;
        /* Leaves one item for each later run. If this limit shortens a run, all later runs are
         * single items, none larger than `most`. */
        const int end_max = n_items - (n_runs - 1 - run);
        int64_t filled = bytes[item++];
        while (item < end_max && bytes[item] <= most - filled)
            filled += bytes[item++];
    }
    DPT_ASSERT(item == n_items);
    for (int run = n_runs; run <= n_runs_max; run++)
        ret_first[run] = n_items;
    return n_runs;
}

struct dpt_interval dpt_layout_piece(int64_t numel, int64_t block, int n, int i)
{
    DPT_ASSERT(numel >= 0 && block >= 1 && n >= 1 && i >= 0 && i < n);
    const int64_t blocks = numel / block + (numel % block != 0);
    const int64_t share = blocks / n, larger = blocks % n;
    const int64_t first = i * share + (i < larger ? i : larger);
    const int64_t end = first + share + (i < larger);
    return (struct dpt_interval){first < blocks ? first * block : numel,
                                 end < blocks ? end * block : numel};
}

int dpt_layout_owner(int64_t numel, int64_t block, int n, int64_t x)
{
    DPT_ASSERT(x >= 0 && x < numel && block >= 1 && n >= 1);
    const int64_t blocks = numel / block + (numel % block != 0);
    const int64_t share = blocks / n, larger = blocks % n, at = x / block;
    const int64_t in_larger = larger * (share + 1);
    return (int)(at < in_larger ? at / (share + 1) : larger + (at - in_larger) / share);
}
