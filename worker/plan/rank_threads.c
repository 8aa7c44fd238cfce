/* Cores assigned to ranks: see rank_threads.h. */
#include "worker/plan/rank_threads.h"

#include "base/err.h"
#include "worker/plan/lanes.h"

#include <stdbool.h>

static bool share_cores(const struct dpt_rank_cores *a, const struct dpt_rank_cores *b)
{
    return a->host == b->host && a->id == b->id;
}

int dpt_rank_threads_sharers(const struct dpt_rank_cores *ranks, int end, int rank)
{
    int n = 0;
    for (int i = 0; i < end; i++)
        n += share_cores(&ranks[i], &ranks[rank]);
    return n;
}

int dpt_rank_threads(const struct dpt_rank_cores *ranks, int n, int rank, int most)
{
    DPT_ASSERT(rank >= 0 && rank < n && most >= 1);
    int threads = ranks[rank].asked;
    if (threads <= 0) {
        const struct dpt_range share = dpt_share(ranks[rank].cores > 0 ? ranks[rank].cores : 1,
                                                 dpt_rank_threads_sharers(ranks, n, rank),
                                                 dpt_rank_threads_sharers(ranks, rank, rank));
        threads = share.end - share.first;
    }
    return threads < 1 ? 1 : threads > most ? most : threads;
}

int dpt_rank_threads_near(const struct dpt_rank_cores *ranks, int n,
                          const struct dpt_rank_cores *own, int most)
{
    int threads = 0;
    for (int i = 0; i < n; i++)
        if (share_cores(&ranks[i], own))
            threads += dpt_rank_threads(ranks, n, i, most);
    return threads;
}
