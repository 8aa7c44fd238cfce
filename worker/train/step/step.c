/* Makes one step up to its commit: carries out the strategy's list of actions and waits for the
 * gradient. */
#include "worker/train/step/step.h"

#include "worker/trace/span.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/save/save.h"

#include <stdlib.h>

enum dpt_status rank_open_samples(struct dpt_rank *r, struct dpt_err *err)
{
    struct rank_stepping *s = r->stepping;
    const struct dpt_rank_start *start = r->options->start;
    if (!r->config->train.eval_only) {
        DPT_TRY(dpt_data_open(r->config, &s->data, err));
        DPT_TRY(rank_check_source(s->data, start->data, start->data_stamp, err));
        DPT_TRY(dpt_loader_create(r->config, s->data, &s->loader, err));
        dpt_account_add(&r->device->memory, DPT_MEMORY_DATA, NULL, dpt_loader_bytes(s->loader),
                        dpt_loader_bytes(s->loader));
    }
    s->slot_losses = calloc((size_t)r->slots, sizeof *s->slot_losses);
    r->state.outcome.losses = calloc((size_t)r->slots, sizeof *r->state.outcome.losses);
    s->contribution = malloc(dpt_contribution_bytes(r->slots));
    return s->slot_losses && r->state.outcome.losses && s->contribution
               ? DPT_OK
               : dpt_fail_nomem(err, "step buffers");
}

void rank_close_samples(struct dpt_rank *r)
{
    struct rank_stepping *s = r->stepping;
    dpt_loader_destroy(&s->loader);
    dpt_data_close(&s->data);
    dpt_data_close(&s->val);
    free(s->val_memory);
    free(s->slot_losses);
    free(s->contribution);
    free(r->state.outcome.losses);
}

enum dpt_status rank_check_interruption(const struct dpt_rank *r, const char *what,
                                        struct dpt_err *err)
{
    if (dpt_link_interrupted(r->link, r->gen.number))
        return dpt_fail(err, DPT_EABORTED, "%s %lld was interrupted", what,
                        (long long)r->state.step);
    return dpt_comm_thread_check(r->comm_thread, err);
}

/* The mean of the slot's losses, which are added in their order. */
static double slot_loss(const struct dpt_rank *r)
{
    const int64_t n = r->config->train.micro_batch * r->form.losses;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)r->device->losses[i];
    return sum / (double)n;
}

enum dpt_status rank_note_reading(struct dpt_rank *r, enum dpt_status status, struct dpt_err *err)
{
    r->stepping->reading_failed = status != DPT_OK;
    if (status == DPT_EIO || status == DPT_ENOENT || status == DPT_ENOMEM)
        status = err->status = DPT_EDEVICE;
    return status;
}

static enum dpt_status begin_training_slot(struct dpt_rank *r, int index, struct dpt_slot *slot,
                                           struct dpt_err *err)
{
    const double losses = (double)(r->config->train.micro_batch * r->form.losses);
    *slot = rank_slot(r, DPT_MODE_TRAIN);
    slot->seed = r->config->seed;
    slot->step = r->state.step;
    slot->slot = index;
    slot->dloss = (float)(1.0 / (losses * r->slots)) * (float)r->state.scaler.scale;
    slot->share = (float)(1.0 / (double)r->slots);
    const int64_t began_ns = dpt_trace_begin();
    const enum dpt_status status =
        dpt_loader_next(r->stepping->loader, r->state.step, index, &slot->batch, err);
    dpt_trace_end_named(began_ns, "wait for data");
    DPT_TRY(rank_note_reading(r, status, err));
    slot->t = slot->batch.positions;
    dpt_strategy_begin_slot(r->strategy, index, slot);
    rank_begin_slot(r, slot);
    return DPT_OK;
}

static enum dpt_status end_training_slot(struct dpt_rank *r, int index, const struct dpt_slot *slot,
                                         struct dpt_err *err)
{
    DPT_TRY(rank_end_slot(r, slot, err));
    r->stepping->slot_losses[index] = slot_loss(r);
    return DPT_OK;
}

static void trace_unit(const struct dpt_rank *r, int64_t began_ns, const struct dpt_action *action,
                       const struct dpt_slot *slot)
{
    dpt_trace_end(began_ns, &(struct dpt_trace_span){
                                .name = dpt_model_unit(r->model, action->unit)->name,
                                .key = {"unit", "slot", "batch", "positions"},
                                .value = {action->unit, action->slot, slot->b, slot->t}});
}

/* Computes a unit, forward or backward. */
static enum dpt_status compute_unit(struct dpt_rank *r, const struct dpt_action *action,
                                    struct dpt_slot *slot, struct dpt_err *err)
{
    const int64_t began_ns = dpt_trace_begin();
    if (action->kind == DPT_ACTION_FORWARD)
        rank_forward(r, action->unit, slot);
    else
        DPT_TRY(rank_backward(r, action->unit, slot, err));
    trace_unit(r, began_ns, action, slot);
    return DPT_OK;
}

/* A FREE waits for transfers out of a buffer, if it waits at all. */
void rank_note_action(const struct dpt_action *action)
{
    static const enum dpt_work works[DPT_ACTION_COUNT] = {
        [DPT_ACTION_BEGIN_SLOT] = DPT_WORK_SAMPLES,    [DPT_ACTION_GATHER] = DPT_WORK_AWAIT_WEIGHTS,
        [DPT_ACTION_FORWARD] = DPT_WORK_FORWARD,       [DPT_ACTION_BACKWARD] = DPT_WORK_BACKWARD,
        [DPT_ACTION_FREE] = DPT_WORK_AWAIT_BUFFER,     [DPT_ACTION_RESERVE] = DPT_WORK_AWAIT_BUFFER,
        [DPT_ACTION_REDUCE] = DPT_WORK_AWAIT_GRADIENT, [DPT_ACTION_END_SLOT] = DPT_WORK_BACKWARD};
    dpt_present_work_note(works[action->kind], action->unit, action->slot);
}

/* Carries out action `i` of the list. */
static enum dpt_status carry_out_action(struct dpt_rank *r, const struct dpt_action *action, int i,
                                        struct dpt_slot *slot, struct dpt_err *err)
{
    switch (action->kind) {
    case DPT_ACTION_BEGIN_SLOT:
        return begin_training_slot(r, action->slot, slot, err);
    case DPT_ACTION_FORWARD:
    case DPT_ACTION_BACKWARD:
        return compute_unit(r, action, slot, err);
    case DPT_ACTION_END_SLOT:
        return end_training_slot(r, action->slot, slot, err);
    case DPT_ACTION_GATHER:
    case DPT_ACTION_FREE:
    case DPT_ACTION_RESERVE:
    case DPT_ACTION_REDUCE:
        return dpt_strategy_act(r->strategy, i, err);
    case DPT_ACTION_COUNT:
        break;
    }
    DPT_ASSERT(false);
    return DPT_OK;
}

/* The pass of a slot that is traced now. */
struct pass {
    const char *name; /* NULL: none */
    int64_t began_ns;
};

/* Begins and ends the spans of a slot's passes. A pass has also the other actions between its
 * units, such as waits for weights. */
static void trace_pass(struct pass *pass, const struct dpt_action *next)
{
    static const char forward[] = "forward", backward[] = "backward";
    const char *name = pass->name;
    if (next->kind == DPT_ACTION_FORWARD)
        name = forward;
    else if (next->kind == DPT_ACTION_BACKWARD)
        name = backward;
    else if (next->kind == DPT_ACTION_BEGIN_SLOT || next->kind == DPT_ACTION_END_SLOT)
        name = NULL;
    if (name == pass->name)
        return;
    if (pass->name)
        dpt_trace_end_named(pass->began_ns, pass->name);
    *pass = (struct pass){name, name ? dpt_trace_begin() : 0};
}

enum dpt_status rank_compute_step(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_step_list *list = dpt_strategy_step_list(r->strategy);
    struct dpt_slot slot;
    struct pass pass = {.name = NULL};
    r->state.diverged = false;
    rank_forget_weights(r);
    dpt_strategy_begin_step(r->strategy, r->state.step);
    for (int i = 0; i < list->n_actions; i++) {
        DPT_TRY(rank_check_interruption(r, "step", err));
        trace_pass(&pass, &list->actions[i]);
        rank_note_action(&list->actions[i]);
        DPT_TRY(carry_out_action(r, &list->actions[i], i, &slot, err));
    }
    const int64_t sync_ns = dpt_trace_begin();
    dpt_present_work_note(DPT_WORK_AWAIT_GRADIENT, -1, -1);
    DPT_TRY(dpt_strategy_await_gradient(r->strategy, err));
    dpt_trace_end_named(sync_ns, "grad_sync");
    const int64_t commit_ns = dpt_trace_begin();
    dpt_present_work_note(DPT_WORK_COMMIT, -1, -1);
    const enum dpt_status status = rank_commit_step(r, err);
    dpt_trace_end_named(commit_ns, "commit");
    return status;
}
