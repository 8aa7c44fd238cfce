/* The formulas: see memory_formula.h. */
#include "worker/strategy/memory/memory_formula.h"

#include "base/sample.h"
#include "worker/comm/comm.h"
#include "worker/optim/optim.h"
#include "worker/plan/partition.h"
#include "worker/plan/reduce.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/memory/product_workspace.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/state/packed_weights.h"
#include "worker/strategy/strategy.h"

#include <string.h>

enum {
    F32 = 4,
    TURNS = 2,            /* parts under way between hosts at once */
    PART_BYTES = 2 << 20, /* of a piece that goes round at once, */
    LOADER_BATCHES = 8    /* micro-batches read ahead */
};

/* A spec with what follows from it. */
struct memory {
    const struct dpt_memory_spec *spec;
    struct dpt_partition part;
    struct dpt_strategy_traits traits;
    bool units;   /* weights are gathered unit by unit */
    bool by_host; /* sums of lanes are in the host's memory, or come there to be reduced */
    int64_t p, w, k, wire, largest;
    int n; /* ranks */
};

static struct memory memory_of(const struct dpt_memory_spec *spec)
{
    struct memory m = {.spec = spec,
                       .part = dpt_partition_of(spec->config, spec->world, spec->rank),
                       .p = dpt_model_flat_numel(spec->model),
                       .w = (int64_t)dpt_dtype_bytes(dpt_model_dtype(spec->model)),
                       .n = spec->world->size};
    m.traits = m.part.traits;
    m.units = m.traits.weights == DPT_WEIGHTS_UNITS;
    m.k = m.w == F32 ? 0 : F32;
    m.by_host = !m.traits.on_device || (m.n > 1 && !m.traits.by_nccl);
    m.wire = m.traits.wire_bytes;
    m.largest = dpt_largest_unit(spec->model, -1);
    return m;
}

static int count(struct dpt_range range)
{
    return range.end - range.first;
}

static int64_t numel_of(struct dpt_interval range)
{
    return range.end - range.first;
}

/* Elements of a shard; there is memory for a block at least. */
static int64_t shard_numel(const struct memory *m, struct dpt_shard shard)
{
    const int64_t numel = dpt_shard_numel(m->spec->grid, shard);
    return numel > 0 ? numel : m->spec->grid->block;
}

/* Whole subtrees of the lanes of positions in a row: a host's, a node's. */
static int subtrees(const struct memory *m, struct dpt_range positions)
{
    struct dpt_range cover[DPT_COVER_MAX];
    return dpt_tree_cover(m->spec->world->lanes, dpt_world_lanes(m->spec->world, positions), cover);
}

/* Of the weights that adapters go with, which each rank has whole; a GPU has them itself. */
static int64_t base_bytes(const struct memory *m)
{
    const struct dpt_model *base = dpt_model_base(m->spec->model);
    const bool here = base && m->spec->config->cluster.device != DPT_DEVICE_CUDA;
    return here ? dpt_model_flat_numel(base) * m->w : 0;
}

/* What is reduced together, as ranges of the flat vector. */
static struct dpt_grid find_ranges(const struct memory *m, int64_t offset[DPT_PARAMS_MAX + 1])
{
    struct dpt_model_buckets buckets;
    struct dpt_err err;
    DPT_ASSERT(dpt_model_buckets_init(&buckets, m->spec->config, m->spec->model, &err) == DPT_OK);
    memcpy(offset, buckets.offset, ((size_t)buckets.n + 1) * sizeof *offset);
    const struct dpt_grid ranges = {offset, buckets.n, m->spec->grid->block};
    dpt_model_buckets_fini(&buckets);
    return ranges;
}

/* What the strategy itself holds of the host's memory. */
static void add_held(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    int64_t offset[DPT_PARAMS_MAX + 1];
    const struct dpt_grid ranges =
        m->traits.route == DPT_GRADIENT_BUCKETS ? find_ranges(m, offset) : *m->spec->grid;
    const struct dpt_memory_place place = {.config = m->spec->config,
                                           .model = m->spec->model,
                                           .grid = m->spec->grid,
                                           .ranges = &ranges,
                                           .part = &m->part};
    struct dpt_memory_list list;
    dpt_memory_list_make(&place, &list);
    const int n = m->traits.on_device ? DPT_ITEM_REGISTERED_COUNT : DPT_ITEM_COUNT;
    for (int i = 0; i < n; i++)
        ret[list.item[i].tag] += list.item[i].n * (int64_t)list.item[i].bytes;
}

/* The most elements of this rank's pieces of sums of lanes that are under way at once: of a bucket,
 * or of a part of a unit. */
static int64_t largest_reduced(const struct memory *m)
{
    const int64_t block = m->spec->grid->block, most = PART_BYTES / F32 * m->n;
    int64_t offset[DPT_PARAMS_MAX + 1], largest = 0;
    const struct dpt_grid ranges = find_ranges(m, offset);
    for (int r = 0; r < ranges.n_units; r++) {
        const int64_t numel = ranges.offset[r + 1] - ranges.offset[r];
        const int parts =
            m->traits.state == DPT_STATE_REPLICATED ? 1 : (int)((numel + most - 1) / most);
        const struct dpt_interval piece =
            dpt_shard_piece(&ranges, (struct dpt_shard){m->part.rank, m->n}, r);
        const int64_t part = numel_of(dpt_part_of(piece, block, 0, parts));
        largest = part > largest ? part : largest;
    }
    return largest;
}

/* What a reducer of sums of lanes holds between hosts: what arrives is staged, and the own pieces'
 * sums are kept as other hosts get them, unless they stay with their owners. */
static int64_t of_reducer(const struct memory *m)
{
    const struct dpt_world *world = m->spec->world;
    int64_t offset[DPT_PARAMS_MAX + 1], arrive = 0, narrow = 0;
    struct dpt_range host;
    if (m->traits.route != DPT_GRADIENT_LANES || count(m->part.host) == m->n)
        return 0;
    for (int at = 0; at < m->n; at = host.end) {
        host = dpt_world_host(world, at);
        arrive += host.first == m->part.host.first ? 0 : subtrees(m, host);
    }
    if (m->wire != F32 && m->traits.state == DPT_STATE_REPLICATED) {
        const struct dpt_grid ranges = find_ranges(m, offset);
        narrow = dpt_shard_numel(&ranges, (struct dpt_shard){m->part.rank, m->n});
    }
    return (TURNS * arrive * largest_reduced(m) + narrow) * m->wire;
}

bool dpt_memory_may_pack(const struct dpt_memory_spec *spec)
{
    const struct dpt_config *config = spec->config;
    const int position = dpt_world_position(spec->world, spec->rank),
              slots = dpt_partition_assign(config, spec->world, position).n;
    return dpt_strategy_traits(config).may_pack && config->cluster.device != DPT_DEVICE_CUDA &&
           dpt_packing_pays(config->cluster.pack_weights, slots, 0, 0);
}

void dpt_memory_formula(const struct dpt_memory_spec *spec, int64_t ret[DPT_MEMORY_COUNT])
{
    const struct memory m = memory_of(spec);
    const struct dpt_config *config = spec->config;
    const struct dpt_sample_form form = dpt_sample_form(config);
    const int64_t b = config->train.micro_batch, t = form.positions;
    memset(ret, 0, DPT_MEMORY_COUNT * sizeof *ret);
    add_held(&m, ret);
    ret[DPT_MEMORY_WEIGHTS] += base_bytes(&m);
    if (spec->packed_operand > 0)
        ret[DPT_MEMORY_PACKED] = dpt_memory_packed(spec->model, spec->packed_operand);
    if (spec->config->cluster.device == DPT_DEVICE_CUDA) {
        ret[DPT_MEMORY_SLOT_GRADIENTS] += m.traits.on_device ? 0 : m.largest * F32;
    } else {
        ret[DPT_MEMORY_ACTIVATIONS] = (int64_t)dpt_model_saved_bytes(spec->model, b, t);
        ret[DPT_MEMORY_SCRATCH] = (int64_t)dpt_model_scratch_bytes(spec->model, b, t);
        ret[DPT_MEMORY_WORKSPACE] =
            dpt_memory_workspace(spec, m.traits.order_open || dpt_tied_unit(spec->model) < 0);
    }
    ret[DPT_MEMORY_COMM] += (m.by_host ? of_reducer(&m) : 0) + (int64_t)dpt_comm_own_bytes(m.n);
    ret[DPT_MEMORY_DATA] = LOADER_BATCHES * (int64_t)dpt_batch_bytes(&form, b);
    if (spec->config->cluster.device == DPT_DEVICE_CUDA) /* on their way to the device */
        ret[DPT_MEMORY_DATA] += (int64_t)dpt_batch_bytes(&form, b) +
                                (int64_t)dpt_stager_bytes((size_t)m.p * sizeof(float));
}

static int64_t other_bytes(const int64_t formula[DPT_MEMORY_COUNT])
{
    static const enum dpt_memory_tag others[] = {
        DPT_MEMORY_SUMS,      DPT_MEMORY_PACKED, DPT_MEMORY_ACTIVATIONS, DPT_MEMORY_SCRATCH,
        DPT_MEMORY_WORKSPACE, DPT_MEMORY_COMM,   DPT_MEMORY_DATA};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        bytes += formula[others[i]];
    return bytes;
}

/* The largest shard of the state that a rank of this world, or node, holds. */
static struct dpt_shard largest_held(const struct memory *m)
{
    return (struct dpt_shard){0, dpt_partition_held(&m->part, m->part.position).of};
}

/* A copy of the masters and moments that this rank keeps on its GPU, and the gradient, if that is
 * reduced here. */
static int64_t bound_beside_device(const struct memory *m, const int64_t formula[DPT_MEMORY_COUNT])
{
    const int64_t shard = shard_numel(m, (struct dpt_shard){0, m->n});
    return shard_numel(m, largest_held(m)) * 12 + (m->by_host ? m->p * F32 : 0) +
           (m->part.shadow_source >= 0 ? 12 * shard : 0) + other_bytes(formula);
}

int64_t dpt_memory_bound(const struct dpt_memory_spec *spec)
{
    const struct memory m = memory_of(spec);
    const struct dpt_strategy_traits *t = &m.traits;
    const int64_t shard = shard_numel(&m, (struct dpt_shard){0, m.n}),
                  held = shard_numel(&m, largest_held(&m));
    const bool lanes = t->route == DPT_GRADIENT_LANES;
    int64_t formula[DPT_MEMORY_COUNT], bytes = base_bytes(&m);
    dpt_memory_formula(spec, formula);
    if (t->on_device)
        return bound_beside_device(&m, formula);
    if (t->state == DPT_STATE_REPLICATED)
        bytes += m.p * (m.w + m.k + 12);
    else if (!m.units && lanes)
        bytes += m.p * (m.w + F32) + shard * (m.k + 8);
    else if (!m.units)
        bytes += m.p * m.w + shard * (m.k + 12);
    else
        bytes += held * (m.w + m.k + 12) + 2 * m.largest * (m.w + F32);
    if (!m.units && t->route == DPT_GRADIENT_UNITS)
        bytes += 8 * m.largest;
    if (t->state == DPT_STATE_PER_NODE)
        bytes += shard * F32;
    if (m.part.shadow_source >= 0)
        bytes += 16 * shard;
    bytes += other_bytes(formula);
    if (spec->config->cluster.device == DPT_DEVICE_CUDA)
        bytes += m.largest * F32;
    return bytes;
}
