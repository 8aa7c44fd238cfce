/* The records of one rank at the end of a run: its memory, and the times of its kernels by class
 * (log.op_times). */
#include "base/log.h"
#include "worker/strategy/memory/memory_formula.h"
#include "worker/train/device/device.h"
#include "worker/train/log/log.h"

static void write_memory(const struct dpt_rank *r)
{
    struct dpt_strategy_cost cost;
    if (!r->gen.begun || !r->config->log.dir[0] || !rank_may_record(r, "the account of memory is"))
        return; /* a guest holds nothing of this world */
    dpt_strategy_cost(r->strategy, &cost);
    /* Whether weights are packed is the strategy's choice; what they take then is worked out. */
    const size_t operand = dpt_device_ops(r->device->host)
                               ->operand_bytes(r->device->stream, dpt_model_dtype(r->model));
    const struct dpt_memory_spec spec = {
        .config = r->config,
        .model = r->model,
        .grid = &r->grid,
        .world = &r->gen.world,
        .rank = r->gen.rank,
        .threads = r->device->threads,
        .packed_operand =
            cost.packed_bytes > 0 || dpt_base_packed(r->device->base) ? (int)operand : 0};
    struct dpt_memory_record m = {.node = r->options->start->node,
                                  .local_rank = r->options->start->local_rank,
                                  .rank = r->gen.rank,
                                  .world_size = r->gen.world_size,
                                  .strategy = r->config->strategy.name,
                                  .parameters = dpt_model_param_count(r->model),
                                  .elements = dpt_model_flat_numel(r->model),
                                  .after_first_step = r->device->memory_first,
                                  .bound = dpt_memory_bound(&spec),
                                  .process_at_start = r->device->memory_at_start,
                                  .shared_own = (int64_t)dpt_comm_listener_bytes(r->listener)};
    dpt_account_read(&r->device->memory, &m.use);
    if (r->device->accelerator)
        dpt_accelerator_memory(r->device->accelerator, &m.device);
    dpt_memory_formula(&spec, m.formula);
    dpt_memory_of_process("", &m.process);
    struct dpt_err err;
    if (dpt_runlog_memory(r->config->log.dir, &m, &err) != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the account of this rank's memory is lost: %s", err.text);
}

static void read_times(const struct dpt_rank *r, struct dpt_op_times *ret_host,
                       struct dpt_op_times *ret_device)
{
    dpt_stream_op_times(r->device->stream, ret_host);
    *ret_device = (struct dpt_op_times){.idle_ms = 0};
    if (r->device->accelerator)
        dpt_stream_op_times(dpt_accelerator_stream(r->device->accelerator), ret_device);
}

static void write_op_times(const struct dpt_rank *r)
{
    if (!r->device->op_times.begun || !r->config->log.dir[0] ||
        !rank_may_record(r, "the times of this rank's kernels are"))
        return;
    struct dpt_op_times host, device;
    read_times(r, &host, &device);
    struct dpt_op_times_record record = {.node = r->options->start->node,
                                         .local_rank = r->options->start->local_rank,
                                         .rank = r->gen.rank,
                                         .world_size = r->gen.world_size,
                                         .steps = r->device->op_times.steps,
                                         .has_device = r->device->accelerator != NULL};
    dpt_op_times_since(&host, &r->device->op_times.host, &record.host);
    dpt_op_times_since(&device, &r->device->op_times.device, &record.device);
    struct dpt_err err;
    if (dpt_runlog_op_times(r->config->log.dir, &record, &err) != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the times of this rank's kernels are lost: %s", err.text);
}

void rank_note_step(struct dpt_rank *r)
{
    struct rank_device *d = r->device;
    struct dpt_memory_use use;
    if (d->memory_first == 0) {
        dpt_account_read(&d->memory, &use);
        d->memory_first = use.all;
    }
    if (d->op_times.begun)
        d->op_times.steps++;
    else if (r->config->log.op_times)
        read_times(r, &d->op_times.host, &d->op_times.device);
    d->op_times.begun = r->config->log.op_times;
}

void rank_write_records(const struct dpt_rank *r)
{
    write_memory(r);
    write_op_times(r);
}
