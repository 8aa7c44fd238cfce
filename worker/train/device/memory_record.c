/* What a rank says of its memory at the run's end. */
#include "base/log.h"
#include "worker/strategy/memory/memory_formula.h"
#include "worker/train/device/device.h"
#include "worker/train/log/log.h"

void rank_note_first_step(struct dpt_rank *r)
{
    struct dpt_memory_use use;
    if (r->device->memory_first > 0)
        return;
    dpt_account_read(&r->device->memory, &use);
    r->device->memory_first = use.all;
}

void rank_write_memory(struct dpt_rank *r)
{
    struct dpt_strategy_cost cost;
    if (!r->gen.begun || !r->config->log.dir[0] || !rank_may_record(r, "the account of memory is"))
        return; /* a guest holds nothing of this world */
    r->strategy->ops->cost(r->strategy, &cost);
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
