/* A generation's lists and its task runner (strategy_internal.h). */
#include "worker/strategy/strategy_internal.h"

static const struct dpt_task_handler *const handlers[DPT_TASK_COUNT] = {
    [DPT_TASK_GATHER] = &strategy_gather,
    [DPT_TASK_SCATTER] = &strategy_scatter,
    [DPT_TASK_CROSS] = &strategy_cross,
    [DPT_TASK_SHARE] = &strategy_share,
    [DPT_TASK_COPY] = &strategy_copy};

/* The name of a dtype in PyTorch's traces. */
static const char *dtype_name(enum dpt_dtype dtype)
{
    static const char *const names[DPT_DTYPE_COUNT] = {
        [DPT_F32] = "Float", [DPT_BF16] = "BFloat16", [DPT_F16] = "Half"};
    return names[dtype];
}

/* ---- labels in traces ---- */

static struct dpt_task_label label_of(enum dpt_trace_collective collective, const char *dtype,
                                      size_t width)
{
    return (struct dpt_task_label){.collective = collective, .dtype = dtype, .width = width};
}

static void set_group(struct dpt_task_label *label, enum dpt_trace_scope scope, int number,
                      int size)
{
    label->group = (struct dpt_trace_group){scope, number};
    label->group_size = size;
}

/* The number of nodes whose ranks are at positions before `end`. */
static int nodes_before(const struct dpt_world *world, int end)
{
    int n = 0;
    for (int position = 0; position < end; position = dpt_world_node(world, position).end)
        n++;
    return n;
}

static int largest_divisor(int a, int b)
{
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The group of the ranks of all nodes that have the same part of the state. Nodes of different
 * sizes have different shards: then a part is the least that is whole shards of every node. */
static void label_across(const struct dpt_strategy *s, struct dpt_task_label *label)
{
    const struct dpt_world *world = s->part.world;
    const struct dpt_shard own = dpt_partition_held(&s->part, s->part.position);
    int parts = 0;
    for (int position = 0; position < world->size;) {
        const struct dpt_range node = dpt_world_node(world, position);
        parts = largest_divisor(node.end - node.first, parts);
        position = node.end;
    }
    if (parts > 1)
        set_group(label, DPT_TRACE_ACROSS,
                  1 + nodes_before(world, world->size) + own.index * parts / own.of,
                  world->size / parts);
}

/* The group of each kind of task. Between nodes some blocks also go to a neighbouring group: pieces
 * are whole blocks, so the pieces of a part need not end where the part ends. */
static void label_groups(const struct dpt_strategy *s, struct dpt_task_label label[DPT_TASK_COUNT])
{
    const struct dpt_partition *part = &s->part;
    const struct dpt_range group = part->group;
    for (int kind = 0; kind < DPT_TASK_COUNT; kind++)
        set_group(&label[kind], DPT_TRACE_WORLD, 0, part->world->size);
    if (group.end - group.first == part->world->size)
        return;
    const int node = 1 + nodes_before(part->world, group.first), size = group.end - group.first;
    set_group(&label[DPT_TASK_GATHER], DPT_TRACE_NODE, node, size);
    if (!part->crosses)
        return;
    set_group(&label[DPT_TASK_SCATTER], DPT_TRACE_NODE, node, size);
    label_across(s, &label[DPT_TASK_CROSS]);
    label_across(s, &label[DPT_TASK_SHARE]);
}

/* The labels of tasks in traces. Gradients that are narrower between hosts than within one are
 * counted in bytes. */
static void label_tasks(const struct dpt_strategy *s, struct dpt_task_label label[DPT_TASK_COUNT])
{
    const bool narrow = s->wire != DPT_F32;
    const char *gradient = narrow ? "Byte" : dtype_name(DPT_F32);
    const size_t width = narrow ? 1 : sizeof(float);
    label[DPT_TASK_GATHER] = label_of(DPT_TRACE_ALL_GATHER, dtype_name(s->dtype), s->width);
    label[DPT_TASK_SCATTER] = label_of(DPT_TRACE_REDUCE_SCATTER, gradient, width);
    label[DPT_TASK_CROSS] = label[DPT_TASK_SCATTER];
    label[DPT_TASK_SHARE] = label_of(DPT_TRACE_ALL_GATHER, gradient, width);
    label[DPT_TASK_COPY] = label_of(DPT_TRACE_SEND_RECV, dtype_name(DPT_F32), sizeof(float));
    label_groups(s, label);
}

static enum dpt_status make_runner(struct dpt_strategy *s, struct dpt_err *err)
{
    const int world_size = s->part.world->size, others = world_size - 1,
              crossing = s->waves.cross_xfers_max;
    const int most =
        s->list.n_tasks > s->eval_list.n_tasks ? s->list.n_tasks : s->eval_list.n_tasks;
    /* Where nodes add their own lanes, GATHER and SCATTER stay within a node's group. */
    const int group = s->traits.by_node && world_size > 1 ? STRATEGY_NODE_GROUP : 0;
    struct dpt_task_runner_spec spec = {
        .thread = s->env.comm_thread,
        .world_size = world_size,
        .xfers_max = most == 0           ? 0
                     : crossing > others ? crossing
                                         : others,
        .device = most > 0 && s->traits.by_nccl ? s->device : NULL,
        .stream = s->stream,
        .comm_stream = s->comm_stream,
        .handlers = handlers,
        .turns = {[DPT_TASK_SCATTER] = s->waves.staging.data ? DPT_STAGING_TURNS : 0,
                  [DPT_TASK_CROSS] = DPT_STAGING_TURNS},
        .group = {[DPT_TASK_GATHER] = group, [DPT_TASK_SCATTER] = group},
        .ctx = s,
        .then = s->lanes.reducer ? dpt_reducer_job : NULL,
        .then_ctx = s->lanes.reducer};
    label_tasks(s, spec.label);
    return dpt_task_runner_create(&spec, most, &s->runner, err);
}

/* Makes the ranks of a node an NCCL group, if they have tasks among themselves. */
static void set_nccl_groups(const struct dpt_strategy *s)
{
    const struct dpt_nccl_split_of node = {.color = s->part.group.first, .key = s->part.position};
    dpt_comm_thread_set_groups(s->env.comm_thread, &node, s->traits.by_node ? 1 : 0);
}

static enum dpt_status make_lists(struct dpt_strategy *s, struct dpt_step_spec *spec,
                                  struct dpt_err *err)
{
    DPT_TRY(dpt_step_list_init(&s->list, spec, err));
    const struct dpt_step_spec eval = {.n_units = spec->n_units,
                                       .borrows = spec->borrows,
                                       .weights = spec->weights,
                                       .gathered_max = spec->gathered_max,
                                       .prefetch = spec->prefetch,
                                       .forward_only = true};
    return dpt_step_list_init(&s->eval_list, &eval, err);
}

enum dpt_status strategy_lists_begin(struct dpt_strategy *s, struct dpt_err *err)
{
    const struct dpt_config *config = s->env.config;
    const struct dpt_world *world = s->part.world;
    const int group = s->part.group.end - s->part.group.first;
    struct dpt_step_spec spec = {
        .n_units = s->n_units,
        .borrows = s->borrows,
        .assignment = dpt_partition_assign(config, world, s->part.position),
        .weights = group == 1 ? DPT_WEIGHTS_HELD : s->traits.weights,
        .gathered_max = dpt_strategy_gathered_places(config, s->env.model),
        .prefetch = config->strategy.prefetch,
        .overlap = config->strategy.overlap,
        .n_buckets = s->traits.route == DPT_GRADIENT_UNITS ? 0 : s->buckets.n,
        .bucket_unit = s->buckets.unit,
        .buckets = s->traits.buckets};
    set_nccl_groups(s);
    DPT_TRY(s->route->begin_generation(s, &spec, err));
    DPT_TRY(make_lists(s, &spec, err));
    return make_runner(s, err);
}

void strategy_lists_end(struct dpt_strategy *s)
{
    dpt_task_runner_destroy(&s->runner);
    strategy_lanes_end(s);
    strategy_cross_end(s);
    strategy_waves_end(s);
    dpt_step_list_fini(&s->list);
    dpt_step_list_fini(&s->eval_list);
    s->step.present = NULL;
}

int64_t strategy_task_bytes(const struct dpt_strategy *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->list.n_tasks; i++) {
        const struct dpt_task *task = &s->list.tasks[i];
        const struct dpt_task_handler *handler = handlers[task->kind];
        for (int k = 1; handler->bytes_to && k < s->part.world->size; k++)
            bytes += handler->bytes_to(s, task, strategy_other(s, k));
    }
    return bytes;
}
