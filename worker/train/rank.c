/* A rank from its start to its end: setup and the command loop. */
#include "worker/train/rank.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/numa.h"
#include "rendezvous/core/timing.h"
#include "worker/model/hf_config.h"
#include "worker/model/peft_config.h"
#include "worker/train/device/numa_bind.h"
#include "worker/train/rank_internal.h"
#include "worker/train/device/unit_graphs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_CODE_FAILED = 4, LOOK_MS = 1000 };

static void want_grant(void *ctx, int64_t step)
{
    struct dpt_rank *r = ctx;
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.grant_step = step;
    dpt_link_publish(r->link, &r->report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

static void committed(void *ctx, int64_t step)
{
    struct dpt_rank *r = ctx;
    (void)pthread_mutex_lock(&r->report_mutex);
    r->committed_step = step;
    (void)pthread_mutex_unlock(&r->report_mutex);
    rank_publish_saved(r, step);
}

/* On the link's thread. */
static void on_interrupt(void *ctx, uint64_t generation)
{
    struct dpt_rank *r = ctx;
    (void)generation;
    dpt_comm_thread_abort(r->comm_thread);
}

static void on_closed(void *ctx)
{
    struct dpt_rank *r = ctx;
    if (r->options->on_agent_gone)
        r->options->on_agent_gone();
    dpt_comm_thread_abort(r->comm_thread);
}

/* The device that computes the model. */
static struct dpt_device *computing_device(const struct dpt_rank *r)
{
    return r->accelerator ? dpt_accelerator_device(r->accelerator) : r->device;
}

static size_t losses_bytes(const struct dpt_rank *r)
{
    return (size_t)(r->config->train.micro_batch * r->form.losses) * sizeof *r->losses;
}

static size_t right_bytes(const struct dpt_rank *r)
{
    return (size_t)r->config->train.micro_batch * sizeof *r->right;
}

/* What a slot leaves on the host. */
static enum dpt_status make_results(struct dpt_rank *r, struct dpt_err *err)
{
    void *losses, *right;
    DPT_TRY(dpt_device_alloc_host(computing_device(r), losses_bytes(r), &losses, err));
    r->losses = losses;
    if (dpt_model_labels(r->model) == 0)
        return DPT_OK;
    DPT_TRY(dpt_device_alloc_host(computing_device(r), right_bytes(r), &right, err));
    r->right = right;
    return DPT_OK;
}

static enum dpt_status make_buffers(struct dpt_rank *r, struct dpt_err *err)
{
    const int64_t b = r->config->train.micro_batch;
    if (!r->accelerator) {
        r->saved_bytes = dpt_model_saved_bytes(r->model, b, r->form.positions);
        r->scratch_bytes = dpt_model_scratch_bytes(r->model, b, r->form.positions);
        DPT_TRY(dpt_device_alloc_for(r->device, DPT_MEMORY_ACTIVATIONS, r->saved_bytes, &r->saved,
                                     err));
        DPT_TRY(dpt_device_alloc_for(r->device, DPT_MEMORY_SCRATCH, r->scratch_bytes, &r->scratch,
                                     err));
    }
    DPT_TRY(make_results(r, err));
    r->slot_losses = calloc((size_t)r->slots, sizeof *r->slot_losses);
    r->outcome.losses = calloc((size_t)r->slots, sizeof *r->outcome.losses);
    r->contribution = malloc(dpt_contribution_bytes(r->slots));
    if (!r->slot_losses || !r->outcome.losses || !r->contribution)
        return dpt_fail(err, DPT_ENOMEM, "step buffers: out of memory");
    return DPT_OK;
}

static void make_grid(struct dpt_rank *r)
{
    const int n = dpt_model_n_units(r->model);
    for (int u = 0; u < n; u++)
        r->unit_offset[u] = dpt_model_unit(r->model, u)->offset;
    r->unit_offset[n] = dpt_model_flat_numel(r->model);
    r->grid = (struct dpt_grid){.offset = r->unit_offset, .n_units = n, .block = DPT_BLOCK};
}

static enum dpt_status open_cuda(const struct dpt_rank_start *start, struct dpt_device **ret,
                                 struct dpt_err *err)
{
    int count;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    DPT_TRY(dpt_device_cuda_look(&count, fingerprint, err));
    return dpt_device_cuda_create(start->local_rank % count, ret, err);
}

/* Where the model is computed: on the host, or on a device beside it. */
static enum dpt_status make_accelerator(struct dpt_rank *r, struct dpt_err *err)
{
    const char *host = dpt_device_fingerprint(r->device);
    if (r->config->cluster.device != DPT_DEVICE_CUDA) {
        (void)snprintf(r->fingerprint, sizeof r->fingerprint, "%s", host);
        return DPT_OK;
    }
    struct dpt_accelerator_options options = {.model = r->model,
                                              .host_stream = r->stream,
                                              .host = &r->memory,
                                              .form = &r->form,
                                              .b = r->config->train.micro_batch,
                                              .evaluates = r->val != NULL,
                                              .resident = dpt_config_state_on_device(r->config)};
    const int64_t began_ms = dpt_now_ms();
    DPT_TRY((r->options->open_accelerator ? r->options->open_accelerator
                                          : open_cuda)(r->options->start, &options.device, err));
    if (r->config->log.op_times)
        dpt_device_time_ops(options.device);
    if (r->config->train.precision == DPT_PRECISION_TF32)
        dpt_device_use_tf32(options.device);
    const int64_t opened_ms = dpt_now_ms();
    options.graphs = dpt_unit_graphs_serve(r->config, options.device);
    DPT_TRY(dpt_accelerator_create(&options, &r->accelerator, err));
    dpt_log(DPT_LOG_INFO, "device ready in %lld ms: opened in %lld, buffers and first runs in %lld",
            (long long)(dpt_now_ms() - began_ms), (long long)(opened_ms - began_ms),
            (long long)(dpt_now_ms() - opened_ms));
    dpt_fingerprint_join(dpt_accelerator_fingerprint(r->accelerator), host, r->fingerprint);
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

/* How gradients go between ranks that have a device. */
static enum dpt_status choose_backend(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_device *gpu = dpt_accelerator_device(r->accelerator);
    const bool nccl = dpt_config_uses_nccl(r->config);
    if (nccl)
        DPT_TRY(dpt_stream_create_urgent(gpu, 1, &r->gpu_comm_stream, err));
    dpt_comm_thread_set_gpu(r->comm_thread, nccl ? load_nccl : NULL, r, gpu,
                            (int)(r->config->cluster.timeout_s * 1000));
    return DPT_OK;
}

static enum dpt_status make_base(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_base_options options = {
        .config = r->config,
        .model = r->model,
        .host_ops = r->ops,
        .host_stream = r->stream,
        .device = computing_device(r),
        .stream = r->accelerator ? dpt_accelerator_stream(r->accelerator) : r->stream,
        .ranks = r->options->start->ranks};
    return dpt_model_base(r->model) ? dpt_base_create(&options, &r->base, err) : DPT_OK;
}

/* The json file that a checkpoint has for transformers or PEFT. */
static enum dpt_status print_hf_config(struct dpt_rank *r, struct dpt_err *err)
{
    char **names = NULL;
    if (dpt_model_base(r->model))
        return dpt_peft_config_print(r->config, r->model, &r->hf_config, err);
    if (r->data)
        DPT_TRY(dpt_data_class_names(r->data, &names, err));
    const struct dpt_hf_beside beside = {.label_names = (const char *const *)names};
    const enum dpt_status status =
        dpt_hf_config_print(r->config, &beside, "float32", &r->hf_config, err);
    if (names)
        dpt_fs_list_free(&names, (size_t)r->config->model.labels);
    return status;
}

static enum dpt_status make_parts(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(dpt_device_cpu_create(&r->device, err));
    dpt_device_set_account(r->device, &r->memory);
    if (r->config->log.op_times)
        dpt_device_time_ops(r->device);
    r->ops = dpt_device_ops(r->device);
    DPT_TRY(rank_open_stream(r, err));
    DPT_TRY(dpt_stream_create(r->device, 1, &r->comm_stream, err));
    DPT_TRY(dpt_model_create(r->config, &r->model, err));
    make_grid(r);
    DPT_TRY(rank_check_memory(r, err));
    if (!r->config->train.eval_only) {
        DPT_TRY(dpt_data_open(r->config, &r->data, err));
        DPT_TRY(rank_check_source(r->data, r->options->start->data, r->options->start->data_stamp,
                                  err));
        DPT_TRY(dpt_loader_create(r->config, r->data, &r->loader, err));
        dpt_account_add(&r->memory, DPT_MEMORY_DATA, dpt_loader_bytes(r->loader),
                        dpt_loader_bytes(r->loader));
    }
    if (dpt_config_evaluates(r->config))
        DPT_TRY(rank_open_validation(r, err));
    DPT_TRY(make_accelerator(r, err));
    DPT_TRY(make_base(r, err));
    if (r->accelerator)
        DPT_TRY(choose_backend(r, err));
    const bool on_device = dpt_config_state_on_device(r->config);
    const struct dpt_strategy_env env = {
        .config = r->config,
        .model = r->model,
        .device = r->device,
        .stream = r->stream,
        .comm_stream = r->comm_stream,
        .listener = r->listener,
        .comm_thread = r->comm_thread,
        .grid = &r->grid,
        .resident = on_device ? dpt_accelerator_device(r->accelerator) : NULL,
        .resident_stream = on_device ? dpt_accelerator_stream(r->accelerator) : NULL,
        .resident_comm_stream = r->gpu_comm_stream,
        .stager = on_device ? dpt_accelerator_stager(r->accelerator) : NULL};
    const struct dpt_strategy_ops *strategy = dpt_strategy_find(r->config);
    if (!strategy)
        return dpt_fail(err, DPT_ECONFIG, "strategy.name: there is no strategy '%s'",
                        r->config->strategy.name);
    DPT_TRY(strategy->create(&env, &r->strategy, err));
    DPT_TRY(dpt_tensors_init(r->model, &r->grid, &r->tensors, err));
    DPT_TRY(print_hf_config(r, err));
    DPT_TRY(make_buffers(r, err));
    if (!r->accelerator)
        DPT_TRY(rank_prepare_ops(r, err));
    return rank_check_resume(r, err);
}

/* What the link's thread and the first words to the agent need. */
static enum dpt_status make_link(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    struct dpt_process_memory process;
    dpt_memory_of_process("", &process);
    r->memory_at_start = process.resident;
    DPT_TRY(dpt_comm_listener_create(start->address, &r->listener, err));
    dpt_comm_listener_set_account(r->listener, &r->memory);
    DPT_TRY(dpt_comm_thread_create(r->listener, &r->comm_thread, err));
    r->report = (struct dpt_rank_report){.local_rank = (uint32_t)start->local_rank,
                                         .spawn = (uint32_t)start->spawn,
                                         .phase = DPT__RANK_PHASE__RANK_STARTING,
                                         .step_applied = -1,
                                         .outcome_step = -1,
                                         .checkpoint_step = -1,
                                         .suspect = -1,
                                         .grant_step = -1};
    (void)snprintf(r->report.shm_addr, sizeof r->report.shm_addr, "%s",
                   dpt_comm_listener_shm_addr(r->listener));
    (void)snprintf(r->report.tcp_addr, sizeof r->report.tcp_addr, "%s",
                   dpt_comm_listener_tcp_addr(r->listener));
    const struct dpt_timing timing =
        dpt_timing_from((int64_t)(r->config->cluster.timeout_s * 1000));
    const struct dpt_link_options link = {.fd = r->options->link_fd,
                                          .heartbeat_ms = timing.heartbeat_ms,
                                          .on_interrupt = on_interrupt,
                                          .on_closed = on_closed,
                                          .ctx = r};
    r->grace_ms = timing.grace_ms;
    DPT_TRY(dpt_link_create(&link, &r->report, &r->link, err));
    DPT_TRY(rank_open_log(r, err));
    const struct dpt_saver_options saver = {.link = r->link,
                                            .collect_timeout_ms = (int)timing.timeout_ms * 6,
                                            .want_grant = want_grant,
                                            .committed = committed,
                                            .claim_number = start->claim_number,
                                            .claim_token = start->claim_token,
                                            .ctx = r};
    return dpt_saver_create(&saver, &r->saver, err);
}

static void quiesce(struct dpt_rank *r, const Dpt__AgentToRank *command)
{
    r->prepared_ms = command->prepare_ms > 0 ? command->prepare_ms : dpt_now_ms();
    rank_leave_generation(r);
    struct dpt_err err;
    char why[RANK_WHY_BYTES];
    int64_t newest = -1;
    const bool found = rank_newest_checkpoint(r, &newest, &err) == DPT_OK;
    (void)pthread_mutex_lock(&r->report_mutex);
    if (found) /* else what was seen before is still there, as far as anybody knows */
        r->report.checkpoint_step = newest;
    newest = r->report.checkpoint_step;
    (void)pthread_mutex_unlock(&r->report_mutex);
    if (!found)
        dpt_log(rank_say_why(r, &err, why) ? DPT_LOG_ERROR : DPT_LOG_INFO,
                "checkpoints cannot be looked up%s; the newest known is of step %lld", why,
                (long long)newest);
    r->quiesced_ms = dpt_now_ms();
    rank_publish(r, DPT__RANK_PHASE__RANK_QUIESCED, command->generation);
}

/* PLAN: DPT_OK also when this generation came to nothing, which the agent is told. */
static enum dpt_status carry_out_plan(struct dpt_rank *r, const Dpt__AgentToRank *command,
                                      struct dpt_err *err)
{
    r->plan_ms = command->plan_ms > 0 ? command->plan_ms : dpt_now_ms();
    enum dpt_status status = rank_form(r, command->plan, err);
    if (status == DPT_OK) {
        rank_publish(r, DPT__RANK_PHASE__RANK_READY, command->generation);
        return DPT_OK;
    }
    if (status != DPT_EPEER && status != DPT_ETIMEOUT && status != DPT_EABORTED)
        return dpt_wrap(err, status, "form generation %llu",
                        (unsigned long long)command->generation);
    if (status != DPT_EABORTED) {
        dpt_log(DPT_LOG_WARN, "generation %llu could not be formed (%s); waiting for the next one",
                (unsigned long long)command->generation, err->text);
        rank_publish_failure(r, command->generation, dpt_comm_thread_suspect(r->comm_thread),
                             err->text);
    }
    return DPT_OK;
}

static enum dpt_status go(struct dpt_rank *r, struct dpt_err *err)
{
    r->gen.ready = false; /* a generation is trained once */
    r->ran_generation = r->gen.number;
    r->gradient_void = false;
    rank_note_held(r);
    if (r->pending_generation != 0) /* all have theirs */
        DPT_TRY(rank_adopt_state(r, err));
    rank_publish(r, DPT__RANK_PHASE__RANK_RUNNING, r->gen.number);
    enum train_end end = TRAIN_BROKEN;
    DPT_TRY(rank_train(r, &end, err));
    if (end == TRAIN_FINISHED)
        rank_publish(r, DPT__RANK_PHASE__RANK_FINISHED, r->gen.number);
    if (end == TRAIN_BROKEN && !dpt_link_interrupted(r->link, r->gen.number)) {
        /* The terminal's line of the next generation says what broke it. */
        dpt_log(DPT_LOG_INFO, "generation %llu broke at step %lld (%s); waiting for the next one",
                (unsigned long long)r->gen.number, (long long)r->step, err->text);
        rank_publish_failure(r, r->gen.number, dpt_comm_thread_suspect(r->comm_thread), err->text);
    }
    return DPT_OK;
}

/* A soft PREPARE tells a rank that has not heard GO yet that its generation is running: it must
 * take part until all agree to stop. */
static bool running_is_implied(const struct dpt_rank *r, const Dpt__AgentToRank *command)
{
    return command->command == DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT && r->gen.ready &&
           command->generation > r->gen.number;
}

/* The next command. A rank that has finished sees meanwhile whether the last checkpoint is whole,
 * which another may commit: with it nothing here would be lost. */
static enum dpt_status await_command(struct dpt_rank *r, struct dpt_err *err)
{
    for (;;) {
        const bool looks = r->report.phase == DPT__RANK_PHASE__RANK_FINISHED &&
                           r->report.checkpoint_step < r->step;
        enum dpt_status status = dpt_link_wait(r->link, looks ? LOOK_MS : -1, err);
        if (status != DPT_INPROGRESS)
            return status;
        if (rank_step_is_there(r, r->step))
            rank_publish_saved(r, r->step);
    }
}

static enum dpt_status follow(struct dpt_rank *r, struct dpt_err *err)
{
    uint64_t quiesced = 0; /* the newest generation reported for */
    bool rescued = false;
    enum dpt_status status = DPT_OK;
    while (status == DPT_OK && (status = await_command(r, err)) == DPT_OK) {
        const Dpt__AgentToRank *command = dpt_link_command(r->link);
        if (command->command == DPT__RANK_COMMAND__COMMAND_EXIT)
            break;
        if (running_is_implied(r, command))
            status = go(r, err);
        command = dpt_link_command(r->link);
        switch (command->command) {
        case DPT__RANK_COMMAND__COMMAND_PREPARE:
        case DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT:
            if (status == DPT_OK && command->generation > quiesced) {
                quiesced = command->generation;
                quiesce(r, command);
            }
            break;
        case DPT__RANK_COMMAND__COMMAND_PLAN:
        case DPT__RANK_COMMAND__COMMAND_GO:
            if (command->generation == quiesced && r->gen.number == 0 && command->plan)
                status = carry_out_plan(r, command, err);
            if (status == DPT_OK && command->command == DPT__RANK_COMMAND__COMMAND_GO &&
                command->generation == r->gen.number && r->gen.ready)
                status = go(r, err);
            break;
        case DPT__RANK_COMMAND__COMMAND_RESCUE:
            if (status == DPT_OK && !rescued)
                rank_publish_rescue(r, command->rescue_by_ms);
            rescued = true;
            break;
        default:
            break;
        }
    }
    return status;
}

/* After the last words of a rank whose state is whole: writes it if the agent says so, and stays
 * until it need not. */
static void await_rescue(struct dpt_rank *r)
{
    struct dpt_err err;
    const Dpt__AgentToRank *command = dpt_link_command(r->link);
    bool rescued = false;
    while (!command || command->command != DPT__RANK_COMMAND__COMMAND_EXIT) {
        if (command && command->command == DPT__RANK_COMMAND__COMMAND_RESCUE && !rescued) {
            rank_publish_rescue(r, command->rescue_by_ms);
            rescued = true;
        }
        if (dpt_link_wait(r->link, -1, &err) != DPT_OK)
            return; /* the agent is gone */
        command = dpt_link_command(r->link);
    }
}

static void end_log(struct dpt_rank *r)
{
    dpt_logbook_destroy(&r->book);
    rank_tell_repeated(r);
}

/* Returns the exit code. */
static int end(struct dpt_rank *r, enum dpt_status status, bool at_work, struct dpt_err *err)
{
    const bool sound = status != DPT_OK && at_work && r->reading_failed;
    if (!sound)
        end_log(r); /* the agent may end this process as soon as it has the last words */
    const int exit_code = status == DPT_OK ? 0 : rank_tell_end(r, status, at_work, err);
    if (status != DPT_OK && r->comm_thread) /* no farewell: the others are anywhere */
        dpt_comm_thread_abort(r->comm_thread);
    if (sound) {
        await_rescue(r);
        end_log(r);
    }
    return exit_code;
}

static void destroy_parts(struct dpt_rank *r)
{
    if (r->link && r->comm_thread && r->saver && r->strategy)
        rank_leave_generation(r);
    dpt_saver_destroy(&r->saver);
    dpt_link_destroy(&r->link); /* its thread aborts the communicator: it ends first */
    dpt_comm_thread_destroy(&r->comm_thread);
    if (r->strategy)
        r->strategy->ops->destroy(&r->strategy);
    dpt_loader_destroy(&r->loader);
    dpt_data_close(&r->data);
    dpt_data_close(&r->val);
    dpt_comm_listener_destroy(&r->listener);
    dpt_stream_destroy(&r->gpu_comm_stream);
    if (r->losses)
        dpt_device_free_host(computing_device(r), r->losses, losses_bytes(r));
    if (r->right)
        dpt_device_free_host(computing_device(r), r->right, right_bytes(r));
    dpt_base_destroy(&r->base);
    dpt_accelerator_destroy(&r->accelerator);
    dpt_model_destroy(&r->model);
    if (r->saved)
        dpt_device_free_for(r->device, DPT_MEMORY_ACTIVATIONS, r->saved, r->saved_bytes);
    if (r->scratch)
        dpt_device_free_for(r->device, DPT_MEMORY_SCRATCH, r->scratch, r->scratch_bytes);
    dpt_stream_destroy(&r->stream);
    dpt_stream_destroy(&r->comm_stream);
    dpt_device_destroy(&r->device);
    free(r->config_yaml);
    free(r->hf_config);
    dpt_tensors_fini(&r->tensors);
    dpt_pieces_fini(&r->saved_pieces);
    free(r->val_memory);
    free(r->slot_losses);
    free(r->outcome.losses);
    free(r->contribution);
    (void)pthread_mutex_destroy(&r->report_mutex);
    free(r);
}

int dpt_rank_run(const struct dpt_rank_options *options)
{
    struct dpt_err err = {.status = DPT_OK};
    struct dpt_rank *r = calloc(1, sizeof *r);
    if (!r) {
        (void)close(options->link_fd);
        dpt_log(DPT_LOG_ERROR, "rank: out of memory");
        return EXIT_CODE_FAILED;
    }
    r->options = options;
    r->config = options->config;
    r->slots = dpt_config_slots(options->config);
    r->form = dpt_sample_form(options->config);
    r->step = -1;
    r->verified_step = r->committed_step = -1;
    r->validation.step = r->eval_part.step = -1;
    dpt_history_init(&r->history);
    dpt_scaler_init(r->config, &r->scaler);
    rank_read_faults(r);
    (void)pthread_mutex_init(&r->report_mutex, NULL);
    enum dpt_status status = DPT_OK;
    bool at_work = false;
    r->config_yaml = malloc(DPT_CONFIG_TEXT_BYTES_MAX);
    if (!r->config_yaml)
        status = dpt_fail(&err, DPT_ENOMEM, "rank: out of memory");
    if (status == DPT_OK)
        status = dpt_config_print(r->config, r->config_yaml, &err);
    if (status == DPT_OK)
        status = make_link(r, &err);
    if (status == DPT_OK)
        status = make_parts(r, &err);
    if (status == DPT_OK) {
        at_work = true;
        rank_publish(r, DPT__RANK_PHASE__RANK_STANDBY, 0);
        status = follow(r, &err);
    }
    const int exit_code = end(r, status, at_work, &err);
    destroy_parts(r);
    return exit_code;
}

static void end_process(void)
{
    /* The node's agent died: this rank must leave nothing behind that a successor would meet, so
     * not even a log line. */
    _exit(EXIT_CODE_FAILED);
}

int dpt_rank_main(const struct dpt_rank_start *start, const struct dpt_config *config)
{
    dpt_log_set_who("rank", start->node);
    dpt_rank_bind(start, config, DPT_NUMA_SYS);
    const struct dpt_rank_options options = {.start = start,
                                             .config = config,
                                             .link_fd = DPT_RANK_FD_LINK,
                                             .step_fd = DPT_RANK_FD_STEP,
                                             .on_agent_gone = end_process};
    return dpt_rank_run(&options);
}
