/* Ends a run: the last checkpoint, the summary, the weights hash. */
#include "worker/train/process.h"

#include "base/clock.h"
#include "base/fs.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* The cost of the run since its start, at log.price_per_hour. */
static void tell_cost(const struct dpt_rank *r, Dpt__RunSummary *told)
{
    const struct train_state *s = &r->state;
    const double tokens = (double)((s->step - s->start_step) * rank_tokens_per_step(r));
    if (r->config->log.price_per_hour == 0)
        return;
    told->node_ms = s->node_ms + (dpt_now_ms() - s->nodes_since_ms) * s->nodes;
    told->dollars = r->config->log.price_per_hour * (double)told->node_ms / (3600 * 1e3);
    told->dollars_per_1m_tokens = tokens > 0 ? told->dollars * 1e6 / tokens : 0;
}

/* `weights_hash` is borrowed. */
static struct dpt_summary summary_of(const struct dpt_rank *r, char *weights_hash)
{
    const struct train_state *s = &r->state;
    const struct rank_loop *loop = r->loop;
    const double step_s = loop->steps_made > 0 ? loop->train_seconds / (double)loop->steps_made : 0;
    const bool evaluated = s->validation.step == s->step;
    struct rusage usage;
    DPT_ASSERT(getrusage(RUSAGE_SELF, &usage) == 0);
    struct dpt_summary summary = {.told = DPT__RUN_SUMMARY__INIT,
                                  .run = r->config->run,
                                  .tokens = s->step * rank_tokens_per_step(r),
                                  .total_s = (double)(dpt_now_ms() - s->began_ms) * 1e-3,
                                  .generations = s->generations,
                                  .skipped_steps = s->scaler.skipped,
                                  .world_size = r->gen.world_size};
    Dpt__RunSummary *told = &summary.told;
    told->start_step = s->start_step;
    told->steps = s->step;
    told->loss = s->has_outcome ? dpt_outcome_loss(&s->outcome) : (double)NAN;
    told->val_loss = evaluated ? s->validation.loss : (double)NAN;
    told->val_right = evaluated ? s->validation.right : 0;
    told->val_samples = evaluated ? rank_labelled_samples(r) : 0;
    told->total_ms = (int64_t)(summary.total_s * 1e3);
    told->step_ms = step_s * 1e3;
    told->samples_per_s = step_s > 0 ? (double)r->config->train.global_batch / step_s : 0;
    told->tokens_per_s =
        loop->train_seconds > 0 ? (double)loop->tokens_trained / loop->train_seconds : 0;
    told->checkpoints_saved = (uint32_t)(dpt_saver_saved(r->save->saver).n + s->checkpoints_told);
    told->saved_step = rank_saved_step(r);
    told->recoveries = (uint32_t)dpt_history_totals(&s->history).recoveries;
    told->steps_lost = s->steps_lost;
    told->peak_bytes_per_rank = (int64_t)usage.ru_maxrss * 1024;
    told->weights_hash = weights_hash;
    tell_cost(r, told);
    return summary;
}

static enum dpt_status write_summary(const struct dpt_rank *r, const struct dpt_summary *summary,
                                     struct dpt_err *err)
{
    /* If a finished run is started again, it makes no step, and the old results stay. */
    char path[PATH_MAX];
    DPT_TRY(dpt_fs_join(r->config->log.dir, "summary.json", path, sizeof path, err));
    if (r->state.start_step == r->state.step && dpt_fs_exists(path))
        return DPT_OK;
    return dpt_run_file_summary(r->config->log.dir, summary, err);
}

static void report_hash(struct dpt_report *report, const char *hash)
{
    (void)snprintf(report->weights_hash, sizeof report->weights_hash, "%s", hash);
}

enum dpt_status rank_finish(struct dpt_rank *r, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    rank_write_records(r);
    rank_write_times(r);
    DPT_TRY(rank_weights_hash(r, hash, err));
    DPT_TRY(rank_check_last_state(r, err));
    DPT_TRY(rank_save_last(r, hash, err));
    const struct dpt_summary summary = summary_of(r, hash);
    /* A summary that cannot be written does not fail the run. */
    if (rank_settles_log(r))
        rank_check_log(r, write_summary(r, &summary, err), err);
    struct dpt_report *report = dpt_link_edit(r->link);
    report_hash(report, hash);
    report->summary = summary.told;
    report->summary.weights_hash = report->weights_hash;
    report->message.summary = &report->summary;
    dpt_link_publish(r->link, false);
    return DPT_OK;
}

enum dpt_status rank_finish_evaluation(struct dpt_rank *r, struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    rank_log_evaluation(r);
    DPT_TRY(rank_weights_hash(r, hash, err));
    const struct dpt_eval_record e = rank_evaluation_record(r);
    if (rank_settles_log(r))
        DPT_TRY(dpt_run_file_evaluation(&r->log->files, &e, hash, err));
    report_hash(dpt_link_edit(r->link), hash);
    dpt_link_publish(r->link, false);
    return DPT_OK;
}
