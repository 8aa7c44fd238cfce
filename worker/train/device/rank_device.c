/* Opens and closes the host, the device and the strategy on them (rank_device.h). */
#include "worker/train/device/rank_device.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/strategy_traits.h"
#include "worker/train/device/unit_graphs.h"

#include <stdio.h>

static void make_grid(struct dpt_rank *r)
{
    const int n = dpt_model_n_units(r->model);
    int64_t *offset = r->device->unit_offset;
    for (int u = 0; u < n; u++)
        offset[u] = dpt_model_unit(r->model, u)->offset;
    offset[n] = dpt_model_flat_numel(r->model);
    r->grid = (struct dpt_grid){.offset = offset, .n_units = n, .block = DPT_BLOCK};
}

enum dpt_status rank_open_host(struct dpt_rank *r, struct dpt_err *err)
{
    struct rank_device *d = r->device;
    DPT_TRY(dpt_device_cpu_create(&d->host, err));
    dpt_device_set_account(d->host, &d->memory);
    if (r->config->log.op_times)
        dpt_device_time_ops(d->host);
    rank_trace_host(r);
    d->ops = dpt_device_ops(d->host);
    DPT_TRY(rank_open_stream(r, err));
    DPT_TRY(dpt_stream_create(d->host, 1, &d->comm_stream, err));
    DPT_TRY(dpt_model_create(r->config, &r->model, err));
    make_grid(r);
    return rank_check_memory(r, err);
}

/* ---- the device that computes ---- */

static enum dpt_status open_cuda(const struct dpt_rank_start *start, struct dpt_device **ret,
                                 struct dpt_err *err)
{
    int count;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    DPT_TRY(dpt_device_cuda_look(&count, fingerprint, err));
    return dpt_device_cuda_create(start->local_rank % count, ret, err);
}

/* Opens the device, if the config has one, and makes the rank's fingerprint. */
static enum dpt_status open_device_model(struct dpt_rank *r, struct dpt_err *err)
{
    const char *host = dpt_device_fingerprint(r->device->host);
    if (r->config->cluster.device != DPT_DEVICE_CUDA) {
        (void)snprintf(r->device->fingerprint, sizeof r->device->fingerprint, "%s", host);
        return DPT_OK;
    }
    struct dpt_device_model_options options = {.model = r->model,
                                               .host_stream = r->device->stream,
                                               .host = &r->device->memory,
                                               .form = &r->form,
                                               .b = r->config->train.micro_batch,
                                               .evaluates = dpt_config_evaluates(r->config),
                                               .state_on_device =
                                                   dpt_strategy_traits(r->config).on_device};
    const int64_t began_ms = dpt_now_ms();
    DPT_TRY((r->options->open_device ? r->options->open_device : open_cuda)(r->options->start,
                                                                            &options.device, err));
    dpt_device_set_account(options.device, &r->device->device_memory);
    if (r->config->log.op_times)
        dpt_device_time_ops(options.device);
    if (r->config->train.precision == DPT_PRECISION_TF32)
        dpt_device_use_tf32(options.device);
    const int64_t opened_ms = dpt_now_ms();
    options.graphs = dpt_unit_graphs_serve(r->config, options.device);
    DPT_TRY(dpt_device_model_create(&options, &r->device->device_model, err));
    dpt_log(DPT_LOG_INFO, "device ready in %lld ms: opened in %lld, buffers and first runs in %lld",
            (long long)(dpt_now_ms() - began_ms), (long long)(opened_ms - began_ms),
            (long long)(dpt_now_ms() - opened_ms));
    dpt_fingerprint_join(dpt_device_fingerprint(options.device), host, r->device->fingerprint);
    return DPT_OK;
}

static enum dpt_status load_nccl(void *ctx, const struct dpt_nccl_calls **ret, void **ret_ctx,
                                 struct dpt_err *err)
{
    struct dpt_rank *r = ctx;
    if (r->options->load_nccl)
        return r->options->load_nccl(r->options->start, ret, ret_ctx, err);
    *ret_ctx = NULL;
    return dpt_nccl_calls_load(ret, err);
}

/* Opens the communication of gradients between devices. */
static enum dpt_status open_device_communication(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_device *gpu = dpt_device_model_device(r->device->device_model);
    const bool nccl = dpt_strategy_traits(r->config).by_nccl;
    if (nccl)
        DPT_TRY(dpt_stream_create_urgent(gpu, 1, &r->device->device_comm_stream, err));
    dpt_comm_thread_set_device(r->comm_thread, nccl ? load_nccl : NULL, r, gpu,
                               (int)(r->config->cluster.timeout_s * 1000));
    return DPT_OK;
}

/* The device that computes the model. */
static struct dpt_device *compute_device(const struct dpt_rank *r)
{
    return r->device->device_model ? dpt_device_model_device(r->device->device_model)
                                   : r->device->host;
}

static enum dpt_status create_base(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_frozen_base_options options = {
        .config = r->config,
        .model = r->model,
        .host_ops = r->device->ops,
        .host_stream = r->device->stream,
        .device = compute_device(r),
        .stream = r->device->device_model ? dpt_device_model_stream(r->device->device_model)
                                          : r->device->stream,
        .ranks = r->options->start->ranks};
    return dpt_frozen_base_create(&options, &r->device->base, err);
}

enum dpt_status rank_open_device(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(open_device_model(r, err));
    if (dpt_model_base(r->model))
        DPT_TRY(create_base(r, err));
    return r->device->device_model ? open_device_communication(r, err) : DPT_OK;
}

enum dpt_status rank_create_strategy(struct dpt_rank *r, struct dpt_err *err)
{
    const struct rank_device *d = r->device;
    const bool on_device = dpt_strategy_traits(r->config).on_device;
    const struct dpt_strategy_env env = {
        .config = r->config,
        .model = r->model,
        .device = d->host,
        .stream = d->stream,
        .comm_stream = d->comm_stream,
        .listener = r->listener,
        .comm_thread = r->comm_thread,
        .grid = &r->grid,
        .state_device = on_device ? dpt_device_model_device(d->device_model) : NULL,
        .state_stream = on_device ? dpt_device_model_stream(d->device_model) : NULL,
        .state_comm_stream = d->device_comm_stream,
        .stager = on_device ? dpt_device_model_stager(d->device_model) : NULL};
    return dpt_strategy_create(&env, &r->strategy, err);
}

/* ---- memory of a micro-batch ---- */

static size_t losses_bytes(const struct dpt_rank *r)
{
    return (size_t)(r->config->train.micro_batch * r->form.losses) * sizeof *r->device->losses;
}

static size_t right_bytes(const struct dpt_rank *r)
{
    return (size_t)r->config->train.micro_batch * sizeof *r->device->right;
}

enum dpt_status rank_make_buffers(struct dpt_rank *r, struct dpt_err *err)
{
    struct rank_device *d = r->device;
    const int64_t b = r->config->train.micro_batch;
    void *losses, *right;
    if (!d->device_model) {
        d->saved_bytes = dpt_model_saved_bytes(r->model, b, r->form.positions);
        d->scratch_bytes = dpt_model_scratch_bytes(r->model, b, r->form.positions);
        DPT_TRY(
            dpt_device_alloc_for(d->host, DPT_MEMORY_ACTIVATIONS, d->saved_bytes, &d->saved, err));
        DPT_TRY(
            dpt_device_alloc_for(d->host, DPT_MEMORY_SCRATCH, d->scratch_bytes, &d->scratch, err));
    }
    DPT_TRY(dpt_device_alloc_host(compute_device(r), losses_bytes(r), &losses, err));
    d->losses = losses;
    if (dpt_model_labels(r->model) == 0)
        return DPT_OK;
    DPT_TRY(dpt_device_alloc_host(compute_device(r), right_bytes(r), &right, err));
    d->right = right;
    return DPT_OK;
}

void rank_close_device(struct dpt_rank *r)
{
    struct rank_device *d = r->device;
    dpt_stream_destroy(&d->device_comm_stream);
    dpt_device_free_host(compute_device(r), d->losses, losses_bytes(r));
    dpt_device_free_host(compute_device(r), d->right, right_bytes(r));
    dpt_frozen_base_destroy(&d->base);
    dpt_device_model_destroy(&d->device_model);
    dpt_model_destroy(&r->model);
    dpt_device_free_for(d->host, DPT_MEMORY_ACTIVATIONS, d->saved, d->saved_bytes);
    dpt_device_free_for(d->host, DPT_MEMORY_SCRATCH, d->scratch, d->scratch_bytes);
    dpt_stream_destroy(&d->stream);
    dpt_stream_destroy(&d->comm_stream);
    dpt_device_destroy(&d->host);
}
