/* Writes the records of one rank at the end of a run: its memory (rank_memory.c), and the times of
 * its kernels by class (log.op_times). */
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"

static void read_times(const struct dpt_rank *r, struct dpt_op_times *ret_host,
                       struct dpt_op_times *ret_device)
{
    dpt_stream_op_times(r->device->stream, ret_host);
    *ret_device = (struct dpt_op_times){.idle_ms = 0};
    if (r->device->device_model)
        dpt_stream_op_times(dpt_device_model_stream(r->device->device_model), ret_device);
}

static json_t *op_times_json(const struct dpt_op_times *now, const struct dpt_op_times *before)
{
    struct dpt_op_times t;
    json_t *classes = json_object();
    double busy_ms = 0;
    dpt_op_times_since(now, before, &t);
    for (int i = 0; i < DPT_OP_CLASSES; i++) {
        busy_ms += t.ms[i];
        if (t.calls[i] > 0)
            json_object_set_new(classes, dpt_op_class_name((enum dpt_op_class)i),
                                json_pack("{s:o, s:I}", "ms", dpt_run_file_real(t.ms[i]), "calls",
                                          (json_int_t)t.calls[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "busy_ms", dpt_run_file_real(busy_ms), "idle_ms",
                     dpt_run_file_real(t.idle_ms), "classes", classes);
}

static void write_op_times(const struct dpt_rank *r)
{
    const struct rank_device *d = r->device;
    struct dpt_op_times host, device;
    if (!d->op_times.begun || !r->config->log.dir[0] ||
        !rank_may_record(r, "the times of this rank's kernels are"))
        return;
    read_times(r, &host, &device);
    json_t *object = json_pack(
        "{s:s, s:i, s:i, s:i, s:I, s:o, s:o}", "node", r->options->start->node, "local_rank",
        r->options->start->local_rank, "rank", r->gen.rank, "world_size", r->gen.world_size,
        "steps", (json_int_t)d->op_times.steps, "host", op_times_json(&host, &d->op_times.host),
        "device", d->device_model ? op_times_json(&device, &d->op_times.device) : json_null());
    rank_write_record(r, "op_times", object);
}

void rank_note_step(struct dpt_rank *r)
{
    struct rank_device *d = r->device;
    rank_note_memory(r);
    if (d->op_times.begun)
        d->op_times.steps++;
    else if (r->config->log.op_times)
        read_times(r, &d->op_times.host, &d->op_times.device);
    d->op_times.begun = r->config->log.op_times;
}

void rank_write_records(struct dpt_rank *r)
{
    rank_write_memory(r);
    write_op_times(r);
}
