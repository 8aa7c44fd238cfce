/* The list of a generation's memory (memory_list.h). */
#include "worker/strategy/memory/memory_list.h"

#include "worker/plan/reduce_transfers.h"
#include "worker/strategy/strategy.h"

enum { F32 = sizeof(float), SLOT_UNITS = 2 /* units whose slot gradients are held at once */ };

/* A place, and the values that follow from it. */
struct maker {
    const struct dpt_memory_place *place;
    const struct dpt_partition *part;
    const struct dpt_strategy_traits *traits;
    struct dpt_memory_list *list;
    size_t flat, width; /* elements of the flat vector; bytes of a weight */
    enum dpt_dtype dtype;
    int64_t wire;          /* bytes of an element of a gradient between hosts */
    int64_t tied, largest; /* elements of the tied unit, of the largest other one */
};

static void put_item(struct maker *m, enum dpt_memory_item item, enum dpt_memory_tag tag,
                     size_t bytes, int n)
{
    m->list->item[item] = (struct dpt_memory_entry){tag, bytes, bytes > 0 ? n : 0};
}

size_t dpt_memory_list_shard_bytes(const struct dpt_grid *grid, struct dpt_shard shard,
                                   size_t width)
{
    const int64_t numel = dpt_shard_numel(grid, shard);
    return (size_t)(numel > 0 ? numel : grid->block) * width;
}

static size_t shard_bytes(const struct maker *m, struct dpt_shard shard)
{
    return dpt_memory_list_shard_bytes(m->place->grid, shard, F32);
}

static void put_state(struct maker *m)
{
    const struct dpt_config *config = m->place->config;
    const struct dpt_shard own = dpt_partition_held(m->part, m->part->position);
    const bool has_whole = m->traits->weights != DPT_WEIGHTS_UNITS, f32 = m->dtype == DPT_F32,
               in_whole = has_whole && f32 && !m->traits->on_device;
    const int source = m->part->shadow_source;
    for (int v = 0; v < dpt_strategy_vectors(config); v++) {
        if (v != DPT_VECTOR_PARAM || !in_whole)
            put_item(m, (enum dpt_memory_item)(DPT_ITEM_OWN_PARAM + v),
                     dpt_strategy_vector_tag((enum dpt_vector)v, m->dtype), shard_bytes(m, own), 1);
        if (source >= 0)
            put_item(m, (enum dpt_memory_item)(DPT_ITEM_SHADOW_PARAM + v), DPT_MEMORY_SHADOW,
                     shard_bytes(m, dpt_partition_held(m->part, source)), 1);
    }
    if (has_whole)
        put_item(m, DPT_ITEM_WHOLE, DPT_MEMORY_WEIGHTS, m->flat * m->width, 1);
    else if (!f32)
        put_item(m, DPT_ITEM_COPY, DPT_MEMORY_WEIGHTS,
                 dpt_memory_list_shard_bytes(m->place->grid, own, m->width), 1);
    if (has_whole || own.of == 1)
        return;
    put_item(m, DPT_ITEM_GATHERED_TIED, DPT_MEMORY_GATHERED, (size_t)m->tied * m->width, 1);
    put_item(m, DPT_ITEM_GATHERED, DPT_MEMORY_GATHERED, (size_t)m->largest * m->width,
             dpt_strategy_gathered_places(config, m->place->model));
}

/* Lists the stack of this rank's lanes: on the device that adds them, and also in the host's memory
 * if they are reduced there. */
static void put_lanes(struct maker *m)
{
    const struct dpt_world *world = m->part->world;
    const struct dpt_model *model = m->place->model;
    const struct dpt_config *config = m->place->config;
    const struct dpt_range own = dpt_position_lanes(world->lanes, world->size, m->part->position);
    if (m->part->by_host) {
        put_item(m, DPT_ITEM_LANE_FIRST, DPT_MEMORY_GRADIENT, m->flat * F32, 1);
        put_item(m, DPT_ITEM_LANES, DPT_MEMORY_SUMS, m->flat * F32,
                 dpt_reduce_buffers(world, m->part->position) - 1);
    }
    if (m->traits->on_device) {
        put_item(m, DPT_ITEM_DEVICE_LANE_FIRST, DPT_MEMORY_GRADIENT, m->flat * F32, 1);
        put_item(m, DPT_ITEM_DEVICE_LANES, DPT_MEMORY_SUMS, m->flat * F32,
                 dpt_tree_buffers(world->lanes, own) - 1);
    }
    const bool single =
        dpt_config_slots(config) == dpt_config_lanes(config) && !m->traits->lane_per_rank;
    for (int u = 0; u < dpt_model_n_units(model) && !single && !m->traits->order_open; u++)
        if (dpt_model_unit(model, u)->in_parts)
            put_item(m, DPT_ITEM_APART, DPT_MEMORY_SLOT_GRADIENTS,
                     (size_t)dpt_model_unit(model, u)->numel * F32, 1);
}

static void put_staging(struct maker *m)
{
    const struct dpt_partition *p = m->part;
    const struct dpt_grid *ranges = m->place->ranges;
    const struct dpt_shard largest = dpt_partition_largest_added(p);
    const int64_t width = m->traits->on_device ? F32 : m->wire;
    int64_t most = 0, staged = 0;
    for (int r = 0; r < ranges->n_units; r++) {
        const struct dpt_interval part =
            dpt_part_of(dpt_shard_piece(ranges, largest, r), ranges->block, 0,
                        dpt_partition_parts(p, ranges, r));
        most = part.end - part.first > most ? part.end - part.first : most;
    }
    for (int position = p->members.first; position < p->members.end; position++)
        staged += position != p->position && dpt_partition_is_staged(p, position);
    put_item(m, DPT_ITEM_STAGING, DPT_MEMORY_COMM, (size_t)(staged * most * width),
             DPT_STAGING_TURNS);
}

/* Lists this rank's piece of the sum of all nodes, and staging memory for the part of a unit of
 * which most arrives at once. */
static void put_crossing(struct maker *m)
{
    const struct dpt_partition *p = m->part;
    const struct dpt_grid *grid = m->place->grid;
    const struct dpt_shard own = dpt_partition_crossed(p, p->position);
    struct dpt_range sums[DPT_COVER_MAX];
    int64_t most = 0;
    put_item(m, DPT_ITEM_ADDED, DPT_MEMORY_GRADIENT, shard_bytes(m, own), 1);
    for (int u = 0; u < grid->n_units; u++)
        for (int part = 0; part < dpt_partition_cross_parts(p, grid, u); part++) {
            int64_t staged = 0;
            for (int from = 0; from < p->world->size; from++) {
                const struct dpt_interval take =
                    dpt_partition_crossing(p, grid, from, own, u, part);
                if (from != p->position && dpt_partition_is_staged(p, from) &&
                    take.end > take.first)
                    staged += dpt_partition_node_sums(p, from, sums) * (take.end - take.first);
            }
            most = staged > most ? staged : most;
        }
    put_item(m, DPT_ITEM_CROSSING, DPT_MEMORY_COMM, (size_t)most * F32, DPT_STAGING_TURNS);
}

static bool has_narrow_gradients(const struct maker *m)
{
    const struct dpt_partition *p = m->part;
    return m->wire != F32 && (p->host.first > p->members.first || p->host.end < p->members.end);
}

static void put_waves(struct maker *m)
{
    const struct dpt_partition *p = m->part;
    const bool by_units = m->traits->route == DPT_GRADIENT_UNITS,
               flat = by_units && m->traits->state == DPT_STATE_REPLICATED;
    const size_t sum =
        dpt_memory_list_shard_bytes(m->place->ranges, dpt_partition_added(p, p->position), F32);
    if (by_units) {
        put_item(m, DPT_ITEM_GRADIENT_TIED, DPT_MEMORY_SLOT_GRADIENTS, (size_t)m->tied * F32, 1);
        put_item(m, DPT_ITEM_GRADIENT, DPT_MEMORY_SLOT_GRADIENTS, (size_t)m->largest * F32,
                 SLOT_UNITS);
    } else {
        put_item(m, DPT_ITEM_GRADIENT, DPT_MEMORY_GRADIENT, m->flat * F32, 1);
    }
    put_item(m, DPT_ITEM_SUM_FIRST, by_units ? DPT_MEMORY_GRADIENT : DPT_MEMORY_SUMS,
             flat ? m->flat * F32 : sum, 1);
    put_item(m, DPT_ITEM_SUMS, DPT_MEMORY_SUMS, sum, dpt_waves_sums(&p->waves) - 1);
    if (has_narrow_gradients(m)) {
        put_item(m, DPT_ITEM_NARROW_TIED, DPT_MEMORY_COMM, (size_t)m->tied * sizeof(uint16_t), 1);
        put_item(m, DPT_ITEM_NARROW, DPT_MEMORY_COMM, (size_t)m->largest * sizeof(uint16_t),
                 SLOT_UNITS);
        put_item(m, DPT_ITEM_NARROW_SUM, DPT_MEMORY_COMM, sum / 2, 1);
    }
    if (m->traits->state == DPT_STATE_PER_NODE && !m->traits->by_node && p->world->size > 1)
        put_item(m, DPT_ITEM_APPLIED, DPT_MEMORY_GRADIENT,
                 shard_bytes(m, dpt_partition_held(p, p->position)), 1);
    if (p->shadow_source >= 0)
        put_item(m, DPT_ITEM_SHADOWED, DPT_MEMORY_SHADOW,
                 shard_bytes(m, dpt_partition_held(p, p->shadow_source)), 1);
    put_staging(m);
    if (p->crosses)
        put_crossing(m);
}

void dpt_memory_list_make(const struct dpt_memory_place *place, struct dpt_memory_list *ret)
{
    const int tied = dpt_strategy_tied_unit(place->model);
    struct maker m = {.place = place,
                      .part = place->part,
                      .traits = &place->part->traits,
                      .list = ret,
                      .flat = (size_t)dpt_model_flat_numel(place->model),
                      .dtype = dpt_model_dtype(place->model),
                      .tied = tied < 0 ? 0 : dpt_model_unit(place->model, tied)->numel,
                      .largest = dpt_strategy_largest_unit(place->model, tied)};
    m.width = dpt_dtype_bytes(m.dtype);
    m.wire = (int64_t)dpt_dtype_bytes(dpt_dtype_of(m.traits->wire));
    *ret = (struct dpt_memory_list){.item = {{.n = 0}}};
    put_state(&m);
    if (m.traits->route == DPT_GRADIENT_LANES)
        put_lanes(&m);
    else
        put_waves(&m);
}
