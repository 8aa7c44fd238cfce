/* What the host and the accounts of a rank pass to its trace (worker/trace/span.h). */
#include "worker/trace/recorder.h"
#include "worker/train/device/rank_device.h"

#include <string.h>

static bool is_recording(void)
{
    return dpt_trace_begin() != 0;
}

static void trace_op(const char *op, const struct dpt_op_shape *shape, int64_t begin_ns,
                     int64_t end_ns)
{
    _Static_assert((int)DPT_OP_SIZES == (int)DPT_TRACE_ARGS, "a span has room for a shape");
    struct dpt_trace_span span = {.name = op, .kind = DPT_TRACE_OP};
    memcpy(span.key, shape->name, sizeof span.key);
    memcpy(span.value, shape->size, sizeof span.value);
    dpt_trace_ring_add(dpt_trace_ring_here, begin_ns, end_ns, &span);
}

/* ---- memory ---- */

static void mark_memory(const struct dpt_account_change *change, bool on_gpu)
{
    dpt_trace_mark(&(struct dpt_trace_span){
        .kind = DPT_TRACE_MEMORY,
        .value = {[DPT_TRACE_MEMORY_BYTES] = change->bytes,
                  [DPT_TRACE_MEMORY_ALL] = change->all,
                  [DPT_TRACE_MEMORY_RESERVED] = change->reserved,
                  [DPT_TRACE_MEMORY_ADDRESS] = (int64_t)(intptr_t)change->address,
                  [DPT_TRACE_MEMORY_ON_GPU] = on_gpu}});
}

static void trace_host_memory(const struct dpt_account_change *change)
{
    mark_memory(change, false);
}

static void trace_gpu_memory(const struct dpt_account_change *change)
{
    mark_memory(change, true);
}

void rank_trace_host(struct dpt_rank *r)
{
    struct rank_device *d = r->device;
    const struct dpt_trace_recorder *recorder = dpt_trace_recorder_here();
    if (!recorder)
        return;
    dpt_device_trace_ops(d->host, trace_op, is_recording);
    /* The rings live as long as the account. */
    const size_t bytes = dpt_trace_recorder_bytes(DPT_TRACE_EVENTS_MAX);
    dpt_account_add(&d->memory, DPT_MEMORY_TRACE, NULL, bytes, bytes);
    if (!r->config->trace.memory)
        return;
    dpt_account_observe(&d->memory, trace_host_memory);
    dpt_account_observe(&d->device_memory, trace_gpu_memory);
}

static void sample_account(const struct dpt_account *account, bool on_gpu)
{
    struct dpt_memory_use use;
    dpt_account_read(account, &use);
    mark_memory(&(struct dpt_account_change){.all = use.all, .reserved = use.reserved}, on_gpu);
    for (int i = 0; i < DPT_MEMORY_COUNT; i++)
        if (use.tag_peak[i] > 0)
            dpt_trace_mark(&(struct dpt_trace_span){
                .name = dpt_memory_tag_name((enum dpt_memory_tag)i),
                .kind = DPT_TRACE_MEMORY_TAG,
                .key = {"bytes", "peak"},
                .value = {use.tag[i], use.tag_peak[i], [DPT_TRACE_MEMORY_ON_GPU] = on_gpu}});
}

void rank_sample_memory(const struct dpt_rank *r)
{
    const struct rank_device *d = r->device;
    if (!r->config->trace.memory || !is_recording())
        return;
    sample_account(&d->memory, false);
    if (d->device_model)
        sample_account(&d->device_memory, true);
}
