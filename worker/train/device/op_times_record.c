/* Where a rank's time goes: what its computing streams ran, by class of kernel (log.op_times). */
#include "base/log.h"
#include "worker/train/device/device.h"
#include "worker/train/log/log.h"

static void read_times(const struct dpt_rank *r, struct dpt_op_times *ret_host,
                       struct dpt_op_times *ret_device)
{
    dpt_stream_op_times(r->device->stream, ret_host);
    *ret_device = (struct dpt_op_times){.idle_ms = 0};
    if (r->device->accelerator)
        dpt_stream_op_times(dpt_accelerator_stream(r->device->accelerator), ret_device);
}

void rank_note_op_times(struct dpt_rank *r)
{
    if (!r->config->log.op_times)
        return;
    if (r->device->op_times.begun) {
        r->device->op_times.steps++;
        return;
    }
    r->device->op_times.begun = true;
    read_times(r, &r->device->op_times.host, &r->device->op_times.device);
}

void rank_write_op_times(struct dpt_rank *r)
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
