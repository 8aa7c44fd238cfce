/* The run's log on one rank: decides when lines may be appended, and finds the lines that the last
 * writer did not append (pending_lines.h). */
#include "worker/train/log/rank_log.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/link/link.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS_BYTES_MAX = 64 << 20 };

/* Whether this rank keeps lines: as the log writer, or in case the writer dies. */
static bool keeps_lines(const struct dpt_rank *r)
{
    return r->log->lines && r->gen.begun;
}

static void hold_line(void *ctx, const struct dpt_run_file_line *line)
{
    struct dpt_rank *r = ctx;
    if (keeps_lines(r))
        dpt_pending_add(r->log->lines, line, dpt_now_ms());
}

static bool may_append(void *ctx, int64_t made_ms)
{
    const struct dpt_rank *r = ctx;
    return dpt_link_may_append(r->link, made_ms, r->log->grace_ms);
}

/* ---- lost records ---- */

static void tell_lost_records(struct dpt_rank *r)
{
    if (r->log->records_lost > 1)
        dpt_log(DPT_LOG_WARN, "%lld more records of the run's log in '%s' are lost",
                (long long)(r->log->records_lost - 1), r->config->log.dir);
    r->log->records_lost = r->log->records_lost > 0;
}

void rank_check_log(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err)
{
    if (status == DPT_OK) {
        tell_lost_records(r);
        r->log->records_lost = 0;
        return;
    }
    if (r->log->records_lost++ == 0)
        dpt_log(DPT_LOG_ERROR,
                "a record of the run's log is lost: %s; training continues, and further lost "
                "records are counted",
                err->text);
}

static void line_appended(void *ctx, enum dpt_status status, const struct dpt_err *err)
{
    rank_check_log(ctx, status, err);
}

enum dpt_status rank_open_log(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    const char *dir = r->config->log.dir;
    char name[64];
    r->log->files =
        (struct dpt_run_files){.dir = dir, .run = r->config->run, .hold = hold_line, .ctx = r};
    if (!dir[0])
        return DPT_OK;
    (void)snprintf(r->log->node_dir, sizeof r->log->node_dir, "%s/node-%s", dir, start->node);
    (void)snprintf(name, sizeof name, "rank-%d.unconfirmed.jsonl", start->local_rank);
    const struct dpt_pending_options options = {.dir = dir,
                                                .tensorboard = r->config->log.tensorboard,
                                                .spill_dir = r->log->node_dir,
                                                .spill_name = name,
                                                .may_append = may_append,
                                                .appended = line_appended,
                                                .ctx = r};
    return dpt_pending_create(&options, &r->log->lines, err);
}

void rank_close_log(struct dpt_rank *r)
{
    dpt_pending_destroy(&r->log->lines);
    tell_lost_records(r);
}

/* ---- the permission to write ---- */

struct record_wait {
    const struct dpt_rank *r;
    int64_t until_ms;
};

static bool record_wait_is_over(void *ctx)
{
    const struct record_wait *wait = ctx;
    return dpt_link_interrupted(wait->r->link, wait->r->gen.number) ||
           dpt_now_ms() >= wait->until_ms;
}

bool rank_may_record(const struct dpt_rank *r, const char *what)
{
    const int64_t limit_ms = (int64_t)(r->config->log.wait_s * 1000.0);
    struct record_wait wait = {r, dpt_now_ms() + limit_ms};
    if (dpt_link_await_write(r->link, record_wait_is_over, &wait))
        return true;
    if (!dpt_link_interrupted(r->link, r->gen.number))
        dpt_log(DPT_LOG_WARN,
                "%s not written: this node was suspended and has not learned within %g s "
                "(log.wait_s) whether it was replaced meanwhile",
                what, r->config->log.wait_s);
    return false;
}

void rank_flush_log(struct dpt_rank *r)
{
    if (r->log->lines)
        (void)dpt_pending_flush(r->log->lines);
}

void rank_add_line(struct dpt_rank *r, enum dpt_status status, const struct dpt_err *err)
{
    if (status != DPT_OK)
        rank_check_log(r, status, err);
    rank_flush_log(r);
}

void rank_end_log(struct dpt_rank *r)
{
    if (r->log->lines)
        dpt_pending_end(r->log->lines);
}

bool rank_settles_log(struct dpt_rank *r)
{
    struct record_wait wait = {r, INT64_MAX};
    if (!r->log->lines || !r->gen.writes_log ||
        !dpt_link_await_append(r->link, r->log->grace_ms, record_wait_is_over, &wait))
        return false;
    rank_flush_log(r);
    return true;
}

/* Finds the last record in the file. Step -1: there is none, or this rank is not the log writer.
 * False: the file cannot be read, which is logged. */
static bool find_last_logged(struct dpt_rank *r, struct dpt_run_file_place *ret)
{
    struct dpt_err err;
    *ret = (struct dpt_run_file_place){.step = -1};
    if (!r->gen.writes_log)
        return true;
    const enum dpt_status status = dpt_run_file_last(r->config->log.dir, ret, &err);
    rank_check_log(r, status, &err);
    return status == DPT_OK;
}

bool rank_lacks_line(struct dpt_rank *r, enum dpt_line_kind kind)
{
    const struct dpt_run_file_place place = {.step = r->state.step, .kind = kind};
    if (!keeps_lines(r) || dpt_pending_has(r->log->lines, &place))
        return false;
    struct dpt_run_file_place last;
    return find_last_logged(r, &last) && dpt_run_file_is_after(&place, &last);
}

bool rank_logged_evaluation(struct dpt_rank *r)
{
    const struct dpt_run_file_place place = {.step = r->state.step, .kind = DPT_LINE_EVALUATION};
    if (!keeps_lines(r))
        return false;
    if (dpt_pending_has(r->log->lines, &place))
        return true;
    struct dpt_run_file_place last;
    return find_last_logged(r, &last) && last.kind == place.kind && last.step == place.step;
}

/* ---- the line of an epoch ---- */

bool rank_ends_epoch(const struct dpt_rank *r)
{
    return dpt_config_ends_epoch(r->config, r->state.step) && r->state.epoch.to == r->state.step;
}

void rank_log_epoch(struct dpt_rank *r)
{
    struct dpt_err err;
    const struct dpt_epoch_record e = {
        .epoch = r->state.step / r->config->train.epoch_steps,
        .epochs = r->config->train.epochs,
        .step = r->state.step,
        .first_step = r->state.epoch.from + 1,
        .avg_loss = dpt_epoch_loss(&r->state.epoch),
        .seconds = r->state.epoch.seconds,
        .samples_per_s = dpt_epoch_samples_per_s(&r->state.epoch, r->config->train.global_batch)};
    rank_add_line(r, dpt_run_file_epoch(&r->log->files, &e, &err), &err);
}

/* ---- a generation begins ---- */

void rank_complete_history(struct dpt_rank *r)
{
    const char *dir = r->config->log.dir;
    char path[PATH_MAX], *events = NULL;
    size_t bytes = 0;
    struct dpt_err err;
    if (!dir[0] || (r->state.step == 0 && strcmp(r->gen.cause.kind, "start") == 0))
        return; /* the events in the file belong to an earlier run */
    enum dpt_status status = dpt_fs_join(dir, "events.jsonl", path, sizeof path, &err);
    if (status == DPT_OK)
        status = dpt_fs_read_file(path, EVENTS_BYTES_MAX, &events, &bytes, &err);
    if (status == DPT_OK)
        status = dpt_history_add_events(&r->state.history, events, bytes, &err);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_DEBUG, "the run's history is that of its checkpoint: %s", err.text);
    free(events);
}

void rank_begin_log(struct dpt_rank *r)
{
    struct dpt_err err;
    struct dpt_run_file_place last = {.step = -1};
    if (!r->log->lines)
        return;
    const enum dpt_status status = dpt_run_file_last(r->config->log.dir, &last, &err);
    if (r->gen.writes_log)
        rank_check_log(r, status, &err);
    dpt_pending_begin(r->log->lines, r->gen.writes_log, r->state.step, &last);
    if (r->gen.writes_log && r->state.reread)
        rank_forget_unconfirmed(r);
    if (r->gen.writes_log && r->state.from_rescue && status == DPT_OK)
        rank_append_unconfirmed(r, &last);
    r->state.from_rescue = r->state.reread = false;
    rank_flush_log(r);
}
