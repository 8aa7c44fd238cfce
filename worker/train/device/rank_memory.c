/* The memory of a rank: the record at the end of a run, lines while it runs (log.memory_every), and
 * the snapshot for memory_viz (log.memory_snapshot). */
#include "base/fs.h"
#include "base/log.h"
#include "base/memory.h"
#include "worker/strategy/memory/describe_memory.h"
#include "worker/strategy/memory/memory_formula.h"
#include "worker/strategy/memory/memory_report.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* A rank has fewer allocations; a generation makes some hundred. */
enum { PIECES_MAX = 4096, EVENTS_MAX = 1 << 14 };

/* ---- the record ---- */

static json_t *use_json(int64_t bytes, int64_t peak)
{
    return json_pack("{s:I, s:I}", "bytes", (json_int_t)bytes, "peak", (json_int_t)peak);
}

/* The use by tag, with the bytes that the formula gives. */
static json_t *tags_json(const struct dpt_memory_use *use, const int64_t *formula)
{
    json_t *tags = json_object();
    for (int i = 0; tags && i < DPT_MEMORY_COUNT; i++) {
        json_t *tag = use_json(use->tag[i], use->tag_peak[i]);
        int failed = json_object_set_new(tag, "formula", json_integer((json_int_t)formula[i]));
        failed |= json_object_set_new(tags, dpt_memory_tag_name((enum dpt_memory_tag)i), tag);
        if (failed) {
            json_decref(tags);
            return NULL;
        }
    }
    return tags;
}

static struct dpt_memory_spec formula_spec(const struct dpt_rank *r)
{
    const struct rank_device *d = r->device;
    struct dpt_strategy_cost cost;
    dpt_strategy_cost(r->strategy, &cost);
    /* The strategy decides whether weights are packed. If they are, the formula gives their
     * size. */
    const size_t operand =
        dpt_device_ops(d->host)->operand_bytes(d->stream, dpt_model_dtype(r->model));
    return (struct dpt_memory_spec){
        .config = r->config,
        .model = r->model,
        .grid = &r->grid,
        .world = &r->gen.world,
        .rank = r->gen.rank,
        .threads = d->threads,
        .packed_operand =
            cost.packed_bytes > 0 || dpt_frozen_base_packed(d->base) ? (int)operand : 0};
}

/* What the rank has at the end of the run. */
struct memory_found {
    struct dpt_memory_use host, device;
    struct dpt_process_memory process;
    int64_t formula[DPT_MEMORY_COUNT], formula_all, bound;
    int64_t device_formula[DPT_MEMORY_COUNT], device_formula_all;
};

static int64_t sum_of_tags(const int64_t bytes[DPT_MEMORY_COUNT])
{
    int64_t sum = 0;
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        sum += bytes[i];
    return sum;
}

static void find_memory(const struct dpt_rank *r, struct memory_found *ret)
{
    const struct dpt_memory_spec spec = formula_spec(r);
    dpt_account_read(&r->device->memory, &ret->host);
    dpt_account_read(&r->device->device_memory, &ret->device);
    dpt_memory_of_process("", &ret->process);
    dpt_memory_formula(&spec, ret->formula);
    ret->formula_all = sum_of_tags(ret->formula);
    dpt_memory_device_formula(&spec, ret->device_formula);
    ret->device_formula_all = sum_of_tags(ret->device_formula);
    ret->bound = dpt_memory_bound(&spec);
}

static json_t *record_json(const struct dpt_rank *r, const struct memory_found *found)
{
    const struct rank_device *d = r->device;
    const struct dpt_memory_use *use = &found->host, *device = &found->device;
    const struct dpt_process_memory *process = &found->process;
    return json_pack(
        "{s:s, s:i, s:i, s:i, s:s, s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:{s:I, s:I, s:o, s:I, s:o}}",
        "node", r->options->start->node, "local_rank", r->options->start->local_rank, "rank",
        r->gen.rank, "world_size", r->gen.world_size, "strategy", r->config->strategy.name,
        "parameters", (json_int_t)dpt_model_param_count(r->model), "elements",
        (json_int_t)dpt_model_flat_numel(r->model), "tags", tags_json(use, found->formula),
        "counted", use_json(use->all, use->all_peak), "reserved",
        use_json(use->reserved, use->reserved_peak), "after_first_step",
        (json_int_t)d->memory_first, "formula", (json_int_t)found->formula_all, "bound",
        (json_int_t)found->bound, "process_peak", (json_int_t)process->peak, "process_resident",
        (json_int_t)process->resident, "process_at_start", (json_int_t)d->memory_at_start, "anon",
        (json_int_t)process->anon, "file", (json_int_t)process->file, "shared",
        (json_int_t)process->shared, "shared_own", (json_int_t)dpt_comm_listener_bytes(r->listener),
        "device", "bytes", (json_int_t)device->all, "peak", (json_int_t)device->all_peak,
        "reserved", use_json(device->reserved, device->reserved_peak), "formula",
        (json_int_t)found->device_formula_all, "tags", tags_json(device, found->device_formula));
}

static void log_table_line(void *ctx, const char *text)
{
    (void)ctx;
    dpt_log(DPT_LOG_INFO, "%s", text);
}

/* Memory of peers that this process has touched is resident, but is not its own. */
static int64_t true_peak(const struct dpt_rank *r, const struct dpt_process_memory *process)
{
    const int64_t others = process->shared - (int64_t)dpt_comm_listener_bytes(r->listener);
    return process->peak - (others > 0 ? others : 0);
}

/* The table of the GPU, if there is one, and of the host. */
static void log_tables(const struct dpt_rank *r, const struct memory_found *found)
{
    struct dpt_memory_report host = dpt_memory_report_of(&found->host, found->formula),
                             device = dpt_memory_report_of(&found->device, found->device_formula);
    host.true_peak = true_peak(r, &found->process);
    if (r->device->device_model) {
        host.place = "host";
        device.place = "GPU";
        device.workspace_apart = true;
        dpt_memory_report_print(&device, log_table_line, NULL);
    }
    dpt_memory_report_print(&host, log_table_line, NULL);
}

/* ---- the snapshot ---- */

enum dpt_status rank_open_memory(struct dpt_rank *r, struct dpt_err *err)
{
    struct rank_device *d = r->device;
    if (!r->config->log.memory_snapshot || r->config->train.eval_only)
        return DPT_OK;
    DPT_TRY(dpt_memory_log_create(PIECES_MAX, EVENTS_MAX, &d->memory.log, err));
    return dpt_memory_log_create(PIECES_MAX, EVENTS_MAX, &d->device_memory.log, err);
}

void rank_close_memory(struct dpt_rank *r)
{
    dpt_memory_log_destroy(&r->device->memory.log);
    dpt_memory_log_destroy(&r->device->device_memory.log);
}

/* The accounts in the order of the snapshot's devices: a GPU comes before the host. */
static int list_accounts(const struct dpt_rank *r, const struct dpt_account *ret[2])
{
    const struct rank_device *d = r->device;
    int n = 0;
    if (d->device_model)
        ret[n++] = &d->device_memory;
    ret[n++] = &d->memory;
    return n;
}

static void describe_piece(void *ctx, int device, const struct dpt_memory_piece *piece,
                           struct dpt_snapshot_content *content)
{
    const struct dpt_rank *r = ctx;
    const void *const *base = dpt_frozen_base_weights(r->device->base);
    (void)device; /* addresses are unique over host and devices */
    if (base && piece->at && base[0] == piece->at) {
        const struct dpt_model *model = dpt_model_base(r->model);
        content->purpose = "frozen base";
        dpt_describe_flat(model, dpt_dtype_bytes(dpt_model_dtype(model)), content);
        return;
    }
    dpt_describe_strategy(r->strategy, piece, content);
}

/* Prints the snapshot to memory that the caller frees. */
static enum dpt_status print_snapshot(struct dpt_rank *r, char **ret_text, size_t *ret_bytes,
                                      struct dpt_err *err)
{
    const struct dpt_account *account[2];
    struct dpt_memory_history history[2] = {{.piece = NULL}, {.piece = NULL}};
    const struct dpt_snapshot snapshot = {.history = history,
                                          .n_devices = list_accounts(r, account),
                                          .describe = describe_piece,
                                          .ctx = r};
    FILE *out = open_memstream(ret_text, ret_bytes);
    enum dpt_status status = out ? DPT_OK : dpt_fail_errno(err, errno, "print a snapshot");
    for (int i = 0; status == DPT_OK && i < snapshot.n_devices; i++) {
        status = dpt_memory_log_read(account[i]->log, &history[i], err);
        if (status == DPT_OK && history[i].dropped > 0)
            dpt_log(DPT_LOG_WARN, "the snapshot of memory lacks its %lld oldest events",
                    (long long)history[i].dropped);
    }
    if (status == DPT_OK)
        status = dpt_snapshot_print(&snapshot, out, err);
    const bool cut = out && ferror(out) != 0;
    if (out && (fclose(out) != 0 || cut) && status == DPT_OK)
        status = dpt_fail_nomem(err, "print a snapshot");
    for (int i = 0; i < 2; i++)
        dpt_memory_history_fini(&history[i]);
    return status;
}

static void write_snapshot(struct dpt_rank *r)
{
    char name[64], path[2 * DPT_CONFIG_PATH_BYTES + 64], *text = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    (void)snprintf(name, sizeof name, "rank-%d.memory.pickle", r->options->start->local_rank);
    enum dpt_status status = dpt_fs_join(r->log->node_dir, name, path, sizeof path, &err);
    if (status == DPT_OK)
        status = print_snapshot(r, &text, &bytes, &err);
    if (status == DPT_OK)
        status = dpt_fs_mkdirs(r->log->node_dir, &err);
    if (status == DPT_OK)
        status = dpt_fs_write_file_atomic(path, text, bytes, &err);
    free(text);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the snapshot '%s' of this rank's memory is lost: %s", name,
                err.text);
    else
        dpt_log(DPT_LOG_INFO, "the snapshot of this rank's memory is in '%s'", path);
}

/* ---- calls of the loop ---- */

void rank_note_memory(struct dpt_rank *r)
{
    struct rank_device *d = r->device;
    const int64_t every = r->config->log.memory_every;
    const bool first = d->memory_first == 0;
    const struct dpt_account *account[2];
    struct dpt_memory_use use;
    char line[DPT_MEMORY_LINE_BYTES];
    if (first) {
        dpt_account_read(&d->memory, &use);
        d->memory_first = use.all;
    }
    if (every == 0 || !(first || r->state.step % every == 0))
        return;
    (void)list_accounts(r, account);
    dpt_account_read(account[0], &use);
    dpt_memory_line(r->gen.rank, &use, line);
    dpt_log(DPT_LOG_INFO, "%s", line);
}

void rank_write_memory(struct dpt_rank *r)
{
    struct memory_found found;
    if (!r->gen.begun)
        return; /* a handover rank holds nothing of this world */
    find_memory(r, &found);
    if (r->config->log.memory_every > 0)
        log_tables(r, &found);
    if (!r->config->log.dir[0] || !rank_may_record(r, "the account of memory is"))
        return;
    rank_write_record(r, "memory", record_json(r, &found));
    if (r->config->log.memory_snapshot)
        write_snapshot(r);
}
