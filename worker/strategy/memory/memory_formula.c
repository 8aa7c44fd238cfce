/* The formulas: see memory_formula.h. */
#include "worker/strategy/memory/memory_formula.h"

#include "base/sample.h"
#include "worker/comm/comm.h"
#include "worker/optim/optim.h"
#include "worker/plan/partition.h"
#include "worker/plan/reduce.h"
#include "worker/strategy/memory/product_workspace.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/state/packed_weights.h"
#include "worker/strategy/strategy.h"

#include <string.h>

enum {
    F32 = 4,
    TURNS = 2,             /* parts under way between hosts at once */
    PART_BYTES = 2 << 20,  /* of a piece that goes round at once, */
    CROSS_BYTES = 2 << 20, /* of one that goes between nodes */
    SLOT_UNITS = 2,        /* units whose gradient of a slot is held at once, beside the tied one */
    LOADER_BATCHES = 8     /* micro-batches read ahead */
};

/* A spec with what follows from it. */
struct memory {
    const struct dpt_memory_spec *spec;
    struct dpt_partition part;
    struct dpt_strategy_traits traits;
    bool units;   /* weights are gathered unit by unit */
    bool by_host; /* sums of lanes are in the host's memory, or come there to be reduced */
    int64_t p, w, k, wire, tied, parted, largest_other, largest;
    int n; /* ranks */
};

static void find_units(struct memory *m)
{
    const struct dpt_model *model = m->spec->model;
    const int tied = dpt_tied_unit(model);
    for (int u = 0; u < dpt_model_n_units(model); u++)
        if (dpt_model_unit(model, u)->in_parts)
            m->parted = dpt_model_unit(model, u)->numel;
    m->tied = tied < 0 ? 0 : dpt_model_unit(model, tied)->numel;
    m->largest_other = dpt_largest_unit(model, tied);
    m->largest = dpt_largest_unit(model, -1);
}

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
    find_units(&m);
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

/* Elements of the state that this rank applies. */
static int64_t own_numel(const struct memory *m)
{
    return shard_numel(m, dpt_partition_held(&m->part, m->part.position));
}

/* Whole subtrees of the lanes of positions in a row: a host's, a node's. */
static int subtrees(const struct memory *m, struct dpt_range positions)
{
    struct dpt_range cover[DPT_COVER_MAX];
    return dpt_tree_cover(m->spec->world->lanes, dpt_world_lanes(m->spec->world, positions), cover);
}

static void state(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    const int64_t own = own_numel(m);
    const bool on_device = m->traits.on_device;
    ret[DPT_MEMORY_WEIGHTS] = (m->units || on_device ? own : m->p) * m->w;
    if (on_device && m->w != F32) /* those that are computed with are not the masters */
        ret[DPT_MEMORY_WEIGHTS] = 0;
    ret[DPT_MEMORY_MASTERS] = own * m->k;
    const int moments = dpt_optim_has_second_moment(m->spec->config) ? 2 : 1;
    ret[DPT_MEMORY_MOMENTS] = own * moments * F32;
    if (m->units && count(m->part.group) > 1 && !on_device)
        ret[DPT_MEMORY_GATHERED] =
            (m->tied + dpt_gathered_places(m->spec->config, m->spec->model) * m->largest_other) *
            m->w;
    const int source = m->part.shadow_source;
    if (source >= 0)
        ret[DPT_MEMORY_SHADOW] = shard_numel(m, dpt_partition_held(&m->part, source)) *
                                 ((on_device ? 1 : 2) + moments) * F32;
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

/* This rank's pieces of the buckets: of all together, and the largest. */
static void bucket_pieces(const struct memory *m, int64_t *ret_all, int64_t *ret_largest)
{
    int64_t offset[DPT_PARAMS_MAX + 1];
    const struct dpt_grid ranges = find_ranges(m, offset);
    const struct dpt_shard own = {m->part.rank, m->n};
    *ret_all = dpt_shard_numel(&ranges, own);
    *ret_largest = 0;
    for (int r = 0; r < ranges.n_units; r++) {
        const int64_t piece = numel_of(dpt_shard_piece(&ranges, own, r));
        *ret_largest = piece > *ret_largest ? piece : *ret_largest;
    }
}

static void gradients(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    const struct dpt_config *config = m->spec->config;
    if (!m->by_host)
        return;
    const enum dpt_gradient_route route = m->traits.route;
    const bool replicated = m->traits.state == DPT_STATE_REPLICATED;
    const struct dpt_shard added = dpt_partition_added(&m->part, m->part.position);
    const int sums = dpt_waves_sums(&m->part.waves);
    if (route == DPT_GRADIENT_LANES) {
        const bool slots_are_added =
            dpt_config_slots(config) != dpt_config_lanes(config) && !m->traits.order_open;
        ret[DPT_MEMORY_GRADIENT] = m->p * F32;
        ret[DPT_MEMORY_SUMS] =
            (dpt_reduce_buffers(m->spec->world, m->part.position) - 1) * m->p * F32;
        ret[DPT_MEMORY_SLOT_GRADIENTS] =
            slots_are_added && !m->traits.on_device ? m->parted * F32 : 0;
        return;
    }
    if (route == DPT_GRADIENT_BUCKETS) {
        int64_t own, largest;
        bucket_pieces(m, &own, &largest);
        ret[DPT_MEMORY_GRADIENT] = m->p * F32;
        ret[DPT_MEMORY_SUMS] = sums * (own > 0 ? own : m->spec->grid->block) * F32;
        return;
    }
    const int64_t piece = shard_numel(m, added);
    ret[DPT_MEMORY_GRADIENT] = (replicated ? m->p : piece) * F32;
    if (m->part.crosses) /* a piece of the sum of all nodes */
        ret[DPT_MEMORY_GRADIENT] +=
            shard_numel(m, dpt_partition_crossed(&m->part, m->part.position)) * F32;
    if (m->traits.state == DPT_STATE_PER_NODE && !m->traits.by_node && m->n > 1)
        ret[DPT_MEMORY_GRADIENT] += own_numel(m) * F32; /* what is applied of what all add */
    ret[DPT_MEMORY_SUMS] = (sums - 1) * piece * F32;
    ret[DPT_MEMORY_SLOT_GRADIENTS] = (m->tied + SLOT_UNITS * m->largest_other) * F32;
}

/* Elements of the largest part of rank `rank`'s pieces of a range that goes round at once. Pieces
 * are cut alike for all ranks: by the first one's, which is the largest, or by all together. */
static int64_t part_numel(const struct memory *m, int rank, int64_t numel)
{
    const int64_t block = m->spec->grid->block, most = PART_BYTES / F32;
    const int64_t first = numel_of(dpt_layout_piece(numel, block, m->n, 0));
    const bool lanes = m->traits.route == DPT_GRADIENT_LANES;
    const int64_t cut = lanes ? numel : first, by = lanes ? most * m->n : most;
    const int64_t own = numel_of(dpt_layout_piece(numel, block, m->n, rank));
    return numel_of(dpt_layout_piece(own, block, (int)((cut + by - 1) / by), 0));
}

static int64_t largest_part(const struct memory *m, int rank)
{
    int64_t offset[DPT_PARAMS_MAX + 1], largest = 0;
    const struct dpt_grid ranges =
        m->traits.route == DPT_GRADIENT_BUCKETS ? find_ranges(m, offset) : *m->spec->grid;
    for (int r = 0; r < ranges.n_units; r++) {
        const int64_t part = part_numel(m, rank, ranges.offset[r + 1] - ranges.offset[r]);
        largest = part > largest ? part : largest;
    }
    return largest;
}

/* Elements that come from other hosts of a part of a unit that this rank adds. */
static int64_t crossing_numel(const struct memory *m, int unit, struct dpt_interval part)
{
    const struct dpt_world *world = m->spec->world;
    int64_t numel = 0;
    for (int p = 0; p < m->n; p++) {
        const struct dpt_interval theirs = dpt_interval_intersect(
            dpt_shard_piece(m->spec->grid, dpt_partition_held(&m->part, p), unit), part);
        if (world->host_of_position[p] != world->host_of_position[m->part.position] &&
            theirs.end > theirs.first)
            numel += subtrees(m, dpt_world_node(world, p)) * numel_of(theirs);
    }
    return numel;
}

/* The most of it that is under way at once. */
static int64_t largest_crossing(const struct memory *m)
{
    const struct dpt_grid *grid = m->spec->grid;
    const struct dpt_shard own = dpt_partition_crossed(&m->part, m->part.position);
    int64_t largest = 0;
    for (int u = 0; u < grid->n_units; u++) {
        const struct dpt_interval piece = dpt_shard_piece(grid, own, u);
        const int64_t first = numel_of(dpt_shard_piece(grid, (struct dpt_shard){0, m->n}, u)) * F32;
        const int parts = first > CROSS_BYTES ? (int)((first + CROSS_BYTES - 1) / CROSS_BYTES) : 1;
        for (int i = 0; i < parts && piece.end > piece.first; i++) {
            const struct dpt_interval part =
                dpt_layout_piece(numel_of(piece), grid->block, parts, i);
            const int64_t numel = crossing_numel(
                m, u, (struct dpt_interval){piece.first + part.first, piece.first + part.end});
            largest = numel > largest ? numel : largest;
        }
    }
    return largest;
}

/* What arrives from other hosts is staged. */
static int64_t staging(const struct memory *m)
{
    const struct dpt_world *world = m->spec->world;
    if (count(m->part.host) == m->n)
        return 0;
    if (m->traits.by_node)
        return TURNS * largest_crossing(m) * F32;
    if (m->traits.route != DPT_GRADIENT_LANES)
        return (int64_t)TURNS * (m->n - count(m->part.host)) * m->wire * largest_part(m, 0);
    int64_t arrive = 0, all, piece;
    struct dpt_range host;
    for (int at = 0; at < m->n; at = host.end) {
        host = dpt_world_host(world, at);
        arrive += host.first == m->part.host.first ? 0 : subtrees(m, host);
    }
    bucket_pieces(m, &all, &piece);
    if (m->traits.state != DPT_STATE_REPLICATED)
        piece = largest_part(m, m->spec->rank);
    return TURNS * arrive * piece * m->wire;
}

/* Gradients as other hosts get them, beside those in f32. */
static int64_t narrowed(const struct memory *m)
{
    int64_t all, largest;
    if (m->wire == F32 || count(m->part.host) == m->n)
        return 0;
    if (m->traits.route != DPT_GRADIENT_LANES)
        return (m->tied + SLOT_UNITS * m->largest_other +
                shard_numel(m, dpt_partition_added(&m->part, m->part.position))) *
               m->wire;
    bucket_pieces(m, &all, &largest);
    if (m->traits.state != DPT_STATE_REPLICATED) /* the reduced gradient stays with its owners */
        return 0;
    return all * m->wire;
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
    state(&m, ret);
    ret[DPT_MEMORY_WEIGHTS] += base_bytes(&m);
    gradients(&m, ret);
    if (spec->packed_operand > 0)
        ret[DPT_MEMORY_PACKED] = dpt_memory_packed(spec->model, spec->packed_operand);
    if (spec->config->cluster.device == DPT_DEVICE_CUDA) {
        ret[DPT_MEMORY_SLOT_GRADIENTS] += m.traits.on_device ? 0 : m.largest * F32;
    } else {
        ret[DPT_MEMORY_ACTIVATIONS] = (int64_t)dpt_model_saved_bytes(spec->model, b, t);
        ret[DPT_MEMORY_SCRATCH] = (int64_t)dpt_model_scratch_bytes(spec->model, b, t);
        ret[DPT_MEMORY_WORKSPACE] = dpt_memory_workspace(spec, m.traits.order_open || m.tied == 0);
    }
    ret[DPT_MEMORY_COMM] =
        (m.by_host ? staging(&m) + narrowed(&m) : 0) + (int64_t)dpt_comm_own_bytes(m.n);
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
