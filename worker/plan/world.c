/* Nodes, hosts and shadows of a world (world.h). */
#include "worker/plan/world.h"

#include "base/err.h"

/* The run of equal entries around `position`. */
static struct dpt_range run_of(const struct dpt_world *world, const int *of_position, int position)
{
    DPT_ASSERT(position >= 0 && position < world->size);
    struct dpt_range run = {position, position + 1};
    while (run.first > 0 && of_position[run.first - 1] == of_position[position])
        run.first--;
    while (run.end < world->size && of_position[run.end] == of_position[position])
        run.end++;
    return run;
}

static const int *nodes_of(const struct dpt_world *world)
{
    return world->node_of_position ? world->node_of_position : world->host_of_position;
}

int dpt_world_position(const struct dpt_world *world, int rank)
{
    int position = 0;
    while (world->rank_of_position[position] != rank) {
        position++;
        DPT_ASSERT(position < world->size);
    }
    return position;
}

struct dpt_range dpt_world_node(const struct dpt_world *world, int position)
{
    return run_of(world, nodes_of(world), position);
}

struct dpt_range dpt_world_host(const struct dpt_world *world, int position)
{
    return run_of(world, world->host_of_position, position);
}

struct dpt_range dpt_world_lanes(const struct dpt_world *world, struct dpt_range positions)
{
    return (struct dpt_range){
        dpt_position_lanes(world->lanes, world->size, positions.first).first,
        dpt_position_lanes(world->lanes, world->size, positions.end - 1).end,
    };
}

int dpt_shadow_shift(const struct dpt_world *world)
{
    int best = 0, most_nodes = 0, most_hosts = 0;
    for (int shift = 1; shift < world->size; shift++) {
        int nodes = 0, hosts = 0;
        for (int p = 0; p < world->size; p++) {
            const int to = (p + shift) % world->size;
            nodes += nodes_of(world)[p] != nodes_of(world)[to];
            hosts += world->host_of_position[p] != world->host_of_position[to];
        }
        if (nodes > most_nodes || (nodes == most_nodes && hosts > most_hosts)) {
            best = shift;
            most_nodes = nodes;
            most_hosts = hosts;
        }
    }
    return best;
}

/* The position `by` places after `position`, cyclically; -1: it is on the same node. */
static int across(const struct dpt_world *world, int position, int by)
{
    const int other = (position + by) % world->size;
    return nodes_of(world)[other] != nodes_of(world)[position] ? other : -1;
}

int dpt_shadow_holder(const struct dpt_world *world, int shift, int position)
{
    return across(world, position, shift);
}

int dpt_shadow_source(const struct dpt_world *world, int shift, int position)
{
    return across(world, position, world->size - shift);
}
