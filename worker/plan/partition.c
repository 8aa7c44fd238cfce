/* The partition of state and gradient (partition.h). */
#include "worker/plan/partition.h"

enum {
    PART_BYTES = 2 << 20,   /* most bytes of a part of a piece */
    DEVICE_BYTES = 32 << 20 /* on a device: bytes of the parts of all other ranks together */
};

static struct dpt_range members_of(const struct dpt_strategy_traits *traits,
                                   const struct dpt_world *world, int position)
{
    return traits->by_node ? dpt_world_node(world, position) : (struct dpt_range){0, world->size};
}

static struct dpt_waves waves_of(const struct dpt_strategy_traits *traits,
                                 const struct dpt_config *config, const struct dpt_world *world,
                                 int position)
{
    const int lanes = traits->order == DPT_ACCUMULATE_REDUCE ? 1 : world->lanes;
    const struct dpt_range members = members_of(traits, world, position);
    return (struct dpt_waves){.slots = dpt_config_slots(config),
                              .lanes = lanes,
                              .run = traits->by_node ? dpt_world_lanes(world, members)
                                                     : (struct dpt_range){0, lanes},
                              .members = members.end - members.first};
}

struct dpt_partition dpt_partition_of(const struct dpt_config *config,
                                      const struct dpt_world *world, int rank)
{
    struct dpt_partition p = {.traits = dpt_strategy_traits(config), .world = world, .rank = rank};
    p.position = dpt_world_position(world, rank);
    p.host = dpt_world_host(world, p.position);
    p.group = p.traits.state == DPT_STATE_PER_NODE ? dpt_world_node(world, p.position)
                                                   : (struct dpt_range){0, world->size};
    p.members = members_of(&p.traits, world, p.position);
    p.waves = waves_of(&p.traits, config, world, p.position);
    p.crosses = p.members.end - p.members.first < world->size;
    p.by_host = !p.traits.on_device || (world->size > 1 && !p.traits.by_nccl);
    p.shadow_shift = p.traits.shadow ? dpt_shadow_shift(world) : 0;
    p.shadow_holder = dpt_shadow_holder(world, p.shadow_shift, p.position);
    p.shadow_source = dpt_shadow_source(world, p.shadow_shift, p.position);
    return p;
}

static struct dpt_shard held_by_first(int position)
{
    return position == 0 ? (struct dpt_shard){0, 1} : DPT_SHARD_EMPTY;
}

struct dpt_shard dpt_partition_held(const struct dpt_partition *p, int position)
{
    if (p->traits.state == DPT_STATE_FIRST)
        return held_by_first(position);
    if (p->traits.state == DPT_STATE_REPLICATED)
        return (struct dpt_shard){0, 1};
    if (p->traits.state == DPT_STATE_SHARDED)
        return (struct dpt_shard){p->world->rank_of_position[position], p->world->size};
    const struct dpt_range node = dpt_world_node(p->world, position);
    return (struct dpt_shard){position - node.first, node.end - node.first};
}

struct dpt_shard dpt_partition_added(const struct dpt_partition *p, int position)
{
    if (p->traits.state == DPT_STATE_FIRST)
        return held_by_first(position);
    return p->traits.by_node
               ? dpt_partition_held(p, position)
               : (struct dpt_shard){p->world->rank_of_position[position], p->world->size};
}

struct dpt_shard dpt_partition_largest_added(const struct dpt_partition *p)
{
    return p->traits.state == DPT_STATE_FIRST
               ? (struct dpt_shard){0, 1}
               : (struct dpt_shard){0, p->members.end - p->members.first};
}

struct dpt_shard dpt_partition_crossed(const struct dpt_partition *p, int position)
{
    const struct dpt_shard own = dpt_partition_held(p, position);
    int index = 0;
    for (int k = 0; k < p->world->size; k++) {
        const struct dpt_shard other = dpt_partition_held(p, k);
        const int difference = other.index * own.of - own.index * other.of;
        index += difference < 0 || (difference == 0 && k < position);
    }
    return (struct dpt_shard){index, p->world->size};
}

/* Bytes of a part that `ranks` ranks exchange; a rank may stage the parts of all others. On a
 * device each part is an NCCL operation, so parts are larger. */
static int64_t part_bytes_of(const struct dpt_partition *p, int ranks)
{
    const int64_t share = DEVICE_BYTES / (ranks > 1 ? ranks - 1 : 1);
    return p->traits.on_device && share > PART_BYTES ? share : PART_BYTES;
}

struct dpt_interval dpt_part_of(struct dpt_interval piece, int64_t block, int part, int n)
{
    if (piece.end <= piece.first)
        return (struct dpt_interval){0, 0};
    const struct dpt_interval range = dpt_layout_piece(piece.end - piece.first, block, n, part);
    return (struct dpt_interval){piece.first + range.first, piece.first + range.end};
}

/* The number of parts that a piece is cut into; at least 1. */
static int count_parts(struct dpt_interval piece, int64_t part_bytes)
{
    const int64_t most = part_bytes / (int64_t)sizeof(float), numel = piece.end - piece.first;
    return numel > most ? (int)((numel + most - 1) / most) : 1;
}

int dpt_partition_parts(const struct dpt_partition *p, const struct dpt_grid *ranges, int range)
{
    const int members = p->members.end - p->members.first;
    return members == 1
               ? 1
               : count_parts(dpt_shard_piece(ranges, dpt_partition_largest_added(p), range),
                             part_bytes_of(p, members));
}

int dpt_partition_cross_parts(const struct dpt_partition *p, const struct dpt_grid *grid, int unit)
{
    const struct dpt_shard largest = {0, p->world->size};
    return count_parts(dpt_shard_piece(grid, largest, unit), part_bytes_of(p, p->world->size));
}

struct dpt_interval dpt_partition_crossing(const struct dpt_partition *p,
                                           const struct dpt_grid *grid, int from,
                                           struct dpt_shard crossed, int unit, int part)
{
    return dpt_interval_intersect(dpt_shard_piece(grid, dpt_partition_held(p, from), unit),
                                  dpt_part_of(dpt_shard_piece(grid, crossed, unit), grid->block,
                                              part, dpt_partition_cross_parts(p, grid, unit)));
}

int dpt_partition_node_sums(const struct dpt_partition *p, int position,
                            struct dpt_range ret[DPT_COVER_MAX])
{
    const struct dpt_range node = dpt_world_node(p->world, position);
    return dpt_tree_cover(p->world->lanes, dpt_world_lanes(p->world, node), ret);
}

bool dpt_partition_is_far(const struct dpt_partition *p, int position)
{
    return position < p->host.first || position >= p->host.end;
}

bool dpt_partition_is_staged(const struct dpt_partition *p, int position)
{
    return p->traits.on_device || dpt_partition_is_far(p, position);
}

struct dpt_assignment dpt_partition_assign(const struct dpt_config *config,
                                           const struct dpt_world *world, int position)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    if (traits.route == DPT_GRADIENT_LANES) {
        const struct dpt_waves alone = {.slots = dpt_config_slots(config),
                                        .lanes = world->lanes,
                                        .run =
                                            dpt_position_lanes(world->lanes, world->size, position),
                                        .members = 1};
        return dpt_waves_assign(&alone, 0);
    }
    const struct dpt_waves waves = waves_of(&traits, config, world, position);
    return dpt_waves_assign(&waves, position - members_of(&traits, world, position).first);
}
