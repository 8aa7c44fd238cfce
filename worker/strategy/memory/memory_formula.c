/* The formulas: see memory_formula.h. */
#include "worker/strategy/memory/memory_formula.h"

#include "base/sample.h"
#include "worker/comm/comm.h"
#include "worker/optim/optim.h"
#include "worker/plan/partition.h"
#include "worker/strategy/memory/memory_list.h"
#include "worker/strategy/reduce/host_chunks.h"
#include "worker/strategy/reduce/model_buckets.h"
#include "worker/strategy/reduce/ring_reducer.h"
#include "worker/strategy/state/packed_weights.h"
#include "worker/strategy/strategy.h"
#include "worker/trace/recorder.h"

#include <string.h>

enum { F32 = 4 };

/* A spec, and the values that follow from it. */
struct memory {
    const struct dpt_memory_spec *spec;
    struct dpt_partition part;
    struct dpt_model_buckets buckets; /* none where gradients are reduced unit by unit */
    int64_t p, w, k, largest;         /* P, w, k and U of dpt_memory_bound */
    int n;                            /* ranks */
};

static void memory_init(struct memory *m, const struct dpt_memory_spec *spec)
{
    *m = (struct memory){.spec = spec,
                         .part = dpt_partition_of(spec->config, spec->world, spec->rank),
                         .p = dpt_model_flat_numel(spec->model),
                         .w = (int64_t)dpt_dtype_bytes(dpt_model_dtype(spec->model)),
                         .largest = dpt_strategy_largest_unit(spec->model, -1),
                         .n = spec->world->size};
    m->k = m->w == F32 ? 0 : F32;
}

/* Elements of a shard's memory, which is at least one block. */
static int64_t shard_numel(const struct memory *m, struct dpt_shard shard)
{
    return (int64_t)dpt_memory_list_shard_bytes(m->spec->grid, shard, 1);
}

static bool is_cuda(const struct memory *m)
{
    return m->spec->config->cluster.device == DPT_DEVICE_CUDA;
}

/* Bytes of the weights of the base model under adapters. Each rank has them whole, where the model
 * is computed: with cuda on the GPU. */
static int64_t base_bytes(const struct memory *m)
{
    const struct dpt_model *base = dpt_model_base(m->spec->model);
    return base ? dpt_model_flat_numel(base) * m->w : 0;
}

static void list_held(const struct memory *m, struct dpt_memory_list *ret)
{
    const struct dpt_strategy_traits *traits = &m->part.traits;
    const struct dpt_memory_place place = {
        .config = m->spec->config,
        .model = m->spec->model,
        .grid = m->spec->grid,
        .ranges = traits->route == DPT_GRADIENT_BUCKETS ? &m->buckets.ranges : m->spec->grid,
        .part = &m->part};
    dpt_memory_list_make(&place, ret);
}

/* Adds the host memory that the strategy's memory list has. */
static void add_held(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    const struct dpt_strategy_traits *traits = &m->part.traits;
    struct dpt_memory_list list;
    list_held(m, &list);
    const int n = traits->on_device ? DPT_ITEM_REGISTERED_COUNT : DPT_ITEM_COUNT;
    for (int i = 0; i < n; i++)
        ret[list.item[i].tag] += list.item[i].n * (int64_t)list.item[i].bytes;
}

/* The registered memory of a reducer of sums of lanes, by a ring or between hosts. */
static int64_t reducer_bytes(const struct memory *m)
{
    const struct dpt_strategy_traits *traits = &m->part.traits;
    const bool ring = traits->by_ring && m->n > 1;
    if (traits->route != DPT_GRADIENT_LANES || !(m->part.by_host || ring))
        return 0;
    const struct dpt_host_reducer_spec spec = {
        .of = {.buckets = m->buckets.bucket,
               .n_buckets = m->buckets.n,
               .block = m->spec->grid->block,
               .world = m->spec->world,
               .rank = m->part.rank,
               .wire = dpt_dtype_of(traits->wire),
               .shards = traits->state != DPT_STATE_REPLICATED}};
    if (ring) {
        size_t staging;
        struct dpt_err err;
        DPT_ASSERT(dpt_ring_reducer_bytes(&spec.of, &staging, &err) == DPT_OK);
        return (int64_t)staging;
    }
    const struct dpt_host_reducer_memory bytes = dpt_host_reducer_memory(&spec);
    return DPT_HOST_REDUCER_STAGINGS * (int64_t)bytes.staging + (int64_t)bytes.narrow;
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
    struct memory m;
    struct dpt_err err;
    const struct dpt_config *config = spec->config;
    const struct dpt_sample_form form = dpt_sample_form(config);
    const int64_t b = config->train.micro_batch, t = form.positions;
    memory_init(&m, spec);
    const bool cuda = is_cuda(&m);
    const struct dpt_strategy_traits *traits = &m.part.traits;
    if (traits->route != DPT_GRADIENT_UNITS)
        DPT_ASSERT(dpt_model_buckets_init(&m.buckets, config, spec->model, &err) == DPT_OK);
    memset(ret, 0, DPT_MEMORY_COUNT * sizeof *ret);
    add_held(&m, ret);
    ret[DPT_MEMORY_WEIGHTS] += cuda ? 0 : base_bytes(&m);
    if (spec->packed_operand > 0)
        ret[DPT_MEMORY_PACKED] = dpt_memory_packed(spec->model, spec->packed_operand);
    if (cuda) {
        ret[DPT_MEMORY_SLOT_GRADIENTS] += traits->on_device ? 0 : m.largest * F32;
    } else {
        ret[DPT_MEMORY_ACTIVATIONS] = (int64_t)dpt_model_saved_bytes(spec->model, b, t);
        ret[DPT_MEMORY_SCRATCH] = (int64_t)dpt_model_scratch_bytes(spec->model, b, t);
        ret[DPT_MEMORY_WORKSPACE] = dpt_memory_workspace(
            spec, traits->order_open || dpt_strategy_tied_unit(spec->model) < 0);
    }
    ret[DPT_MEMORY_COMM] +=
        reducer_bytes(&m) +
        (int64_t)dpt_comm_own_bytes(m.n, config->cluster.mesh_max, config->cluster.encrypt);
    ret[DPT_MEMORY_DATA] = DPT_BATCHES_AHEAD * (int64_t)dpt_batch_bytes(&form, b);
    if (cuda) /* memory for transfers to the device: a batch, and the stager's */
        ret[DPT_MEMORY_DATA] += (int64_t)dpt_batch_bytes(&form, b) +
                                (int64_t)dpt_stager_bytes((size_t)m.p * sizeof(float));
    if (config->trace.dir[0] && !config->train.eval_only)
        ret[DPT_MEMORY_TRACE] = (int64_t)dpt_trace_recorder_bytes(DPT_TRACE_EVENTS_MAX);
    dpt_model_buckets_fini(&m.buckets);
}

/* Adds the GPU's memory of a state that the GPU keeps. The host has a copy of the masters and
 * moments, and the same of a shadow. f32 masters lie in the weights of all units, where there are
 * any. */
static void add_held_on_device(const struct memory *m, int64_t ret[DPT_MEMORY_COUNT])
{
    struct dpt_memory_list list;
    list_held(m, &list);
    const bool in_whole = list.item[DPT_ITEM_WHOLE].n > 0 && m->k == 0;
    for (int i = 0; i < DPT_ITEM_COUNT; i++) {
        const struct dpt_memory_entry *item = &list.item[i];
        const bool state = i <= DPT_ITEM_SHADOW_V && !(i == DPT_ITEM_OWN_PARAM && in_whole);
        if (state || i >= DPT_ITEM_REGISTERED_COUNT)
            ret[item->tag] += item->n * (int64_t)item->bytes;
    }
}

void dpt_memory_device_formula(const struct dpt_memory_spec *spec, int64_t ret[DPT_MEMORY_COUNT])
{
    struct memory m;
    struct dpt_err err;
    const struct dpt_config *config = spec->config;
    const struct dpt_sample_form form = dpt_sample_form(config);
    const int64_t b = config->train.micro_batch, t = form.positions;
    memset(ret, 0, DPT_MEMORY_COUNT * sizeof *ret);
    memory_init(&m, spec);
    if (!is_cuda(&m))
        return;
    if (m.part.traits.route != DPT_GRADIENT_UNITS)
        DPT_ASSERT(dpt_model_buckets_init(&m.buckets, config, spec->model, &err) == DPT_OK);
    if (m.part.traits.on_device) {
        add_held_on_device(&m, ret);
    } else {
        ret[DPT_MEMORY_WEIGHTS] = m.p * m.w;
        ret[DPT_MEMORY_SLOT_GRADIENTS] = m.p * F32;
    }
    ret[DPT_MEMORY_WEIGHTS] += base_bytes(&m);
    ret[DPT_MEMORY_ACTIVATIONS] = (int64_t)dpt_model_saved_bytes(spec->model, b, t);
    ret[DPT_MEMORY_SCRATCH] = (int64_t)dpt_model_scratch_bytes(spec->model, b, t);
    ret[DPT_MEMORY_DATA] = (int64_t)dpt_batch_bytes(&form, b) + b * form.losses * F32 +
                           (dpt_model_labels(spec->model) > 0 ? b * F32 : 0);
    dpt_model_buckets_fini(&m.buckets);
}

static int64_t other_bytes(const int64_t formula[DPT_MEMORY_COUNT])
{
    static const enum dpt_memory_tag others[] = {
        DPT_MEMORY_SUMS,      DPT_MEMORY_PACKED, DPT_MEMORY_ACTIVATIONS, DPT_MEMORY_SCRATCH,
        DPT_MEMORY_WORKSPACE, DPT_MEMORY_COMM,   DPT_MEMORY_DATA,        DPT_MEMORY_TRACE};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        bytes += formula[others[i]];
    return bytes;
}

/* The largest shard of the state that any rank of this world (hybrid_shard: of this node; dp: this
 * rank) holds. */
static struct dpt_shard largest_held(const struct memory *m)
{
    if (m->part.traits.state == DPT_STATE_FIRST)
        return dpt_partition_held(&m->part, m->part.position);
    return (struct dpt_shard){0, dpt_partition_held(&m->part, m->part.position).of};
}

/* The bound where the GPU keeps the state: a copy of the rank's masters and moments, and the
 * gradient, if it is reduced in the host's memory. */
static int64_t bound_beside_device(const struct memory *m, const int64_t formula[DPT_MEMORY_COUNT])
{
    const int64_t shard = shard_numel(m, (struct dpt_shard){0, m->n});
    return shard_numel(m, largest_held(m)) * 12 + (m->part.by_host ? m->p * F32 : 0) +
           (m->part.shadow_source >= 0 ? 12 * shard : 0) + other_bytes(formula);
}

int64_t dpt_memory_bound(const struct dpt_memory_spec *spec)
{
    struct memory m;
    memory_init(&m, spec);
    const struct dpt_strategy_traits *t = &m.part.traits;
    const bool units = t->weights == DPT_WEIGHTS_UNITS;
    const int64_t held = shard_numel(&m, largest_held(&m)),
                  shard = t->state == DPT_STATE_FIRST ? held
                                                      : shard_numel(&m, (struct dpt_shard){0, m.n});
    const bool lanes = t->route == DPT_GRADIENT_LANES;
    int64_t formula[DPT_MEMORY_COUNT], bytes = is_cuda(&m) ? 0 : base_bytes(&m);
    dpt_memory_formula(spec, formula);
    if (t->on_device)
        return bound_beside_device(&m, formula);
    if (t->state == DPT_STATE_REPLICATED)
        bytes += m.p * (m.w + m.k + 12);
    else if (!units && lanes)
        bytes += m.p * (m.w + F32) + shard * (m.k + 8);
    else if (!units)
        bytes += m.p * m.w + shard * (m.k + 12);
    else
        bytes += held * (m.w + m.k + 12) + 2 * m.largest * (m.w + F32);
    if (!units && t->route == DPT_GRADIENT_UNITS)
        bytes += 8 * m.largest;
    if (t->state == DPT_STATE_PER_NODE)
        bytes += shard * F32;
    if (m.part.shadow_source >= 0)
        bytes += 16 * shard;
    bytes += other_bytes(formula);
    if (is_cuda(&m))
        bytes += m.largest * F32;
    return bytes;
}
