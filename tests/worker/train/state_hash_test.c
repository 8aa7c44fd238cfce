/* The weights hash of a sharded state is that of the whole state, for every division. */
#include "worker/train/save/state_hash.h"

#include "tests/worker/comm/comm_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Tensors below, at and above a block of the hash; units that end in the middle of one, and one of
 * fewer blocks than there are ranks. */
enum { BLOCK = 1024, TENSORS = 9, UNITS = 4, N0 = 3 * 65536 + 700 };
static const struct {
    int unit;
    int64_t numel;
} shape[TENSORS] = {{0, N0},  {0, 65536}, {0, 5},     {1, 768},   {1, 768},
                    {1, 768}, {2, 65537}, {2, 99000}, {3, 140000}};

static struct dpt_checkpoint_tensor tensor[TENSORS];
static int64_t offset[TENSORS], unit_offset[UNITS + 1];
static const struct dpt_grid grid = {.offset = unit_offset, .n_units = UNITS, .block = BLOCK};
static const struct dpt_state_tensors tensors = {
    .tensor = tensor, .offset = offset, .n = TENSORS, .grid = &grid};
static float *flat;
static char expected[DPT_HASH_HEX_BYTES];

static int make_state(void **state)
{
    (void)state;
    int64_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        if (i == 0 || shape[i].unit != shape[i - 1].unit)
            unit_offset[shape[i].unit] = at = (at + BLOCK - 1) / BLOCK * BLOCK;
        tensor[i] = (struct dpt_checkpoint_tensor){.name = "t", .ndim = 1, .dim = {shape[i].numel}};
        offset[i] = at;
        at += shape[i].numel;
    }
    unit_offset[UNITS] = (at + BLOCK - 1) / BLOCK * BLOCK;
    flat = calloc((size_t)unit_offset[UNITS], sizeof *flat);
    uint32_t x = 9;
    for (int i = 0; i < TENSORS; i++) {
        tensor[i].param = flat + offset[i];
        for (int64_t k = 0; k < shape[i].numel; k++)
            tensor[i].param[k] = (float)(int32_t)(x = x * 1664525u + 1013904223u);
    }
    dpt_hash128_hex(dpt_weights_hash(tensor, TENSORS), expected);
    return 0;
}

static int free_state(void **state)
{
    (void)state;
    free(flat);
    return 0;
}

struct plan {
    struct dpt_shard shards[RANKS_MAX];
    bool flat_masters; /* at their places in a whole vector, as zero1 keeps them */
    bool lacks_cover;
};

static void hold(struct rank *self, const struct plan *plan, struct dpt_state_part *ret)
{
    const struct dpt_shard shard = plan->shards[self->rank];
    const int64_t numel = plan->flat_masters ? unit_offset[UNITS] : dpt_shard_numel(&grid, shard);
    *ret = (struct dpt_state_part){.shard = shard};
    ret->vector[DPT_VECTOR_PARAM].flat = plan->flat_masters;
    CHECK_OK(dpt_comm_mem_create(self->listener, (size_t)(numel > 0 ? numel : 1) * sizeof(float),
                                 &ret->vector[DPT_VECTOR_PARAM].mem, &self->err),
             &self->err);
    for (int u = 0; u < UNITS; u++) {
        const struct dpt_interval piece = dpt_shard_piece(&grid, shard, u);
        if (piece.first < piece.end)
            memcpy(dpt_strategy_state_at(ret, &grid, DPT_VECTOR_PARAM, u), flat + piece.first,
                   (size_t)(piece.end - piece.first) * sizeof(float));
    }
}

static void hash_as_rank(struct rank *self)
{
    const struct plan *plan = self->world->arg;
    struct dpt_state_part own;
    struct dpt_hash128 hash = {0, 0};
    char hex[DPT_HASH_HEX_BYTES];
    hold(self, plan, &own);
    struct dpt_comm *comm = self->world->size > 1 ? world_comm(self, 1) : NULL;
    const struct dpt_state_hash spec = {.tensors = &tensors,
                                        .own = &own,
                                        .shards = plan->shards,
                                        .world = self->world->size,
                                        .rank = self->rank};
    for (int twice = 0; twice < 2; twice++) {
        CHECK_STATUS(plan->lacks_cover ? DPT_ECORRUPT : DPT_OK,
                     dpt_state_hash(comm, &spec, &hash, &self->err), &self->err);
        dpt_hash128_hex(hash, hex);
        CHECK(plan->lacks_cover || strcmp(hex, expected) == 0);
    }
    if (comm)
        dpt_comm_destroy(&comm);
    dpt_comm_mem_destroy(&own.vector[DPT_VECTOR_PARAM].mem);
}

static void run_state_hashes(struct plan *plan, int world)
{
    struct world *w = world_shared(world, (const int[RANKS_MAX]){0, 0, 1, 1, 2, 0, 1, 2});
    w->arg = plan;
    world_run_threads(w, hash_as_rank);
    world_free(w);
}

static void one_cut(void **state)
{
    (void)state;
    for (int world = 1; world <= 6; world++)
        for (int flat_masters = 0; flat_masters < 2; flat_masters++) {
            struct plan plan = {.flat_masters = flat_masters};
            for (int i = 0; i < world; i++) /* not in the order of ranks */
                plan.shards[i] = (struct dpt_shard){(i + 1) % world, world};
            run_state_hashes(&plan, world);
        }
}

static void replicas_and_mixtures(void **state)
{
    (void)state;
    struct plan plans[] = {{.shards = {{0, 1}, {0, 1}, {0, 1}}},
                           {.shards = {{0, 2}, {1, 2}, {0, 2}, {1, 2}}},
                           {.shards = {{1, 2}, {0, 3}, {1, 3}, {0, 2}, {2, 3}}},
                           {.shards = {{0, 1}, {1, 2}, {0, 2}}},
                           {.shards = {{0, 2}, {0, 1}, {1, 2}}},
                           {.shards = {{0, 2}, {0, 0}, {1, 2}}}};
    const int world[] = {3, 4, 5, 3, 3, 3};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        run_state_hashes(&plans[i], world[i]);
}

static void not_everything(void **state)
{
    (void)state;
    struct plan plan = {.shards = {{0, 3}, {1, 3}, {1, 2}}, .lacks_cover = true};
    run_state_hashes(&plan, 3);
}

/* Each element of each vector counts, and none of a vector that is not asked for. */
static void hash_parts(struct rank *self)
{
    struct plan plan = {.shards = {{1, 3}}};
    struct dpt_state_part part;
    hold(self, &plan, &part);
    const size_t bytes = dpt_comm_mem_bytes(part.vector[DPT_VECTOR_PARAM].mem);
    for (int v = DPT_VECTOR_M; v < DPT_VECTOR_COUNT; v++) {
        CHECK_OK(dpt_comm_mem_create(self->listener, bytes, &part.vector[v].mem, &self->err),
                 &self->err);
        memset(dpt_comm_mem_data(part.vector[v].mem), v, bytes);
    }
    const struct dpt_hash128 whole = dpt_state_part_hash(&part, &grid, DPT_VECTOR_COUNT);
    const struct dpt_hash128 less = dpt_state_part_hash(&part, &grid, DPT_VECTOR_V);
    CHECK(whole.lo != less.lo);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        for (int last = 0; last < 2; last++) {
            float *all = dpt_comm_mem_data(part.vector[v].mem);
            float *at = all + (last ? dpt_shard_numel(&grid, part.shard) - 1 : 0);
            const float was = *at;
            *(uint8_t *)at ^= 1;
            CHECK(dpt_state_part_hash(&part, &grid, DPT_VECTOR_COUNT).lo != whole.lo);
            CHECK((dpt_state_part_hash(&part, &grid, DPT_VECTOR_V).lo == less.lo) ==
                  (v == DPT_VECTOR_V));
            *at = was;
        }
    CHECK(dpt_state_part_hash(&part, &grid, DPT_VECTOR_COUNT).lo == whole.lo);
    part.shard = (struct dpt_shard){0};
    CHECK(dpt_state_part_hash(&part, &grid, DPT_VECTOR_COUNT).lo == 0);
    for (int v = 0; v < DPT_VECTOR_COUNT; v++)
        dpt_comm_mem_destroy(&part.vector[v].mem);
}

static void test_hash_of_parts(void **state)
{
    (void)state;
    struct world *w = world_shared(1, (const int[RANKS_MAX]){0});
    world_run_threads(w, hash_parts);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_cut), cmocka_unit_test(replicas_and_mixtures),
        cmocka_unit_test(not_everything), cmocka_unit_test(test_hash_of_parts)};
    return cmocka_run_group_tests(tests, make_state, free_state);
}
