/* Nodes, hosts, racks and shadows of a world (world.h). */
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

/* The number of positions whose entry differs from the entry `shift` positions after; of no list
 * 0. */
static int count_crossing(const struct dpt_world *world, const int *of_position, int shift)
{
    int n = 0;
    for (int p = 0; of_position != NULL && p < world->size; p++)
        n += of_position[p] != of_position[(p + shift) % world->size];
    return n;
}

/* A shift of half of the positions, rounded down, has the largest number of all three kinds at
 * once: no run of at most half of the positions has a position at that distance from another one,
 * and of a larger run as many leave it as are outside. So the largest sum has them, too. */
int dpt_shadow_shift(const struct dpt_world *world)
{
    int best = 0, most = 0;
    for (int shift = 1; shift < world->size; shift++) {
        const int n = count_crossing(world, nodes_of(world), shift) +
                      count_crossing(world, world->rack_of_position, shift) +
                      count_crossing(world, world->host_of_position, shift);
        if (n > most) {
            best = shift;
            most = n;
        }
    }
    return best;
}

/* The position `by` places after `position`, cyclically; -1: it is on the same node. */
static int position_on_other_node(const struct dpt_world *world, int position, int by)
{
    const int other = (position + by) % world->size;
    return nodes_of(world)[other] != nodes_of(world)[position] ? other : -1;
}

int dpt_shadow_holder(const struct dpt_world *world, int shift, int position)
{
    return position_on_other_node(world, position, shift);
}

int dpt_shadow_source(const struct dpt_world *world, int shift, int position)
{
    return position_on_other_node(world, position, world->size - shift);
}
