/* Which lost rank a rank that stays names, in dpt-bench rdzv. A rank notices the end of its own
 * connections; the others hear of it from their neighbours. Pure. */
#ifndef DPT_WORKER_BENCH_BENCH_RDZV_LOST_H
#define DPT_WORKER_BENCH_BENCH_RDZV_LOST_H

#include <stdbool.h>
#include <stdint.h>

struct rdzv_lost {
    uint32_t world;
    const bool *ranks; /* (world) those that are lost */
    int32_t first;     /* the one of which a rank hears that has lost no neighbour */
};

/* The lost rank to which rank `rank` has a link (rendezvous/proto/links.h): in a mesh lost->first;
 * -1: there is none. In the plans of dpt-bench rdzv ranks are positions. */
int32_t rdzv_lost_neighbour(const struct rdzv_lost *lost, uint32_t rank);

#endif
