/* Traces of a rank (rank_trace.h). */
#include "worker/train/trace/rank_trace.h"

#include "base/clock.h"
#include "base/log.h"
#include "worker/trace/trace_file.h"
#include "worker/train/link/link.h"
#include "worker/train/log/rank_log.h"

#include <limits.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

enum dpt_status rank_open_trace(struct dpt_rank *r, struct dpt_err *err)
{
    if (!r->config->trace.dir[0] || r->config->train.eval_only)
        return DPT_OK;
    DPT_TRY(dpt_trace_recorder_create(DPT_TRACE_EVENTS_MAX, &r->trace->recorder, err));
    dpt_trace_attach(r->trace->recorder, DPT_TRACE_MAIN);
    rank_open_gpu_records(r);
    return DPT_OK;
}

void rank_close_trace(struct dpt_rank *r)
{
    rank_close_gpu_records(r);
    dpt_trace_attach(NULL, DPT_TRACE_MAIN);
    dpt_trace_recorder_destroy(&r->trace->recorder);
}

void rank_trace_set_clock(struct dpt_rank *r, const struct dpt_kineto_clock *clock)
{
    r->trace->clock = *clock;
    r->trace->clock_ns = dpt_now_ns();
}

static bool is_traced(const struct dpt_rank *r)
{
    const struct dpt_config_steps *ranks = &r->config->trace.ranks;
    bool found = ranks->n == 0;
    for (int64_t i = 0; i < ranks->n; i++)
        found = found || ranks->step[i] == r->gen.rank;
    return found && !r->trace->failed;
}

static struct dpt_trace_place place_of(const struct dpt_rank *r, int64_t step)
{
    const struct dpt_config_trace *trace = &r->config->trace;
    const struct dpt_trace_schedule schedule = {.wait = trace->wait,
                                                .warmup = trace->warmup,
                                                .active = trace->active,
                                                .repeat = trace->repeat};
    return dpt_trace_window_at(&schedule, step);
}

/* The time is that of the pause between two steps. */
static void log_file(const struct rank_trace *t, const char *path, int64_t began_ns)
{
    const double seconds = 1e-9 * (double)(dpt_now_ns() - began_ns);
    struct stat info;
    const double mb = stat(path, &info) == 0 ? 1e-6 * (double)info.st_size : (double)NAN;
    dpt_log(DPT_LOG_INFO, "the trace of steps %lld to %lld is in '%s': %.3f MB, written in %.3f s",
            (long long)t->first_step + 1, (long long)t->step + 1, path, mb, seconds);
}

static void write_trace(struct dpt_rank *r)
{
    static const char *const names[DPT_TRACE_TRACKS] = {[DPT_TRACE_MAIN] = "main",
                                                        [DPT_TRACE_COMM] = "communication",
                                                        [DPT_TRACE_DATA] = "data",
                                                        [DPT_TRACE_SAVE] = "checkpoint"};
    struct rank_trace *t = r->trace;
    struct dpt_kineto_track tracks[DPT_TRACE_TRACKS];
    char path[PATH_MAX];
    struct dpt_err err;
    struct dpt_kineto_trace trace = {.strategy = dpt_config_strategy_word(r->config),
                                     .rank = t->rank,
                                     .world_size = t->world_size,
                                     .setup = rank_trace_setup(r),
                                     .process = getpid(),
                                     .generation = t->generation,
                                     .generation_id = t->generation_id,
                                     .window = t->window,
                                     .clock = t->clock,
                                     .tracks = tracks,
                                     .device = rank_gpu_records(r)};
    const int64_t now_ns = dpt_now_ns(), wall_ns = dpt_kineto_set_base(&trace, now_ns);
    trace.clock.age_ns = now_ns - t->clock_ns;
    for (int i = 0; i < DPT_TRACE_TRACKS; i++) {
        tracks[i].name = names[i];
        dpt_trace_recorder_read(t->recorder, (enum dpt_trace_track)i, &tracks[i].events);
        if (tracks[i].events.dropped > 0)
            dpt_log(DPT_LOG_WARN,
                    "the trace of steps %lld to %lld has no room for %lld events of the %s thread: "
                    "lower trace.active",
                    (long long)t->first_step + 1, (long long)t->step + 1,
                    (long long)tracks[i].events.dropped, names[i]);
    }
    if (trace.device && trace.device->dropped > 0)
        dpt_log(DPT_LOG_WARN,
                "the trace of steps %lld to %lld has no room for %lld records of the GPU: lower "
                "trace.active",
                (long long)t->first_step + 1, (long long)t->step + 1,
                (long long)trace.device->dropped);
    if (dpt_trace_file_write(r->config->trace.dir, &trace, wall_ns, path, &err) == DPT_OK) {
        log_file(t, path, now_ns);
        return;
    }
    t->failed = true;
    dpt_log(DPT_LOG_WARN,
            "the trace of steps %lld to %lld is lost: %s; training continues, and this rank writes "
            "no more traces",
            (long long)t->first_step + 1, (long long)t->step + 1, err.text);
}

/* Ends the window and writes its file. */
static void end_window(struct dpt_rank *r)
{
    dpt_trace_recorder_end(r->trace->recorder);
    rank_end_gpu_records(r);
    r->trace->phase = DPT_TRACE_IDLE;
    if (!rank_may_record(r, "the trace of the last steps is"))
        return;
    dpt_link_publish_busy(r->link, true);
    write_trace(r);
    dpt_link_publish_busy(r->link, false);
}

/* The ranks of this generation on this rank's host. */
static int ranks_of_host(const struct dpt_rank *r)
{
    int n = 0;
    for (int rank = 0; rank < r->gen.world_size; rank++)
        n += r->gen.host_of_rank[rank] == r->gen.host;
    return n;
}

void rank_trace_begin_step(struct dpt_rank *r)
{
    struct rank_trace *t = r->trace;
    if (!t->recorder)
        return;
    const struct dpt_trace_place place = place_of(r, r->state.step);
    const enum dpt_trace_phase phase = !is_traced(r) ? DPT_TRACE_IDLE
                                       : place.phase == DPT_TRACE_RECORD_AND_WRITE
                                           ? DPT_TRACE_RECORD
                                           : place.phase;
    /* The last traced step may have come from a peer's outcome, or a failure may have followed it:
     * then rank_trace_end_step did not end the window. */
    if (t->phase == DPT_TRACE_RECORD && r->state.step > t->step &&
        (place.phase == DPT_TRACE_IDLE || place.phase == DPT_TRACE_WARMUP ||
         place.window != t->window))
        end_window(r);
    if (phase == DPT_TRACE_IDLE) {
        dpt_trace_recorder_end(t->recorder);
        rank_end_gpu_records(r);
    } else if (phase != t->phase || place.window != t->window) {
        t->first_step = r->state.step;
        rank_begin_gpu_records(r);
        dpt_trace_recorder_begin(t->recorder);
    }
    t->phase = phase;
    t->window = place.window;
    t->rank = r->gen.rank;
    t->world_size = r->gen.world_size;
    t->hosts = r->gen.n_hosts;
    t->ranks_of_host = ranks_of_host(r);
    t->generation = r->gen.number;
    t->generation_id = r->gen.plan_hash;
    t->step = r->state.step;
    t->step_began_ns = dpt_trace_begin();
}

bool rank_trace_end_step(struct dpt_rank *r)
{
    struct rank_trace *t = r->trace;
    if (!t->recorder || t->phase == DPT_TRACE_IDLE)
        return false;
    dpt_trace_end(t->step_began_ns,
                  &(struct dpt_trace_span){.kind = DPT_TRACE_STEP, .value = {t->step + 1}});
    if (place_of(r, t->step).phase != DPT_TRACE_RECORD_AND_WRITE)
        return false;
    end_window(r);
    return true;
}

void rank_trace_end_run(struct dpt_rank *r)
{
    if (r->trace->recorder && r->trace->phase == DPT_TRACE_RECORD)
        end_window(r);
}
