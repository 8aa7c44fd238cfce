/* The memory of a world: see world_memory.h. */
#include "worker/planner/world_memory.h"

#include <string.h>

/* A world, and the tables that its spec points to. */
struct scene {
    int64_t offsets[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_planned_world planned;
    struct dpt_memory_spec spec;
};

static void scene_set_grid(struct scene *s, const struct dpt_model *model)
{
    const int n = dpt_model_n_units(model);
    for (int u = 0; u < n; u++)
        s->offsets[u] = dpt_model_unit(model, u)->offset;
    s->offsets[n] = dpt_model_flat_numel(model);
    s->grid = (struct dpt_grid){.offset = s->offsets, .n_units = n, .block = DPT_BLOCK};
}

static void scene_init(struct scene *s, const struct dpt_config *config,
                       const struct dpt_model *model, struct dpt_world_shape shape)
{
    dpt_planned_world_init(&s->planned, config, shape);
    scene_set_grid(s, model);
    s->spec = (struct dpt_memory_spec){
        .config = config,
        .model = model,
        .grid = &s->grid,
        .world = &s->planned.world,
        .threads = config->cluster.threads == DPT_AUTO ? 1 : config->cluster.threads};
}

/* Bytes of an element as matrix products read it. Machines that widen bf16 before the product need
 * 4; they are rare, and not considered here. */
static int operand_of(const struct dpt_config *config)
{
    return config->train.precision == DPT_PRECISION_BF16 ? 2 : 4;
}

static int64_t scene_rank_bytes(struct scene *s, int rank, int64_t ret[DPT_MEMORY_COUNT])
{
    int64_t sum = 0;
    s->spec.rank = rank;
    s->spec.packed_operand = dpt_memory_may_pack(&s->spec) ? operand_of(s->spec.config) : 0;
    dpt_memory_formula(&s->spec, ret);
    for (int t = 0; t < DPT_MEMORY_COUNT; t++)
        sum += ret[t];
    return sum;
}

void dpt_world_memory(const struct dpt_config *config, const struct dpt_model *model,
                      struct dpt_world_shape shape, struct dpt_world_memory *ret)
{
    struct scene s;
    int64_t machine = 0;
    scene_init(&s, config, model, shape);
    *ret = (struct dpt_world_memory){.ranks = s.planned.world.size};
    for (int r = 0; r < ret->ranks; r++) {
        int64_t bytes[DPT_MEMORY_COUNT];
        const int64_t sum = scene_rank_bytes(&s, r, bytes);
        if (sum > ret->rank_bytes) {
            ret->rank_bytes = sum;
            memcpy(ret->bytes, bytes, sizeof bytes);
        }
        machine = (r % shape.each == 0 ? 0 : machine) + sum;
        ret->machine_bytes = machine > ret->machine_bytes ? machine : ret->machine_bytes;
    }
}

int64_t dpt_world_memory_ends(const struct dpt_config *config, const struct dpt_model *model,
                              struct dpt_world_shape shape)
{
    struct scene s;
    int64_t bytes[DPT_MEMORY_COUNT];
    scene_init(&s, config, model, shape);
    const int64_t first = scene_rank_bytes(&s, 0, bytes),
                  last = scene_rank_bytes(&s, s.planned.world.size - 1, bytes);
    return first > last ? first : last;
}
