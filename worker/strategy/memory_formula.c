/* The formulas: see memory.h. */
#include "worker/strategy/memory_formula.h"

#include "base/sample.h"
#include "base/strategy_traits.h"
#include "worker/comm/comm.h"
#include "worker/optim/optim.h"
#include "worker/plan/waves.h"
#include "worker/strategy/ddp_policy.h"
#include "worker/strategy/packed_weights.h"
#include "worker/strategy/product_workspace.h"
#include "worker/strategy/strategy.h"
#include "worker/strategy/wire.h"

#include <string.h>

enum {
    F32 = 4,
    TURNS = 2,             /* parts under way between hosts at once */
    PART_BYTES = 2 << 20,  /* of a piece that goes round at once, */
    CROSS_BYTES = 2 << 20, /* of one that goes between nodes */
    SLOT_UNITS = 2,        /* units whose gradient of a slot is held at once, beside the tied one */
    LOADER_BATCHES = 8     /* micro-batches read ahead */
};

enum kind { WHOLE, ZERO1, ONCE, UNITS, HYBRID };

/* A spec with what follows from it. */
struct memory {
    const struct dpt_memory_spec *spec;
    enum kind kind;
    bool lanes;    /* own runs of lanes in whole buffers, sums of lanes travel */
    bool by_node;  /* in waves inside each node, whose sums meet once a step */
    bool resident; /* on a GPU */
    bool by_host;  /* sums of lanes are in the host's memory, or come there to be reduced */
    bool slots;    /* a whole slot's gradient, summed bucket by bucket; neither: unit by unit */
    int64_t p, w, k, wire, tied, parted, largest_other, largest;
    int n, position;
    struct dpt_range host, node; /* positions */
};

static enum kind kind_of(const struct dpt_config *config)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    if (traits.state == DPT_STATE_REPLICATED)
        return WHOLE;
    if (strcmp(config->strategy.name, "zero1") == 0)
        return ZERO1;
    if (traits.state == DPT_STATE_PER_NODE)
        return HYBRID;
    return traits.weights == DPT_WEIGHTS_UNITS ? UNITS : ONCE;
}

static void find_units(struct memory *m)
{
    const struct dpt_model *model = m->spec->model;
    const int n = dpt_model_n_units(model);
    int tied = -1;
    for (int u = 0; u < n; u++)
        if (dpt_model_unit(model, u)->borrows >= 0)
            tied = dpt_model_unit(model, u)->borrows;
    for (int u = 0; u < n; u++) {
        const int64_t numel = dpt_model_unit(model, u)->numel;
        if (dpt_model_unit(model, u)->in_parts)
            m->parted = numel;
        if (u == tied)
            m->tied = numel;
        else if (numel > m->largest_other)
            m->largest_other = numel;
    }
    m->largest = m->tied > m->largest_other ? m->tied : m->largest_other;
}

static struct memory memory_of(const struct dpt_memory_spec *spec)
{
    const struct dpt_config *config = spec->config;
    struct memory m = {.spec = spec,
                       .kind = kind_of(config),
                       .p = dpt_model_flat_numel(spec->model),
                       .w = (int64_t)dpt_dtype_bytes(dpt_model_dtype(spec->model)),
                       .n = spec->world->size};
    m.k = m.w == F32 ? 0 : F32;
    m.resident = dpt_config_state_on_device(config);
    m.by_host = !m.resident || (m.n > 1 && !dpt_config_uses_nccl(config));
    m.wire = (int64_t)dpt_dtype_bytes(dpt_wire_dtype(config));
    const bool local = dpt_config_accumulate(config) == DPT_ACCUMULATE_LOCAL;
    const enum dpt_gradient_route route = dpt_strategy_traits(config).route;
    m.slots = route == DPT_GRADIENT_BUCKETS;
    m.lanes = route == DPT_GRADIENT_LANES;
    m.by_node = m.kind == HYBRID && local;
    find_units(&m);
    while (spec->world->rank_of_position[m.position] != spec->rank)
        m.position++;
    m.host = dpt_world_host(spec->world, m.position);
    m.node = dpt_world_node(spec->world, m.position);
    return m;
}

/* The order of addition is open. */
static bool is_fast(const struct memory *m)
{
    return m->spec->config->train.reduction == DPT_REDUCTION_FAST;
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
static int64_t shard_numel(const struct memory *m, int index, int of)
{
    const int64_t numel = dpt_shard_numel(m->spec->grid, (struct dpt_shard){index, of});
    return numel > 0 ? numel : m->spec->grid->block;
}

/* Elements of the state that this rank applies. */
static int64_t own_numel(const struct memory *m)
{
    if (m->kind == WHOLE)
        return m->p;
    if (m->kind == HYBRID)
        return shard_numel(m, m->position - m->node.first, count(m->node));
    return shard_numel(m, m->spec->rank, m->n);
}

/* Rank whose shard this one keeps; -1: none. */
static int shadow_source_of(const struct memory *m)
{
    const struct dpt_world *world = m->spec->world;
    if (m->spec->config->strategy.redundancy != DPT_REDUNDANCY_SHADOW)
        return -1;
    const int source = dpt_shadow_source(world, dpt_shadow_shift(world), m->position);
    return source < 0 ? -1 : world->rank_of_position[source];
}

static struct dpt_waves waves_of(const struct memory *m)
{
    const struct dpt_world *world = m->spec->world;
    const bool reduce = dpt_config_accumulate(m->spec->config) == DPT_ACCUMULATE_REDUCE;
    const int lanes = reduce ? 1 : world->lanes;
    return (struct dpt_waves){.slots = dpt_config_slots(m->spec->config),
                              .lanes = lanes,
                              .run = m->by_node ? dpt_world_lanes(world, m->node)
                                                : (struct dpt_range){0, lanes},
                              .members = m->by_node ? count(m->node) : m->n};
}

static int sums_of(const struct memory *m)
{
    const struct dpt_waves waves = waves_of(m);
    return dpt_waves_sums(&waves);
}

/* Whole subtrees of the lanes of positions in a row: a host's, a node's. */
static int subtrees(const struct memory *m, struct dpt_range positions)
{
    struct dpt_range cover[DPT_COVER_MAX];
    return dpt_tree_cover(m->spec->world->lanes, dpt_world_lanes(m->spec->world, positions), cover);
}

/* Buffers of a rank's own run of lanes: as many as its own stack is deep, or as its host has
 * subtrees when these are brought together here. */
static int lane_buffers(const struct memory *m)
{
    const struct dpt_world *world = m->spec->world;
    const int own =
        dpt_tree_buffers(world->lanes, dpt_position_lanes(world->lanes, m->n, m->position));
    if (count(m->host) == m->n)
        return own;
    const int host = subtrees(m, m->host);
    return own > host ? own : host;
}

static void state(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    const int64_t own = own_numel(m);
    const bool units = m->kind == UNITS || m->kind == HYBRID;
    ret[DPT_MEMORY_WEIGHTS] = (units || m->resident ? own : m->p) * m->w;
    if (m->resident && m->w != F32) /* those that are computed with are not the masters */
        ret[DPT_MEMORY_WEIGHTS] = 0;
    ret[DPT_MEMORY_MASTERS] = own * m->k;
    const int moments = dpt_optim_has_second_moment(m->spec->config) ? 2 : 1;
    ret[DPT_MEMORY_MOMENTS] = own * moments * F32;
    const int sharers = m->kind == HYBRID ? count(m->node) : m->n;
    if (units && sharers > 1 && !m->resident)
        ret[DPT_MEMORY_GATHERED] =
            (m->tied + dpt_gathered_places(m->spec->config, m->spec->model) * m->largest_other) *
            m->w;
    const int source = shadow_source_of(m);
    if (source >= 0)
        ret[DPT_MEMORY_SHADOW] =
            shard_numel(m, source, m->n) * ((m->resident ? 1 : 2) + moments) * F32;
}

/* Of the weights that adapters go with, which each rank has whole; a GPU has them itself. */
static int64_t base_bytes(const struct memory *m)
{
    const struct dpt_model *base = dpt_model_base(m->spec->model);
    const bool here = base && m->spec->config->cluster.device != DPT_DEVICE_CUDA;
    return here ? dpt_model_flat_numel(base) * m->w : 0;
}

/* What ddp's family reduces together. Returns how many buckets there are. */
static int find_buckets(const struct memory *m, struct dpt_bucket ret[DPT_PARAMS_MAX])
{
    const struct dpt_config *config = m->spec->config;
    const struct dpt_ddp_policy policy = dpt_ddp_policy_of(config);
    const double mib = 1024.0 * 1024.0;
    const int64_t bytes = policy.tensors ? 0 : (int64_t)(config->strategy.bucket_mib * mib);
    int64_t offset[DPT_PARAMS_MAX];
    const int n = dpt_model_n_params(m->spec->model);
    for (int i = 0; i < n; i++)
        offset[i] = dpt_model_param(m->spec->model, i)->offset;
    return dpt_buckets_make(offset, n, m->p,
                            policy.small_first ? (int64_t)(config->strategy.first_bucket_mib * mib)
                                               : bytes,
                            bytes, ret);
}

/* A rank's pieces of the buckets: of all together, and the largest. */
static void bucket_pieces(const struct memory *m, int rank, int64_t *ret_all, int64_t *ret_largest)
{
    struct dpt_bucket buckets[DPT_PARAMS_MAX];
    const int n = find_buckets(m, buckets);
    *ret_all = *ret_largest = 0;
    for (int b = 0; b < n; b++) {
        const int64_t piece = numel_of(
            dpt_layout_piece(buckets[b].end - buckets[b].first, m->spec->grid->block, m->n, rank));
        *ret_all += piece;
        *ret_largest = piece > *ret_largest ? piece : *ret_largest;
    }
}

/* What the rank at a position has of its node's replica. */
static struct dpt_shard node_shard(const struct memory *m, int position)
{
    const struct dpt_range node = dpt_world_node(m->spec->world, position);
    return (struct dpt_shard){position - node.first, count(node)};
}

/* Which N-th of the sum of all nodes this rank adds: ranks in the order of where their shards lie.
 */
static int crossing_index(const struct memory *m)
{
    const struct dpt_shard own = node_shard(m, m->position);
    int index = 0;
    for (int p = 0; p < m->n; p++) {
        const struct dpt_shard other = node_shard(m, p);
        const int difference = other.index * own.of - own.index * other.of;
        index += difference < 0 || (difference == 0 && p < m->position);
    }
    return index;
}

static void gradients(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    const struct dpt_config *config = m->spec->config;
    if (!m->by_host)
        return;
    if (m->lanes) {
        const bool slots_are_added =
            dpt_config_slots(config) != dpt_config_lanes(config) && !is_fast(m);
        ret[DPT_MEMORY_GRADIENT] = m->p * F32;
        ret[DPT_MEMORY_SUMS] = (lane_buffers(m) - 1) * m->p * F32;
        ret[DPT_MEMORY_SLOT_GRADIENTS] = slots_are_added && !m->resident ? m->parted * F32 : 0;
        return;
    }
    if (m->slots) {
        int64_t own, largest;
        bucket_pieces(m, m->spec->rank, &own, &largest);
        ret[DPT_MEMORY_GRADIENT] = m->p * F32;
        ret[DPT_MEMORY_SUMS] = sums_of(m) * (own > 0 ? own : m->spec->grid->block) * F32;
        return;
    }
    const int64_t piece = m->by_node ? own_numel(m) : shard_numel(m, m->spec->rank, m->n);
    ret[DPT_MEMORY_GRADIENT] = (m->kind == WHOLE ? m->p : piece) * F32;
    if (m->by_node && count(m->node) < m->n) /* a piece of the sum of all nodes */
        ret[DPT_MEMORY_GRADIENT] += shard_numel(m, crossing_index(m), m->n) * F32;
    if (m->kind == HYBRID && !m->by_node && m->n > 1) /* what is applied of what all sum */
        ret[DPT_MEMORY_GRADIENT] += own_numel(m) * F32;
    ret[DPT_MEMORY_SUMS] = (sums_of(m) - 1) * piece * F32;
    ret[DPT_MEMORY_SLOT_GRADIENTS] = (m->tied + SLOT_UNITS * m->largest_other) * F32;
}

/* Elements of the largest part of rank `rank`'s pieces of a range that goes round at once. Pieces
 * are cut alike for all ranks: by the first one's, which is the largest, or by all together. */
static int64_t part_numel(const struct memory *m, int rank, int64_t numel)
{
    const int64_t block = m->spec->grid->block, most = PART_BYTES / F32;
    const int64_t first = numel_of(dpt_layout_piece(numel, block, m->n, 0));
    const int64_t cut = m->lanes ? numel : first, by = m->lanes ? most * m->n : most;
    const int64_t own = numel_of(dpt_layout_piece(numel, block, m->n, rank));
    return numel_of(dpt_layout_piece(own, block, (int)((cut + by - 1) / by), 0));
}

static int64_t largest_part(const struct memory *m, int rank)
{
    int64_t largest = 0;
    for (int u = 0; u < m->spec->grid->n_units; u++) {
        const int64_t part = part_numel(m, rank, dpt_model_unit(m->spec->model, u)->numel);
        largest = part > largest ? part : largest;
    }
    return largest;
}

static int64_t largest_part_of_bucket(const struct memory *m)
{
    struct dpt_bucket buckets[DPT_PARAMS_MAX];
    const int n = find_buckets(m, buckets);
    int64_t largest = 0;
    for (int b = 0; b < n; b++) {
        const int64_t part = part_numel(m, 0, buckets[b].end - buckets[b].first);
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
        const struct dpt_interval theirs =
            dpt_interval_intersect(dpt_shard_piece(m->spec->grid, node_shard(m, p), unit), part);
        if (world->host_of_position[p] != world->host_of_position[m->position] &&
            theirs.end > theirs.first)
            numel += subtrees(m, dpt_world_node(world, p)) * numel_of(theirs);
    }
    return numel;
}

/* The most of it that is under way at once. */
static int64_t largest_crossing(const struct memory *m)
{
    const struct dpt_grid *grid = m->spec->grid;
    const struct dpt_shard own = {crossing_index(m), m->n};
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
    if (count(m->host) == m->n)
        return 0;
    if (m->by_node)
        return TURNS * largest_crossing(m) * F32;
    if (!m->lanes)
        return (int64_t)TURNS * (m->n - count(m->host)) * m->wire *
               (m->slots ? largest_part_of_bucket(m) : largest_part(m, 0));
    int64_t arrive = 0, all, piece;
    struct dpt_range host;
    for (int at = 0; at < m->n; at = host.end) {
        host = dpt_world_host(world, at);
        arrive += host.first == m->host.first ? 0 : subtrees(m, host);
    }
    bucket_pieces(m, m->spec->rank, &all, &piece);
    if (m->kind != WHOLE)
        piece = largest_part(m, m->spec->rank);
    return TURNS * arrive * piece * m->wire;
}

/* Gradients as other hosts get them, beside those in f32. */
static int64_t narrowed(const struct memory *m)
{
    int64_t all, largest;
    if (m->wire == F32 || count(m->host) == m->n)
        return 0;
    if (!m->lanes)
        return (m->tied + SLOT_UNITS * m->largest_other + shard_numel(m, m->spec->rank, m->n)) *
               m->wire;
    bucket_pieces(m, m->spec->rank, &all, &largest);
    if (m->kind == ZERO1) /* the reduced gradient stays with its owners */
        return 0;
    return all * m->wire;
}

bool dpt_memory_may_pack(const struct dpt_memory_spec *spec)
{
    const struct memory m = memory_of(spec);
    const struct dpt_config *config = spec->config;
    if (m.kind != WHOLE || !(m.lanes || m.slots) || config->cluster.device == DPT_DEVICE_CUDA)
        return false;
    const struct dpt_waves waves = waves_of(&m);
    const struct dpt_assignment assignment =
        m.slots ? dpt_waves_assign(&waves, m.position)
                : dpt_assign_lanes(waves.slots, waves.lanes, m.n, m.position);
    return dpt_packing_pays(config->cluster.pack_weights, assignment.n, 0, 0);
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
        ret[DPT_MEMORY_SLOT_GRADIENTS] += m.resident ? 0 : m.largest * F32;
    } else {
        ret[DPT_MEMORY_ACTIVATIONS] = (int64_t)dpt_model_saved_bytes(spec->model, b, t);
        ret[DPT_MEMORY_SCRATCH] = (int64_t)dpt_model_scratch_bytes(spec->model, b, t);
        ret[DPT_MEMORY_WORKSPACE] = dpt_memory_workspace(spec, is_fast(&m) || m.tied == 0);
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

/* A copy of the masters and moments that this rank keeps on its GPU, and the gradient, if that is
 * reduced here. */
static int64_t bound_beside_device(const struct memory *m, const int64_t formula[DPT_MEMORY_COUNT])
{
    const int64_t shard = shard_numel(m, 0, m->n);
    int64_t own = shard;
    if (m->kind == WHOLE)
        own = m->p;
    if (m->kind == HYBRID)
        own = shard_numel(m, 0, count(m->node));
    return own * 12 + (m->by_host ? m->p * F32 : 0) + (shadow_source_of(m) >= 0 ? 12 * shard : 0) +
           other_bytes(formula);
}

int64_t dpt_memory_bound(const struct dpt_memory_spec *spec)
{
    const struct memory m = memory_of(spec);
    const bool reduce = dpt_config_accumulate(spec->config) == DPT_ACCUMULATE_REDUCE;
    const int64_t shard = shard_numel(&m, 0, m.n), of_node = shard_numel(&m, 0, count(m.node)),
                  units = 2 * m.largest * (m.w + F32);
    int64_t formula[DPT_MEMORY_COUNT], bytes = base_bytes(&m);
    dpt_memory_formula(spec, formula);
    if (m.resident)
        return bound_beside_device(&m, formula);
    switch (m.kind) {
    case WHOLE:
        bytes += m.p * (m.w + m.k + 12) + (reduce && !m.slots ? 8 * m.largest : 0);
        break;
    case ZERO1:
        bytes += m.lanes ? m.p * (m.w + F32) + shard * (m.k + 8)
                         : m.p * m.w + shard * (m.k + 12) + 8 * m.largest;
        break;
    case ONCE:
        bytes += m.p * m.w + shard * (m.k + 12) + 8 * m.largest;
        break;
    case UNITS:
        bytes += shard * (m.w + m.k + 12) + units;
        break;
    case HYBRID:
        bytes += of_node * (m.w + m.k + 12) + shard * F32 + units;
        break;
    }
    if (shadow_source_of(&m) >= 0)
        bytes += 16 * shard;
    bytes += other_bytes(formula);
    if (spec->config->cluster.device == DPT_DEVICE_CUDA)
        bytes += m.largest * F32;
    return bytes;
}
