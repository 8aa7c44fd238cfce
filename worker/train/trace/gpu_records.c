/* The records of a rank's GPU (gpu_records.h). */
#include "worker/train/trace/gpu_records.h"

#include "base/log.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/trace/rank_trace.h"

/* Most records of a window. A step of GPT-2 with 124M parameters and 32 slots has about 50,000. */
enum { GPU_RECORDS_MAX = 1 << 18 };

/* Ends the records of this rank for good; training goes on. */
static void give_up(struct dpt_rank *r, const struct dpt_err *err)
{
    dpt_log(DPT_LOG_WARN, "the traces of this rank lack its GPU and have its host's threads: %s",
            err->text);
    rank_close_gpu_records(r);
}

void rank_open_gpu_records(struct dpt_rank *r)
{
    struct dpt_err err;
    if (r->config->cluster.device == DPT_DEVICE_CUDA &&
        dpt_activity_open(GPU_RECORDS_MAX, &r->trace->gpu.activity, &err) != DPT_OK)
        give_up(r, &err);
}

void rank_close_gpu_records(struct dpt_rank *r)
{
    dpt_activity_close(&r->trace->gpu.activity);
    r->trace->gpu.on = false;
}

/* Waits for the work that the main thread has posted. Work of the communication thread is done when
 * a step is. An error of the device stays with its stream, where the next step finds it. */
static enum dpt_status await_gpu(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_stream *stream = dpt_device_model_stream(r->device->device_model);
    struct dpt_event *event = NULL;
    DPT_TRY(dpt_event_create(dpt_device_model_device(r->device->device_model), &event, err));
    dpt_event_record(event, stream);
    dpt_event_wait(event, stream);
    dpt_event_destroy(&event);
    return DPT_OK;
}

void rank_begin_gpu_records(struct dpt_rank *r)
{
    struct rank_gpu_records *gpu = &r->trace->gpu;
    struct dpt_err err;
    if (!gpu->activity)
        return;
    enum dpt_status status = await_gpu(r, &err);
    if (status == DPT_OK && !gpu->on) {
        dpt_device_model_drop_graphs(r->device->device_model);
        status = dpt_activity_start(gpu->activity, &err);
        gpu->on = status == DPT_OK;
    } else if (status == DPT_OK) {
        dpt_activity_restart(gpu->activity);
    }
    if (status != DPT_OK)
        give_up(r, &err);
}

void rank_end_gpu_records(struct dpt_rank *r)
{
    struct rank_gpu_records *gpu = &r->trace->gpu;
    struct dpt_err err;
    if (!gpu->on)
        return;
    const enum dpt_status status = await_gpu(r, &err);
    dpt_activity_stop(gpu->activity);
    gpu->on = false;
    dpt_activity_read(gpu->activity, &gpu->records);
    if (status != DPT_OK)
        give_up(r, &err);
}

const struct dpt_device_records *rank_gpu_records(const struct dpt_rank *r)
{
    return r->trace->gpu.activity ? &r->trace->gpu.records : NULL;
}
