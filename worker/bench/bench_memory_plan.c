/* dpt-bench memory --plan: the memory of each strategy in worlds that are not started, by the
 * formulas of worker/strategy/memory/memory_formula.h for the user's own config. */
#include "worker/bench/bench_memory_plan.h"

#include "base/fs.h"
#include "base/strategy_traits.h"
#include "worker/model/model.h"
#include "worker/planner/world_memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT_BYTES = 192 };

/* The tags that each column adds up. */
static const enum dpt_memory_tag states[] = {DPT_MEMORY_WEIGHTS, DPT_MEMORY_MASTERS,
                                             DPT_MEMORY_MOMENTS, DPT_MEMORY_GATHERED,
                                             DPT_MEMORY_PACKED},
                                 gradients[] = {DPT_MEMORY_GRADIENT, DPT_MEMORY_SUMS,
                                                DPT_MEMORY_SLOT_GRADIENTS},
                                 copies[] = {DPT_MEMORY_SHADOW},
                                 batch[] = {DPT_MEMORY_ACTIVATIONS, DPT_MEMORY_SCRATCH,
                                            DPT_MEMORY_WORKSPACE, DPT_MEMORY_DATA},
                                 others[] = {DPT_MEMORY_COMM};
static const struct column {
    const char *name;
    const enum dpt_memory_tag *tags;
    size_t n;
} columns[] = {
    {"state", states, sizeof states / sizeof *states},
    {"gradients", gradients, sizeof gradients / sizeof *gradients},
    {"shadow", copies, sizeof copies / sizeof *copies},
    {"batch", batch, sizeof batch / sizeof *batch},
    {"comm", others, sizeof others / sizeof *others},
};
enum { COLUMNS = sizeof columns / sizeof *columns };

static int64_t sum_of(const struct column *column, const int64_t bytes[DPT_MEMORY_COUNT])
{
    int64_t sum = 0;
    for (size_t i = 0; i < column->n; i++)
        sum += bytes[column->tags[i]];
    return sum;
}

/* A strategy in one world. */
struct row {
    const char *strategy;
    struct dpt_world_shape shape;
    struct dpt_world_memory memory;
};

static enum dpt_status add_row(json_t *rows, const struct row *row, struct dpt_err *err)
{
    json_t *tags = json_object(), *object;
    for (int t = 0; tags && t < DPT_MEMORY_COUNT; t++)
        (void)json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)t),
                                  json_integer(row->memory.bytes[t]));
    object = json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:o}", "strategy", row->strategy, "nodes",
                       row->shape.machines, "ranks_per_node", row->shape.each, "ranks",
                       row->memory.ranks, "rank_bytes", (json_int_t)row->memory.rank_bytes,
                       "node_bytes", (json_int_t)row->memory.machine_bytes, "tags", tags);
    if (!object || json_array_append_new(rows, object) != 0)
        return dpt_fail(err, DPT_ENOMEM, "report: out of memory");
    return DPT_OK;
}

static void print_plan_head(void)
{
    printf("MiB of the host's memory for the rank that holds most, without the program itself\n"
           "%-18s %7s",
           "strategy", "world");
    for (int c = 0; c < COLUMNS; c++)
        printf(" %10s", columns[c].name);
    printf(" %10s %10s\n", "rank", "its node");
}

static void print_plan_row(const struct row *row)
{
    char world[32];
    (void)snprintf(world, sizeof world, "%dx%d", row->shape.machines, row->shape.each);
    printf("%-18s %7s", row->strategy, world);
    for (int c = 0; c < COLUMNS; c++)
        printf(" %10.1f", (double)sum_of(&columns[c], row->memory.bytes) / 0x1p20);
    printf(" %10.1f %10.1f\n", (double)row->memory.rank_bytes / 0x1p20,
           (double)row->memory.machine_bytes / 0x1p20);
}

/* Says that some ranks stay spare, because a step has fewer slots or lanes than the world has
 * ranks. */
static void print_limit(const struct dpt_config *config, const struct row *row)
{
    const int machines = row->shape.machines, each = row->shape.each, ranks = row->memory.ranks;
    const bool reduce = dpt_strategy_traits(config).order == DPT_ACCUMULATE_REDUCE;
    printf("%-18s %4dx%-2d trains on at most %d ranks, one a %s; the other %d are spares\n", "",
           machines, each, ranks,
           reduce ? "slot (train.global_batch / train.micro_batch)" : "lane (train.lanes)",
           machines * each - ranks);
}

static enum dpt_status plan_world(const struct dpt_config *config, const struct dpt_model *model,
                                  struct row *row, json_t *rows, struct dpt_err *err)
{
    dpt_world_memory(config, model, row->shape, &row->memory);
    print_plan_row(row);
    if (row->memory.ranks < row->shape.machines * row->shape.each)
        print_limit(config, row);
    return add_row(rows, row, err);
}

/* Loads the config with strategy `section` and this number of nodes. */
static enum dpt_status load_config(const struct memory_plan *plan, const char *section, int nodes,
                                   struct dpt_config *ret, struct dpt_err *err)
{
    char strategy[TEXT_BYTES], nnodes[TEXT_BYTES];
    const char *overrides[DPT_BENCH_SETS_MAX + 2];
    size_t n = 0, bytes = 0;
    char *text = NULL;
    for (int i = 0; i < plan->sets.n; i++)
        overrides[n++] = plan->sets.set[i];
    (void)snprintf(strategy, sizeof strategy, "strategy={%s}", section);
    (void)snprintf(nnodes, sizeof nnodes, "cluster.nnodes=%d", nodes);
    overrides[n++] = strategy;
    overrides[n++] = nnodes;
    if (plan->config)
        DPT_TRY(dpt_fs_read_stream(plan->config, MEMORY_PLAN_CONFIG_BYTES, &text, &bytes, err));
    const enum dpt_status status =
        dpt_config_load(&(struct dpt_config_input){.text = text ? text : "",
                                                   .bytes = bytes,
                                                   .name = plan->config ? plan->config : "defaults",
                                                   .overrides = overrides,
                                                   .n_overrides = n},
                        ret, err);
    free(text);
    return status;
}

enum dpt_status memory_plan_add(const struct memory_plan *plan, const char *name,
                                const char *section, json_t *rows, struct dpt_err *err)
{
    static struct dpt_config config;
    for (int i = 0; i < plan->n_shapes; i++) {
        struct dpt_model *model = NULL;
        enum dpt_status status = load_config(plan, section, plan->shapes[i][0], &config, err);
        if (status == DPT_ECONFIG) {
            printf("%-18s %4dx%-2d refused: %s\n", name, plan->shapes[i][0], plan->shapes[i][1],
                   err->text);
            continue;
        }
        if (status == DPT_OK)
            status = dpt_model_create(&config, &model, err);
        if (status != DPT_OK)
            return status;
        if (json_array_size(rows) == 0)
            print_plan_head();
        struct row row = {.strategy = name, .shape = {plan->shapes[i][0], plan->shapes[i][1]}};
        status = plan_world(&config, model, &row, rows, err);
        dpt_model_destroy(&model);
        if (status != DPT_OK)
            return status;
    }
    return DPT_OK;
}
