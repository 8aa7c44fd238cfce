/* Evaluates the weights on data.val, by all ranks of the generation, in rounds of one batch a rank.
 * After each round the ranks exchange their sums of losses and of correct predictions, and whether
 * the world must change. So a long evaluation delays neither a join nor a drain, and the next
 * generation continues it (hello.h). An evaluation changes neither weights nor gradients. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum dpt_status rank_open_validation(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_config *c = r->config;
    DPT_TRY(dpt_data_open_val(c, &r->stepping->val, err));
    DPT_TRY(rank_check_source(r->stepping->val, r->options->start->val,
                              r->options->start->val_stamp, err));
    r->stepping->val_samples = dpt_data_samples(r->stepping->val);
    if (!dpt_config_reads_labels(c))
        r->stepping->val_samples = dpt_eval_batches_samples(
            r->stepping->val_samples, r->form.positions, c->train.eval_tokens);
    const size_t bytes = dpt_batch_bytes(&r->form, c->train.micro_batch);
    r->stepping->val_memory = aligned_alloc(DPT_BATCH_ALIGN, bytes);
    if (!r->stepping->val_memory)
        return dpt_fail_nomem(err, "evaluation");
    memset(r->stepping->val_memory, 0, bytes);
    r->stepping->val_batch = dpt_batch_at(&r->form, c->train.micro_batch, r->stepping->val_memory);
    return DPT_OK;
}

/* Reads the micro-batch. A short batch is padded with its first sample, so that all batches have
 * one size. The padding does not count. */
static enum dpt_status read_eval_batch(struct dpt_rank *r, struct dpt_sample_range batch,
                                       struct dpt_err *err)
{
    for (int64_t i = 0; i < r->config->train.micro_batch; i++) {
        const int64_t sample = batch.first + i < batch.end ? batch.first + i : batch.first;
        DPT_TRY(rank_note_reading(r,
                                  dpt_data_read(r->stepping->val, sample, DPT_DATA_NOT_VARIED,
                                                &r->stepping->val_batch, i, err),
                                  err));
    }
    dpt_batch_close(&r->form, &r->stepping->val_batch, r->config->train.micro_batch);
    return DPT_OK;
}

/* Adds the losses: first within each sample, then over the samples in their order. */
static double sum_losses(const struct dpt_rank *r, int64_t samples)
{
    const int64_t n = r->form.losses;
    double sum = 0;
    for (int64_t i = 0; i < samples; i++) {
        double of_sample = 0;
        for (int64_t j = 0; j < n; j++)
            of_sample += (double)r->device->losses[i * n + j];
        sum += of_sample;
    }
    return sum;
}

/* Counts the correct predictions among the first `samples` samples. */
static int64_t count_right(const struct dpt_rank *r, int64_t samples)
{
    int64_t right = 0;
    for (int64_t i = 0; r->device->right && i < samples; i++)
        right += r->device->right[i] != 0;
    return right;
}

/* Computes the sums of `share`. A rank without a batch also carries out the list of actions,
 * because other ranks may gather its weights. */
static enum dpt_status evaluate_batch(struct dpt_rank *r, struct dpt_sample_range batch,
                                      struct dpt_eval_share *share, struct dpt_err *err)
{
    const bool computes = batch.end > batch.first;
    if (computes)
        DPT_TRY(read_eval_batch(r, batch, err));
    struct dpt_slot slot = rank_slot(r, DPT_MODE_EVAL);
    slot.t = r->stepping->val_batch.positions;
    slot.batch = r->stepping->val_batch;
    slot.right = r->device->right;
    const struct dpt_step_list *list = dpt_strategy_eval_list(r->strategy);
    dpt_strategy_begin_eval(r->strategy, &slot);
    if (computes)
        rank_begin_slot(r, &slot);
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *action = &list->actions[i];
        DPT_TRY(rank_check_interruption(r, "the evaluation at step", err));
        rank_note_action(action);
        if (action->kind == DPT_ACTION_GATHER || action->kind == DPT_ACTION_FREE)
            DPT_TRY(dpt_strategy_act(r->strategy, i, err));
        else if (action->kind == DPT_ACTION_FORWARD && computes)
            rank_forward(r, action->unit, &slot);
    }
    DPT_TRY(rank_end_slot(r, &slot, err));
    DPT_TRY(dpt_strategy_end_eval(r->strategy, err));
    share->sum = sum_losses(r, batch.end - batch.first);
    share->right = count_right(r, batch.end - batch.first);
    return DPT_OK;
}

static enum dpt_status evaluate_round(struct dpt_rank *r, struct dpt_eval_sums *e,
                                      struct dpt_err *err)
{
    const struct dpt_sample_range batch = dpt_eval_sums_batch(e, r->gen.rank);
    struct dpt_eval_share mine = {.step = e->step, .round = e->round, .first = batch.first};
    DPT_TRY(evaluate_batch(r, batch, &mine, err));
    mine.reform = dpt_link_reform_wanted(r->link, r->gen.number);
    mine.leaving = dpt_link_leaving(r->link);
    dpt_present_work_note(DPT_WORK_COMMIT, -1, -1);
    DPT_TRY(generation_all_gather(&r->gen, r->comm_thread, &mine, sizeof mine, err));
    dpt_present_work_note(DPT_WORK_EVALUATE, -1, -1);
    return dpt_eval_sums_combine(e, r->gen.gathered, err);
}

enum dpt_status rank_evaluate(struct dpt_rank *r, bool *ret_stopped, bool *ret_all_leave,
                              struct dpt_err *err)
{
    struct dpt_eval_sums e;
    const int64_t begin = dpt_now_ns();
    enum dpt_status status = DPT_OK;
    if (r->state.eval_part.step != r->state.step)
        r->state.eval_part = (struct dpt_eval_part){.step = r->state.step};
    const bool goes_on = r->state.eval_part.batches > 0;
    dpt_eval_sums_begin(&e, &r->state.eval_part, r->stepping->val_samples,
                        r->config->train.micro_batch, r->gen.world_size);
    if (goes_on && r->gen.rank == 0)
        dpt_log(DPT_LOG_INFO, "the evaluation at step %lld continues after %lld of %lld batches",
                (long long)r->state.step, (long long)r->state.eval_part.batches,
                (long long)dpt_eval_batches_count(r->stepping->val_samples,
                                                  r->config->train.micro_batch));
    rank_forget_weights(r);
    dpt_link_publish_busy(r->link, true);
    while (status == DPT_OK && e.round < e.rounds && !e.reform) {
        status = evaluate_round(r, &e, err);
        if (status == DPT_OK)
            r->state.eval_part = dpt_eval_sums_part(&e);
        dpt_link_publish_work(r->link);
    }
    *ret_stopped = e.round < e.rounds;
    *ret_all_leave = e.all_leave;
    if (status == DPT_OK && !*ret_stopped)
        r->state.validation =
            (struct validation){.step = e.step,
                                .loss = e.sum / ((double)e.samples * (double)r->form.losses),
                                .right = e.right,
                                .ms = goes_on ? 0 : (double)(dpt_now_ns() - begin) * 1e-6};
    struct dpt_report *report = dpt_link_edit(r->link);
    report->state.busy = false;
    rank_report_validation(r, report);
    dpt_link_publish(r->link, true);
    return status;
}

int64_t rank_labelled_samples(const struct dpt_rank *r)
{
    return dpt_model_labels(r->model) > 0 ? r->stepping->val_samples : 0;
}

void rank_report_validation(const struct dpt_rank *r, struct dpt_report *report)
{
    const struct validation *v = &r->state.validation;
    report->message.val_step = v->step > 0 ? v->step : 0;
    report->message.val_loss = v->loss;
    report->message.val_right = v->right;
    report->message.val_samples = rank_labelled_samples(r);
}

struct dpt_eval_record rank_evaluation_record(const struct dpt_rank *r)
{
    return (struct dpt_eval_record){.step = r->state.validation.step,
                                    .val_loss = r->state.validation.loss,
                                    .tokens = r->stepping->val_samples * r->form.positions,
                                    .right = r->state.validation.right,
                                    .samples = rank_labelled_samples(r),
                                    .ms = r->state.validation.ms > 0 ? r->state.validation.ms
                                                                     : (double)NAN};
}

void rank_log_evaluation(struct dpt_rank *r)
{
    const struct dpt_eval_record e = rank_evaluation_record(r);
    struct dpt_err err;
    if (r->gen.rank == 0 && e.samples > 0)
        dpt_log(DPT_LOG_INFO, "step %lld: val_loss %.6f, %lld of %lld labels predicted",
                (long long)e.step, e.val_loss, (long long)e.right, (long long)e.samples);
    else if (r->gen.rank == 0)
        dpt_log(DPT_LOG_INFO, "step %lld: val_loss %.6f, perplexity %.4g, over %lld tokens",
                (long long)e.step, e.val_loss, exp(e.val_loss), (long long)e.tokens);
    if (!r->config->train.eval_only)
        rank_add_line(r, dpt_run_file_eval(&r->log->files, &e, &err), &err);
}
