/* The largest worlds. Every limit on ranks and nodes derives from these numbers. */
#ifndef DPT_BASE_WORLD_LIMITS_H
#define DPT_BASE_WORLD_LIMITS_H

enum {
    DPT_WORLD_MAX = 131072, /* ranks of one generation, as the control plane can form it */
    DPT_NODES_MAX = 65536,  /* nodes of one run */
    /* Ranks that connect each with every other. The data plane has no larger worlds, and a plan of
     * such a world names all ranks. */
    DPT_MESH_MAX = 1024
};

#endif
