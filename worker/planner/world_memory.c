/* The memory of a world: see world_memory.h. */
#include "worker/planner/world_memory.h"

#include <stdlib.h>
#include <string.h>

/* A world, and the tables that its spec points to. */
struct scene {
    int64_t offsets[DPT_UNITS_MAX + 1];
    struct dpt_grid grid;
    struct dpt_world world;
    struct dpt_memory_spec spec;
    int *numbers;
};

static void scene_set_grid(struct scene *s, const struct dpt_model *model)
{
    const int n = dpt_model_n_units(model);
    for (int u = 0; u < n; u++)
        s->offsets[u] = dpt_model_unit(model, u)->offset;
    s->offsets[n] = dpt_model_flat_numel(model);
    s->grid = (struct dpt_grid){.offset = s->offsets, .n_units = n, .block = DPT_BLOCK};
}

static enum dpt_status scene_init(struct scene *s, const struct dpt_config *config,
                                  const struct dpt_model *model, struct dpt_world_shape shape,
                                  struct dpt_err *err)
{
    const int all = shape.machines * shape.each, most = dpt_config_world_max(config);
    const int n = all < most ? all : most;
    s->numbers = calloc(2 * (size_t)n, sizeof *s->numbers);
    if (!s->numbers)
        return dpt_fail_nomem(err, "plan of %d ranks", n);
    for (int i = 0; i < n; i++) {
        s->numbers[i] = i;
        s->numbers[n + i] = i / shape.each;
    }
    scene_set_grid(s, model);
    s->world = (struct dpt_world){.lanes = dpt_config_lanes_of(config, n),
                                  .size = n,
                                  .rank_of_position = s->numbers,
                                  .host_of_position = s->numbers + n,
                                  .node_of_position = s->numbers + n};
    s->spec = (struct dpt_memory_spec){
        .config = config,
        .model = model,
        .grid = &s->grid,
        .world = &s->world,
        .threads = config->cluster.threads == DPT_AUTO ? 1 : config->cluster.threads};
    return DPT_OK;
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

enum dpt_status dpt_world_memory(const struct dpt_config *config, const struct dpt_model *model,
                                 struct dpt_world_shape shape, struct dpt_world_memory *ret,
                                 struct dpt_err *err)
{
    struct scene s;
    int64_t machine = 0;
    DPT_TRY(scene_init(&s, config, model, shape, err));
    *ret = (struct dpt_world_memory){.ranks = s.world.size};
    for (int r = 0; r < s.world.size; r++) {
        int64_t bytes[DPT_MEMORY_COUNT];
        const int64_t sum = scene_rank_bytes(&s, r, bytes);
        if (sum > ret->rank_bytes) {
            ret->rank_bytes = sum;
            memcpy(ret->bytes, bytes, sizeof bytes);
        }
        machine = (r % shape.each == 0 ? 0 : machine) + sum;
        ret->machine_bytes = machine > ret->machine_bytes ? machine : ret->machine_bytes;
    }
    free(s.numbers);
    return DPT_OK;
}

enum dpt_status dpt_world_memory_ends(const struct dpt_config *config,
                                      const struct dpt_model *model, struct dpt_world_shape shape,
                                      int64_t *ret_bytes, struct dpt_err *err)
{
    struct scene s;
    int64_t bytes[DPT_MEMORY_COUNT];
    DPT_TRY(scene_init(&s, config, model, shape, err));
    const int64_t first = scene_rank_bytes(&s, 0, bytes),
                  last = scene_rank_bytes(&s, s.world.size - 1, bytes);
    free(s.numbers);
    *ret_bytes = first > last ? first : last;
    return DPT_OK;
}
