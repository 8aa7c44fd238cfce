/* Evaluation: the weights on data.val, computed by all ranks of the generation, a batch of each at
 * a time. After each batch the ranks tell each other the sums, of losses and of right predictions,
 * and whether somebody wants to leave the generation, so that a long evaluation holds up neither a
 * join nor a drain; the next generation goes on where it was (hello.h). Weights and gradients are
 * not touched: the next step is what it would have been. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum dpt_status rank_open_validation(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_config *c = r->config;
    DPT_TRY(dpt_data_open_val(c, &r->val, err));
    DPT_TRY(rank_check_source(r->val, r->options->start->val, r->options->start->val_stamp, err));
    r->val_samples = dpt_data_samples(r->val);
    if (!dpt_config_reads_labels(c))
        r->val_samples = dpt_eval_samples(r->val_samples, r->form.positions, c->train.eval_tokens);
    const size_t bytes = dpt_batch_bytes(&r->form, c->train.micro_batch);
    r->val_memory = aligned_alloc(DPT_BATCH_ALIGN, bytes);
    if (!r->val_memory)
        return dpt_fail(err, DPT_ENOMEM, "evaluation: out of memory");
    memset(r->val_memory, 0, bytes);
    r->val_batch = dpt_batch_at(&r->form, c->train.micro_batch, r->val_memory);
    return DPT_OK;
}

/* Fills the micro-batch. A short batch is filled up with its first sample, so that every batch has
 * as many; what is filled up does not count. */
static enum dpt_status read_batch(struct dpt_rank *r, struct dpt_sample_range batch,
                                  struct dpt_err *err)
{
    for (int64_t i = 0; i < r->config->train.micro_batch; i++) {
        const int64_t sample = batch.first + i < batch.end ? batch.first + i : batch.first;
        DPT_TRY(rank_own_disk(
            r, dpt_data_read(r->val, sample, DPT_DATA_NOT_VARIED, &r->val_batch, i, err), err));
    }
    dpt_batch_close(&r->form, &r->val_batch, r->config->train.micro_batch);
    return DPT_OK;
}

/* Sum of the losses: of each sample, and then of the samples, in their order. */
static double sum_losses(const struct dpt_rank *r, int64_t samples)
{
    const int64_t n = r->form.losses;
    double sum = 0;
    for (int64_t i = 0; i < samples; i++) {
        double of_sample = 0;
        for (int64_t j = 0; j < n; j++)
            of_sample += (double)r->losses[i * n + j];
        sum += of_sample;
    }
    return sum;
}

/* Predicted labels of the first so many samples. */
static int64_t count_right(const struct dpt_rank *r, int64_t samples)
{
    int64_t right = 0;
    for (int64_t i = 0; r->right && i < samples; i++)
        right += r->right[i] != 0;
    return right;
}

/* Into the sums of `share`. A rank without a batch goes along, since the others may want its
 * weights. */
static enum dpt_status compute_batch(struct dpt_rank *r, struct dpt_sample_range batch,
                                     struct dpt_eval_share *share, struct dpt_err *err)
{
    const struct dpt_strategy_ops *ops = r->strategy->ops;
    const bool computes = batch.end > batch.first;
    if (computes)
        DPT_TRY(read_batch(r, batch, err));
    struct dpt_slot slot = {.mode = DPT_MODE_EVAL,
                            .b = r->config->train.micro_batch,
                            .t = r->val_batch.positions,
                            .batch = r->val_batch,
                            .base = dpt_base_weights(r->base),
                            .base_packed = dpt_base_packed(r->base),
                            .saved = r->saved,
                            .scratch = r->scratch,
                            .losses = r->losses,
                            .right = r->right};
    const struct dpt_step_list *list = ops->eval_list(r->strategy);
    ops->begin_eval(r->strategy, &slot);
    if (r->accelerator && computes)
        dpt_accelerator_begin_slot(r->accelerator, &slot);
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *action = &list->actions[i];
        if (rank_in_vain(r))
            return dpt_fail(err, DPT_EABORTED, "the evaluation at step %lld was interrupted",
                            (long long)r->step);
        if (action->kind == DPT_ACTION_GATHER || action->kind == DPT_ACTION_FREE)
            DPT_TRY(ops->act(r->strategy, i, &slot, err));
        else if (action->kind == DPT_ACTION_FORWARD && computes)
            rank_forward(r, action->unit, &slot);
    }
    DPT_TRY(rank_end_slot(r, &slot, err));
    DPT_TRY(ops->end_eval(r->strategy, err));
    share->sum = sum_losses(r, batch.end - batch.first);
    share->right = count_right(r, batch.end - batch.first);
    return DPT_OK;
}

static enum dpt_status job_exchange(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_rank *r = ctx;
    if (r->gen.world_size == 1) {
        memcpy(r->gen.eval_shares, r->val_share, DPT_EVAL_SHARE_BYTES);
        return DPT_OK;
    }
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), r->val_share,
                                     DPT_EVAL_SHARE_BYTES, r->gen.eval_shares, err);
}

static enum dpt_status one_round(struct dpt_rank *r, struct dpt_evaluation *e, struct dpt_err *err)
{
    const struct dpt_sample_range batch = dpt_evaluation_batch(e, r->gen.rank);
    struct dpt_eval_share mine = {.step = e->step, .round = e->round, .first = batch.first};
    DPT_TRY(compute_batch(r, batch, &mine, err));
    mine.reform = dpt_link_reform_wanted(r->link, r->gen.number);
    mine.leaving = dpt_link_leaving(r->link);
    dpt_eval_share_pack(&mine, r->val_share);
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_exchange, r, err));
    return dpt_evaluation_fold(e, r->gen.eval_shares, err);
}

enum dpt_status rank_evaluate(struct dpt_rank *r, bool *ret_stopped, bool *ret_all_leave,
                              struct dpt_err *err)
{
    struct dpt_evaluation e;
    const int64_t begin = dpt_now_ns();
    enum dpt_status status = DPT_OK;
    if (r->eval_part.step != r->step)
        r->eval_part = (struct dpt_eval_part){.step = r->step};
    const bool goes_on = r->eval_part.batches > 0;
    dpt_evaluation_begin(&e, &r->eval_part, r->val_samples, r->config->train.micro_batch,
                         r->gen.world_size);
    if (goes_on && r->gen.rank == 0)
        dpt_log(DPT_LOG_INFO, "the evaluation at step %lld goes on after %lld of %lld batches",
                (long long)r->step, (long long)r->eval_part.batches,
                (long long)dpt_eval_batches(r->val_samples, r->config->train.micro_batch));
    if (r->accelerator)
        dpt_accelerator_forget_weights(r->accelerator);
    rank_publish_busy(r, true);
    while (status == DPT_OK && e.round < e.rounds && !e.reform) {
        status = one_round(r, &e, err);
        if (status == DPT_OK)
            r->eval_part = dpt_evaluation_part(&e);
        rank_publish_work(r);
    }
    *ret_stopped = e.round < e.rounds;
    *ret_all_leave = e.all_leave;
    if (status == DPT_OK && !*ret_stopped)
        r->validation =
            (struct validation){.step = e.step,
                                .loss = e.sum / ((double)e.samples * (double)r->form.losses),
                                .right = e.right,
                                .ms = goes_on ? 0 : (double)(dpt_now_ns() - begin) * 1e-6};
    rank_publish_busy(r, false);
    return status;
}

int64_t rank_labelled_samples(const struct dpt_rank *r)
{
    return dpt_model_labels(r->model) > 0 ? r->val_samples : 0;
}

struct dpt_eval_record rank_evaluation_record(const struct dpt_rank *r)
{
    return (struct dpt_eval_record){.run = r->config->run,
                                    .step = r->validation.step,
                                    .val_loss = r->validation.loss,
                                    .tokens = r->val_samples * r->form.positions,
                                    .right = r->validation.right,
                                    .samples = rank_labelled_samples(r),
                                    .ms = r->validation.ms > 0 ? r->validation.ms : (double)NAN,
                                    .generation = r->gen.number,
                                    .world_size = r->gen.world_size};
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
    if (r->config->train.eval_only || !rank_keeps_log(r))
        return;
    rank_add_line(r, dpt_runlog_eval(&r->log, &e, &err), &err);
}
