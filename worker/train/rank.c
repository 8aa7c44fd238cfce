/* A rank from its start to its end. */
#include "worker/train/rank.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/numa.h"
#include "rendezvous/core/timing.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/formation/formation.h"
#include "worker/train/link/stacks.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/process.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"
#include "worker/train/trace/rank_trace.h"

#include <stdlib.h>
#include <unistd.h>

enum { EXIT_CODE_FAILED = 4 };

/* A rank with the structs of all its rooms (rooms.h). */
struct whole_rank {
    struct dpt_rank rank;
    struct rank_log log;
    struct rank_trace trace;
    struct rank_device device;
    struct rank_save save;
    struct rank_stepping stepping;
    struct rank_formation formation;
    struct rank_loop loop;
};

/* Runs on the link's thread. */
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

/* Opens the link to the agent, the communication thread that the link's callbacks abort, the log
 * and the saver. */
static enum dpt_status open_link(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    const struct dpt_timing timing =
        dpt_timing_from((int64_t)(r->config->cluster.timeout_s * 1000), 0);
    struct dpt_process_memory process;
    dpt_stacks_prepare();
    dpt_memory_of_process("", &process);
    r->device->memory_at_start = process.resident;
    DPT_TRY(dpt_comm_listener_create(start->address, &r->listener, err));
    dpt_comm_listener_set_account(r->listener, &r->device->memory);
    DPT_TRY(dpt_comm_thread_create(r->listener, &r->comm_thread, err));
    const struct dpt_link_options link = {.fd = r->options->link_fd,
                                          .heartbeat_ms = timing.heartbeat_ms,
                                          .on_interrupt = on_interrupt,
                                          .on_closed = on_closed,
                                          .ctx = r,
                                          .activity = &r->activity,
                                          .local_rank = (uint32_t)start->local_rank,
                                          .spawn = (uint32_t)start->spawn,
                                          .shm_addr = dpt_comm_listener_shm_addr(r->listener),
                                          .tcp_addr = dpt_comm_listener_tcp_addr(r->listener)};
    DPT_TRY(dpt_link_create(&link, &r->link, err));
    r->log->grace_ms = timing.grace_ms;
    DPT_TRY(rank_open_log(r, err));
    const struct dpt_saver_options saver = {.link = r->link,
                                            .collect_timeout_ms = (int)timing.timeout_ms * 6,
                                            .claim_number = start->claim_number,
                                            .claim_token = start->claim_token};
    return dpt_saver_create(&saver, &r->save->saver, err);
}

static enum dpt_status open_rooms(struct dpt_rank *r, struct dpt_err *err)
{
    DPT_TRY(rank_open_trace(r, err));
    DPT_TRY(rank_open_memory(r, err));
    DPT_TRY(open_link(r, err));
    DPT_TRY(rank_open_host(r, err));
    DPT_TRY(rank_open_samples(r, err));
    if (dpt_config_evaluates(r->config))
        DPT_TRY(rank_open_validation(r, err));
    DPT_TRY(rank_open_device(r, err));
    DPT_TRY(rank_create_strategy(r, err));
    DPT_TRY(rank_open_save(r, r->stepping->data, err));
    DPT_TRY(rank_make_buffers(r, err));
    if (!r->device->device_model)
        DPT_TRY(rank_prepare_ops(r, err));
    return rank_check_resume(r, err);
}

static void close_log(struct dpt_rank *r)
{
    rank_close_log(r);
    rank_tell_unsaved(r);
}

/* Reports the end to the agent; returns the exit code. */
static int report_and_close_log(struct dpt_rank *r, enum dpt_status status, bool at_work,
                                struct dpt_err *err)
{
    const bool sound = status != DPT_OK && at_work && r->stepping->reading_failed;
    if (status == DPT_OK)
        rank_trace_end_run(r);
    /* Before the last report, because after it the agent may end this process. */
    if (!sound)
        close_log(r);
    const int exit_code = status == DPT_OK ? 0 : rank_report_end(r, status, at_work, err);
    /* An orderly close would wait for the other ranks. */
    if (status != DPT_OK && r->comm_thread)
        dpt_comm_thread_abort(r->comm_thread);
    if (sound) {
        rank_await_rescue(r);
        close_log(r);
    }
    return exit_code;
}

static void close_rooms(struct dpt_rank *r)
{
    if (r->link && r->comm_thread && r->save->saver && r->strategy)
        rank_leave_generation(r);
    dpt_saver_destroy(&r->save->saver);
    /* Before comm_thread, because the link's thread aborts comm_thread. */
    dpt_link_destroy(&r->link);
    dpt_comm_thread_destroy(&r->comm_thread);
    if (r->strategy)
        dpt_strategy_destroy(&r->strategy);
    rank_close_samples(r);
    dpt_comm_listener_destroy(&r->listener);
    rank_close_device(r);
    rank_close_memory(r);
    rank_close_save(r);
    rank_close_trace(r);
}

static void init_rank(struct whole_rank *whole, const struct dpt_rank_options *options)
{
    whole->rank = (struct dpt_rank){
        .options = options,
        .config = options->config,
        .form = dpt_sample_form(options->config),
        .slots = dpt_config_slots(options->config),
        .state = {.step = -1, .validation = {.step = -1}, .eval_part = {.step = -1}},
        .log = &whole->log,
        .trace = &whole->trace,
        .device = &whole->device,
        .save = &whole->save,
        .stepping = &whole->stepping,
        .formation = &whole->formation,
        .loop = &whole->loop};
    whole->save.verified_step = -1;
    dpt_history_init(&whole->rank.state.history);
    dpt_scaler_init(options->config, &whole->rank.state.scaler);
}

int dpt_rank_run(const struct dpt_rank_options *options)
{
    struct dpt_err err = {.status = DPT_OK};
    struct whole_rank *whole = calloc(1, sizeof *whole);
    if (!whole) {
        (void)close(options->link_fd);
        dpt_log(DPT_LOG_ERROR, "rank: out of memory");
        return EXIT_CODE_FAILED;
    }
    init_rank(whole, options);
    dpt_present_work_attach(&whole->rank.activity, DPT_PRESENT_WORK_MAIN);
    dpt_present_work_note(DPT_WORK_SETUP, -1, -1);
    enum dpt_status status = open_rooms(&whole->rank, &err);
    const bool at_work = status == DPT_OK;
    if (at_work) {
        rank_report(&whole->rank, DPT__RANK_PHASE__RANK_STANDBY, 0);
        status = rank_follow(&whole->rank, &err);
    }
    const int exit_code = report_and_close_log(&whole->rank, status, at_work, &err);
    close_rooms(&whole->rank);
    dpt_present_work_attach(NULL, DPT_PRESENT_WORK_MAIN);
    free(whole);
    return exit_code;
}

static void end_process(void)
{
    /* The node's agent died. A successor may run already: this rank must write nothing any more,
     * not even a log line. */
    _exit(EXIT_CODE_FAILED);
}

int dpt_rank_main(const struct dpt_rank_start *start, const struct dpt_config *config)
{
    dpt_log_set_who("rank", start->node);
    dpt_rank_bind_numa(start, config, DPT_NUMA_SYS);
    const struct dpt_rank_options options = {.start = start,
                                             .config = config,
                                             .link_fd = DPT_RANK_FD_LINK,
                                             .step_fd = DPT_RANK_FD_STEP,
                                             .on_agent_gone = end_process};
    return dpt_rank_run(&options);
}
