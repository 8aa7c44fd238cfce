/* Lost ranks and their neighbours (bench_rdzv_lost.h). */
#include "worker/bench/bench_rdzv_lost.h"

#include "rendezvous/proto/links.h"

int32_t rdzv_lost_neighbour(const struct rdzv_lost *lost, uint32_t rank)
{
    uint32_t links[DPT_LINKS_MAX];
    if (dpt_links_are_mesh(lost->world))
        return lost->first;
    const int n = dpt_links_of(lost->world, rank, links);
    for (int i = 0; i < n; i++)
        if (lost->ranks[links[i]])
            return (int32_t)links[i];
    return -1;
}
