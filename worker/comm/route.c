/* Links at distances that are powers of two (route.h). */
#include "worker/comm/route.h"

#include "base/err.h"

#include <stdlib.h>

int dpt_route_links(int world_size, int rank, int ret[DPT_ROUTE_LINKS_MAX])
{
    int n = 0;
    for (int far = 1; far < world_size; far *= 2)
        for (int side = 0; side < 2; side++) {
            const int peer = (rank + (side == 0 ? far : world_size - far)) % world_size;
            bool known = false;
            for (int i = 0; i < n; i++)
                known = known || ret[i] == peer;
            if (known)
                continue;
            DPT_ASSERT(n < DPT_ROUTE_LINKS_MAX);
            ret[n++] = peer;
        }
    return n;
}

bool dpt_route_is_mesh(int world_size, int mesh_max)
{
    return mesh_max == 0 || world_size <= mesh_max || world_size < 2;
}

bool dpt_route_is_link(int world_size, int a, int b)
{
    const int up = (b - a + world_size) % world_size, down = world_size - up;
    return a != b && ((up & (up - 1)) == 0 || (down & (down - 1)) == 0);
}

/* The distance from a to b along the ring, in the shorter direction: negative means downwards. */
static int ring_distance(int world_size, int a, int b)
{
    const int up = (b - a + world_size) % world_size;
    return 2 * up <= world_size ? up : up - world_size;
}

int dpt_route_next(int world_size, int rank, int to)
{
    if (dpt_route_is_link(world_size, rank, to))
        return to;
    const int d = ring_distance(world_size, rank, to);
    int step = 1;
    while (abs(abs(d) - 2 * step) < abs(abs(d) - step))
        step *= 2;
    return (rank + (d > 0 ? step : world_size - step)) % world_size;
}

int dpt_route_hops(int world_size)
{
    int most = 0;
    for (int to = 1; to < world_size; to++) { /* all ranks have the same view */
        int hops = 0;
        for (int at = 0; at != to; at = dpt_route_next(world_size, at, to))
            hops++;
        most = hops > most ? hops : most;
    }
    return most;
}
