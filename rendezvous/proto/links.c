/* The ring and the tree of links.h. */
#include "rendezvous/proto/links.h"

#include "base/err.h"

int dpt_links_of(uint32_t world_size, uint32_t position, uint32_t ret[DPT_LINKS_MAX])
{
    int n = 0;
    DPT_ASSERT(world_size >= 2 && position < world_size);
    ret[n++] = (position + world_size - 1) % world_size;
    ret[n++] = (position + 1) % world_size;
    if (position > 0)
        ret[n++] = (position - 1) / 2;
    for (uint32_t child = 2 * position + 1; child <= 2 * position + 2 && child < world_size;
         child++)
        ret[n++] = child;
    return n;
}
