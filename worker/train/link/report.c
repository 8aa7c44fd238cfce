/* What a rank says of itself. */
#include "worker/train/rank_internal.h"

#include <stdio.h>
#include <unistd.h>

_Static_assert((int)DPT_OUTCOME_BYTES_MAX <= (int)DPT_PROTO_OUTCOME_BYTES_MAX, "an outcome fits");

/* With the report's lock held. */
static void tell_validation(struct dpt_rank *r)
{
    r->report.val_step = r->validation.step > 0 ? r->validation.step : 0;
    r->report.val_loss = r->validation.loss;
    r->report.val_right = r->validation.right;
    r->report.val_samples = rank_labelled_samples(r);
}

static void tell_parts(struct dpt_rank_report *report, const struct dpt_strategy_state *state,
                       bool pending)
{
    const struct dpt_shard shards[] = {state->own.shard, state->shadow.shard};
    for (size_t i = 0; i < sizeof shards / sizeof *shards; i++)
        if (!dpt_shard_is_none(shards[i]))
            report->shards[report->n_shards++] = (struct dpt_report_shard){
                .index = shards[i].index, .of = shards[i].of, .pending = pending};
}

/* What of the state of r->step is held. With the report's lock held. */
static void tell_state(struct dpt_rank *r)
{
    struct dpt_rank_report *report = &r->report;
    report->n_shards = 0;
    report->gradient = false;
    report->ran_generation = r->ran_generation;
    report->rebuilding = r->gen.rebuilding;
    report->pending_generation = 0;
    if (r->step < 0)
        return;
    tell_parts(report, r->strategy->ops->held(r->strategy), false);
    report->pending_generation = r->pending_generation;
    if (r->pending_generation != 0)
        tell_parts(report, r->strategy->ops->wanted(r->strategy), true);
    report->gradient = rank_holds_gradient(r);
}

void rank_keep_step(const struct dpt_rank *r)
{
    const int64_t step = r->step > 0 ? r->step : 0;
    if (r->options->step_fd < 0)
        return;
    const ssize_t kept = pwrite(r->options->step_fd, &step, sizeof step, 0);
    DPT_ASSERT(kept == (ssize_t)sizeof step); /* into memory that the agent has made */
}

void rank_publish(struct dpt_rank *r, Dpt__RankPhase phase, uint64_t generation)
{
    rank_keep_step(r);
    (void)pthread_mutex_lock(&r->report_mutex);
    struct dpt_rank_report *report = &r->report;
    report->phase = phase;
    report->busy = false;
    report->generation = generation;
    tell_validation(r);
    tell_state(r);
    report->step_applied = r->step;
    report->outcome_step = r->has_outcome ? r->outcome.step + 1 : -1;
    report->outcome = r->outcome_bytes;
    report->outcome_bytes = 0;
    if (r->has_outcome && phase == DPT__RANK_PHASE__RANK_QUIESCED) {
        enum dpt_status status = dpt_outcome_pack(
            &r->outcome, r->outcome_bytes, sizeof r->outcome_bytes, &report->outcome_bytes, NULL);
        DPT_ASSERT(status == DPT_OK); /* the config bounds the slots */
    }
    dpt_link_publish(r->link, report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

static void copy_text(char ret[DPT_PROTO_TEXT_BYTES], const char *text)
{
    (void)snprintf(ret, DPT_PROTO_TEXT_BYTES, "%.*s", DPT_PROTO_TEXT_BYTES - 1, text);
}

static int64_t median_step_ms(const struct dpt_rank *r)
{
    int64_t sorted[STEP_TIMES_COUNT];
    int n = r->n_step_ms < STEP_TIMES_COUNT ? r->n_step_ms : STEP_TIMES_COUNT;
    for (int i = 0; i < n; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > r->step_ms[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = r->step_ms[i];
    }
    return n > 0 ? sorted[n / 2] : 0;
}

void rank_publish_progress(struct dpt_rank *r)
{
    (void)pthread_mutex_lock(&r->report_mutex);
    struct dpt_rank_report *report = &r->report;
    report->step_applied = r->step;
    report->outcome_step = r->step;
    report->loss = (float)dpt_outcome_loss(&r->outcome);
    report->step_ms_median = median_step_ms(r);
    report->tokens_per_s =
        r->train_seconds > 0 ? (float)((double)r->tokens_trained / r->train_seconds) : 0;
    dpt_link_publish(r->link, report, false);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

void rank_publish_busy(struct dpt_rank *r, bool busy)
{
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.busy = busy;
    tell_validation(r);
    dpt_link_publish(r->link, &r->report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

void rank_publish_work(struct dpt_rank *r)
{
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.work_done++;
    dpt_link_publish(r->link, &r->report, false);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

void rank_publish_saved(struct dpt_rank *r, int64_t step)
{
    (void)pthread_mutex_lock(&r->report_mutex);
    if (step > r->report.checkpoint_step)
        r->report.checkpoint_step = step;
    dpt_link_publish(r->link, &r->report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}

void rank_publish_failure(struct dpt_rank *r, uint64_t generation, int suspect, const char *text)
{
    (void)pthread_mutex_lock(&r->report_mutex);
    r->report.failed_generation = generation;
    r->report.suspect = suspect;
    copy_text(r->report.text, text);
    dpt_link_publish(r->link, &r->report, true);
    (void)pthread_mutex_unlock(&r->report_mutex);
}
