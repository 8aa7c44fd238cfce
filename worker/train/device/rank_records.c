/* Writes the records of one rank at the end of a run: its memory, and the times of its kernels by
 * class (log.op_times). */
#include "base/fs.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/strategy/memory/memory_formula.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"

#include <stdio.h>

/* Writes the object to node-NODE/rank-LOCAL.KIND.json in log.dir. Takes the object. */
static void write_record(const struct dpt_rank *r, const char *kind, json_t *object)
{
    char name[64];
    struct dpt_err err;
    (void)snprintf(name, sizeof name, "rank-%d.%s.json", r->options->start->local_rank, kind);
    enum dpt_status status = dpt_fs_mkdirs(r->log->node_dir, &err);
    if (status == DPT_OK)
        status = dpt_run_file_write_json(object, r->log->node_dir, name, &err);
    else
        json_decref(object);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the record '%s' of this rank is lost: %s", name, err.text);
}

/* ---- memory ---- */

static json_t *use_json(int64_t bytes, int64_t peak)
{
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)bytes, "peak", (json_int_t)peak);
}

/* The use by tag, with the bytes that the formula gives (`formula`; NULL: without). */
static json_t *tags_json(const struct dpt_memory_use *use, const int64_t *formula)
{
    json_t *tags = json_object();
    for (int i = 0; tags && i < DPT_MEMORY_COUNT; i++) {
        json_t *tag = use_json(use->tag[i], use->tag_peak[i]);
        int failed =
            formula ? json_object_set_new(tag, "formula", json_integer((json_int_t)formula[i])) : 0;
        failed |= json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)i), tag);
        if (failed) {
            json_decref(tags);
            return NULL;
        }
    }
    return tags;
}

static void write_memory(const struct dpt_rank *r)
{
    const struct rank_device *d = r->device;
    struct dpt_strategy_cost cost;
    if (!r->gen.begun || !r->config->log.dir[0] || !rank_may_record(r, "the account of memory is"))
        return; /* a guest holds nothing of this world */
    dpt_strategy_cost(r->strategy, &cost);
    /* The strategy decides whether weights are packed. If they are, the formula gives their
     * size. */
    const size_t operand =
        dpt_device_ops(d->host)->operand_bytes(d->stream, dpt_model_dtype(r->model));
    const struct dpt_memory_spec spec = {
        .config = r->config,
        .model = r->model,
        .grid = &r->grid,
        .world = &r->gen.world,
        .rank = r->gen.rank,
        .threads = d->threads,
        .packed_operand =
            cost.packed_bytes > 0 || dpt_frozen_base_packed(d->base) ? (int)operand : 0};
    struct dpt_memory_use use, device;
    struct dpt_process_memory process;
    int64_t formula[DPT_MEMORY_COUNT], formula_all = 0;
    dpt_account_read(&d->memory, &use);
    dpt_account_read(&d->device_memory, &device);
    dpt_memory_of_process("", &process);
    dpt_memory_formula(&spec, formula);
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        formula_all += formula[i];
    json_t *object = json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:{s:I, s:I, s:o}}",
        "node", r->options->start->node, "local_rank", r->options->start->local_rank, "rank",
        r->gen.rank, "world_size", r->gen.world_size, "strategy", r->config->strategy.name,
        "parameters", (json_int_t)dpt_model_param_count(r->model), "elements",
        (json_int_t)dpt_model_flat_numel(r->model), "tags", tags_json(&use, formula), "counted",
        use_json(use.all, use.all_peak), "reserved", use_json(use.reserved, use.reserved_peak),
        "after_first_step", (json_int_t)d->memory_first, "formula", (json_int_t)formula_all,
        "bound", (json_int_t)dpt_memory_bound(&spec), "process_peak", (json_int_t)process.peak,
        "process_resident", (json_int_t)process.resident, "process_at_start",
        (json_int_t)d->memory_at_start, "anon", (json_int_t)process.anon, "file",
        (json_int_t)process.file, "shared", (json_int_t)process.shared, "shared_own",
        (json_int_t)dpt_comm_listener_bytes(r->listener), "device", "bytes", (json_int_t)device.all,
        "peak", (json_int_t)device.all_peak, "tags", tags_json(&device, NULL));
    write_record(r, "memory", object);
}

/* ---- times of kernels ---- */

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
    write_record(r, "op_times", object);
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
