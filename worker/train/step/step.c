/* One step up to its outcome: carries out the plan's list of actions, waits for the gradient,
 * commits. */
#include "base/log.h"
#include "worker/train/rank_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For tests of the oracle: DPT_TEST_FLIP_GRADIENT_BIT=RANK:STEP (read once, at start, with a
 * warning) flips one bit of the first gradient that the rank announces in that step, which must
 * give another weights hash. */
struct flip {
    const struct dpt_rank *rank;
    struct dpt_slot slot;
    void (*announce)(void *ctx, int param);
    void *ctx;
    bool armed;
};

static bool flip_wanted(const struct dpt_rank *r)
{
    return r->gen.rank == r->flip_gradient.rank && r->step == r->flip_gradient.step;
}

/* Of memory that the slot points to: the host's, or the device's. */
static void flip_bit(const struct dpt_rank *r, float *at)
{
    const bool resident = dpt_config_state_on_device(r->config);
    struct dpt_stream *stream = resident ? dpt_accelerator_stream(r->accelerator) : r->stream;
    const struct dpt_ops *ops =
        resident ? dpt_device_ops(dpt_accelerator_device(r->accelerator)) : r->ops;
    uint32_t bits = 0;
    struct dpt_err err;
    ops->copy(stream, sizeof bits, at, &bits);
    if (dpt_stream_sync(stream, &err) != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "no bit is flipped: %s", err.text);
    bits ^= 1u << 22;
    ops->copy(stream, sizeof bits, &bits, at);
}

static void flip_and_announce(void *ctx, int param)
{
    struct flip *f = ctx;
    if (f->armed) {
        const struct dpt_param *p = dpt_model_param(f->rank->model, param);
        float *grad =
            f->slot.grads[p->unit] + (p->offset - dpt_model_unit(f->rank->model, p->unit)->offset);
        flip_bit(f->rank, grad);
        f->armed = false;
    }
    f->announce(f->ctx, param);
}

bool rank_in_vain(const struct dpt_rank *r)
{
    return dpt_link_interrupted(r->link, r->gen.number) || dpt_comm_thread_failed(r->comm_thread);
}

/* For tests of divergence: DPT_TEST_SPOIL_STEPS=COUNT:FIRST[:FACTOR] multiplies the gradients of
 * these steps by the factor, NaN if none is given, in every slot and so in every world alike. */
static double spoil_factor(const struct dpt_rank *r)
{
    const bool is_spoilt = r->step >= r->spoilt.first && r->step - r->spoilt.first < r->spoilt.n;
    return is_spoilt ? r->spoilt.factor : 1;
}

static void fill_slot(const struct dpt_rank *r, int index, struct dpt_slot *slot)
{
    const int64_t b = r->config->train.micro_batch;
    *slot = (struct dpt_slot){.mode = DPT_MODE_TRAIN,
                              .seed = r->config->seed,
                              .step = r->step,
                              .slot = index,
                              .b = b,
                              .t = r->form.positions,
                              .base = dpt_base_weights(r->base),
                              .base_packed = dpt_base_packed(r->base),
                              .dloss = (float)(1.0 / ((double)(b * r->form.losses) * r->slots)) *
                                       (float)r->scaler.scale * (float)spoil_factor(r),
                              .share = (float)(1.0 / (double)r->slots),
                              .saved = r->saved,
                              .scratch = r->scratch,
                              .losses = r->losses};
}

/* The mean of the slot's losses, added in their order. */
static double slot_loss(const struct dpt_rank *r)
{
    const int64_t n = r->config->train.micro_batch * r->form.losses;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)r->losses[i];
    return sum / (double)n;
}

void rank_forward(struct dpt_rank *r, int unit, const struct dpt_slot *slot)
{
    if (r->accelerator)
        dpt_accelerator_forward(r->accelerator, unit, slot);
    else
        dpt_model_forward(r->model, r->ops, r->stream, unit, slot);
}

static enum dpt_status backward(struct dpt_rank *r, int unit, const struct dpt_slot *slot,
                                struct dpt_err *err)
{
    if (r->accelerator)
        return dpt_accelerator_backward(r->accelerator, r->ops, r->stream, unit, slot, err);
    dpt_model_backward(r->model, r->ops, r->stream, unit, slot);
    return DPT_OK;
}

enum dpt_status rank_end_slot(struct dpt_rank *r, const struct dpt_slot *slot, struct dpt_err *err)
{
    if (r->accelerator)
        DPT_TRY(dpt_accelerator_end_slot(r->accelerator, slot, err));
    return dpt_stream_sync(r->stream, err);
}

enum dpt_status rank_own_disk(struct dpt_rank *r, enum dpt_status status, struct dpt_err *err)
{
    r->reading_failed = status != DPT_OK;
    if (status == DPT_EIO || status == DPT_ENOENT || status == DPT_ENOMEM)
        status = err->status = DPT_EDEVICE;
    return status;
}

static enum dpt_status run_actions(struct dpt_rank *r, struct flip *flip, struct dpt_err *err)
{
    struct dpt_slot *slot = &flip->slot;
    const struct dpt_step_list *list = r->strategy->ops->step_list(r->strategy);
    for (int i = 0; i < list->n_actions; i++) {
        const struct dpt_action *action = &list->actions[i];
        if (rank_in_vain(r))
            return dpt_fail(err, DPT_EABORTED, "step %lld was interrupted", (long long)r->step);
        switch (action->kind) {
        case DPT_ACTION_BEGIN_SLOT:
            fill_slot(r, action->slot, slot);
            DPT_TRY(rank_own_disk(
                r, dpt_loader_next(r->loader, r->step, action->slot, &slot->batch, err), err));
            slot->t = slot->batch.positions;
            r->strategy->ops->begin_slot(r->strategy, action->slot, slot);
            if (r->accelerator)
                dpt_accelerator_begin_slot(r->accelerator, slot);
            flip->announce = slot->announce;
            flip->ctx = slot->announce_ctx;
            slot->announce = flip_and_announce;
            slot->announce_ctx = flip;
            break;
        case DPT_ACTION_FORWARD:
            rank_forward(r, action->unit, slot);
            break;
        case DPT_ACTION_BACKWARD:
            DPT_TRY(backward(r, action->unit, slot, err));
            break;
        case DPT_ACTION_END_SLOT:
            DPT_TRY(rank_end_slot(r, slot, err));
            r->slot_losses[action->slot] = slot_loss(r);
            r->strategy->ops->end_slot(r->strategy, action->slot);
            break;
        case DPT_ACTION_GATHER:
        case DPT_ACTION_FREE:
        case DPT_ACTION_RESERVE:
        case DPT_ACTION_REDUCE:
            DPT_TRY(r->strategy->ops->act(r->strategy, i, slot, err));
            break;
        case DPT_ACTION_COUNT:
            DPT_ASSERT(false);
        }
    }
    return DPT_OK;
}

static enum dpt_status job_commit(struct dpt_comm_thread *thread, void *ctx, struct dpt_err *err)
{
    struct dpt_rank *r = ctx;
    size_t bytes = dpt_contribution_bytes(r->gen.slots_max);
    if (r->gen.world_size == 1) {
        memcpy(r->gen.contributions, r->contribution, bytes);
        return DPT_OK;
    }
    return dpt_comm_small_all_gather(dpt_comm_thread_comm(thread), r->contribution, bytes,
                                     r->gen.contributions, err);
}

/* The small all-reduce. Its completion is the commit of the step. */
static enum dpt_status commit(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_contribution mine = {.step = r->step,
                                    .leaving = dpt_link_leaving(r->link),
                                    .first_slot = r->gen.slots.first,
                                    .stride = r->gen.slots.stride,
                                    .n_slots = r->gen.slots.n,
                                    .losses = r->slot_losses + r->gen.slots.first,
                                    .scale = r->scaler.scale};
    if (dpt_link_reform_wanted(r->link, r->gen.number))
        mine.flags |= DPT_COMMIT_REFORM;
    if (dpt_saver_busy(r->saver))
        mine.flags |= DPT_COMMIT_SAVER_BUSY;
    if (r->not_finite[0] && r->config->train.on_divergence != DPT_DIVERGENCE_CONTINUE)
        mine.flags |= DPT_COMMIT_NOT_FINITE;
    DPT_TRY(r->strategy->ops->norm_share(r->strategy, &mine.norm, err));
    dpt_contribution_pack(&mine, r->gen.slots_max, r->contribution);
    DPT_TRY(dpt_comm_thread_run(r->comm_thread, job_commit, r, err));
    DPT_TRY(dpt_outcome_fold(r->gen.contributions, r->gen.world_size, r->gen.slots_max, r->step,
                             r->slots, &r->outcome, err));
    r->has_outcome = dpt_step_fate_of(r->config, dpt_outcome_loss(&r->outcome), r->outcome.norm,
                                      &r->scaler) != DPT_STEP_STOPS;
    return r->has_outcome ? DPT_OK : rank_judge_diverged(r, err);
}

enum dpt_status rank_compute_step(struct dpt_rank *r, struct dpt_err *err)
{
    struct flip flip = {.rank = r, .armed = flip_wanted(r)};
    r->diverged = false;
    if (r->accelerator)
        dpt_accelerator_forget_weights(r->accelerator);
    r->strategy->ops->begin_step(r->strategy, r->step);
    DPT_TRY(run_actions(r, &flip, err));
    DPT_TRY(r->strategy->ops->await_gradient(r->strategy, err));
    return commit(r, err);
}

static void ignore_announcement(void *ctx, int param)
{
    (void)ctx;
    (void)param;
}

/* All products of a slot, with what is in slot->packed. */
static void prepare_slot(const struct dpt_rank *r, struct dpt_slot *slot)
{
    const int n_units = dpt_model_n_units(r->model);
    for (int u = 0; u < n_units; u++)
        dpt_model_forward(r->model, r->ops, r->stream, u, slot);
    if (r->val) { /* the head, which computes losses there only then */
        slot->mode = DPT_MODE_EVAL;
        dpt_model_forward(r->model, r->ops, r->stream, n_units - 1, slot);
        slot->mode = DPT_MODE_TRAIN;
    }
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        slot->accumulate = accumulate != 0;
        /* As strategies add: lane_sums.h. */
        slot->parts_apart = accumulate && r->config->train.reduction != DPT_REDUCTION_FAST;
        for (int u = n_units - 1; u >= 0; u--)
            dpt_model_backward(r->model, r->ops, r->stream, u, slot);
    }
}

enum dpt_status rank_prepare_ops(struct dpt_rank *r, struct dpt_err *err)
{
    struct dpt_slot slot;
    fill_slot(r, 0, &slot);
    const void **weights = calloc((size_t)dpt_model_n_units(r->model), sizeof *weights);
    float **grads = calloc((size_t)dpt_model_n_units(r->model), sizeof *grads);
    const int n_params = dpt_model_n_params(r->model);
    const void **packed = calloc((size_t)n_params, sizeof *packed);
    if (!weights || !grads || !packed) {
        free(weights);
        free(grads);
        free(packed);
        return dpt_fail(err, DPT_ENOMEM, "prepare the model: out of memory");
    }
    slot.weights = weights;
    slot.grads = grads;
    slot.announce = ignore_announcement;
    dpt_stream_prepare_begin(r->stream);
    prepare_slot(r, &slot);
    for (int i = 0; i < n_params; i++) {
        struct dpt_pack pack;
        packed[i] = dpt_model_packing(r->model, i, &pack) ? r : NULL; /* any address: not read */
    }
    slot.packed = packed;
    prepare_slot(r, &slot);
    free(weights);
    free(grads);
    free(packed);
    return dpt_stream_prepare_end(r->stream, err);
}
