/* Ends a run that has diverged: a step is not finite, or the state is not finite
 * (worker/optim/step_fate.h). */
#include "worker/train/process.h"

#include "worker/train/log/rank_log.h"
#include "worker/train/save/save.h"
#include "worker/train/step/step.h"
#include "worker/train/trace/rank_trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WHAT_BYTES = 128, ARGUMENTS_BYTES = 256 };

/* Waits for all ranks. The first rank that reports the error ends the run for all ranks, so all
 * ranks must have done their work before. *flag: this rank's flag; becomes true if the flag of any
 * rank is true. */
static enum dpt_status join_flags(struct dpt_rank *r, bool *flag, struct dpt_err *err)
{
    const uint8_t mine = *flag;
    DPT_TRY(generation_all_gather(&r->gen, r->comm_thread, &mine, sizeof mine, err));
    const uint8_t *flags = r->gen.gathered;
    for (int i = 0; i < r->gen.world_size; i++)
        *flag = *flag || flags[i] != 0;
    return DPT_OK;
}

/* Writes the arguments that lower the learning rate and, if it would be higher, min_lr. */
static const char *print_lower_lr(const struct dpt_config *config, char ret[ARGUMENTS_BYTES])
{
    char lr[32], min_lr[96] = "", allow[40] = "";
    (void)snprintf(lr, sizeof lr, "%g", config->optimizer.lr / 10);
    if (config->optimizer.min_lr > strtod(lr, NULL)) {
        (void)snprintf(min_lr, sizeof min_lr, " --set optimizer.min_lr=%g",
                       config->optimizer.min_lr / 10);
        (void)snprintf(allow, sizeof allow, " --allow-change optimizer.min_lr");
    }
    (void)snprintf(ret, ARGUMENTS_BYTES, "--set optimizer.lr=%s%s --allow-change optimizer.lr%s",
                   lr, min_lr, allow);
    return ret;
}

/* Fails with `why`, the newest checkpoint, and the arguments that may help, ready to be typed. */
static enum dpt_status fail_diverged(struct dpt_rank *r, const char *why, bool may_skip,
                                     struct dpt_err *err)
{
    char arguments[ARGUMENTS_BYTES], newest[96] = "none is kept (checkpoint.dir is null)";
    const char *dir = r->config->checkpoint.dir;
    struct dpt_err none;
    int64_t step = -1;
    if (dir[0])
        (void)snprintf(newest, sizeof newest, "there is none");
    if (dir[0] && dpt_checkpoint_newest(dir, &step, &none) == DPT_OK && step >= 0)
        (void)snprintf(newest, sizeof newest, "of step %lld", (long long)step);
    r->state.diverged = true;
    return dpt_fail(
        err, DPT_EDIVERGED,
        "%s; newest finite checkpoint: %s; start again with a lower learning rate, %s, or in the "
        "same way with more optimizer.warmup_steps or another train.grad_clip%s",
        why, newest, print_lower_lr(r->config, arguments),
        may_skip ? "; or leave such steps out, --set train.on_divergence=skip" : "");
}

/* Saves the state before the diverged step, unless a checkpoint has it. If that state is not finite
 * either, the saver logs this and drops the checkpoint. *ret_gave_up: the world changes before the
 * state is saved, and the next generation has to save it. */
static enum dpt_status save_before_diverged_step(struct dpt_rank *r, bool *ret_gave_up,
                                                 struct dpt_err *err)
{
    char hash[DPT_HASH_HEX_BYTES];
    *ret_gave_up = false;
    bool saved = false;
    struct dpt_err why;
    if (r->state.step == 0)
        return DPT_OK;
    DPT_TRY(rank_weights_hash(r, hash, err));
    rank_settle_saver(r);
    if (!r->config->checkpoint.dir[0] || r->gen.checkpoint_slot < 0 || rank_has_saved(r))
        return DPT_OK;
    if (rank_is_saved(r, hash, &saved, &why) != DPT_OK || !saved)
        rank_save_begin(r);
    rank_settle_saver(r);
    *ret_gave_up = dpt_link_interrupted(r->link, r->gen.number) &&
                   (rank_is_saved(r, hash, &saved, &why) != DPT_OK || !saved);
    return DPT_OK;
}

enum dpt_status rank_end_diverged(struct dpt_rank *r, struct dpt_err *err)
{
    const struct dpt_err why = *err;
    rank_trace_end_run(r);
    dpt_link_publish_busy(r->link, true);
    bool gave_up = false;
    enum dpt_status status = save_before_diverged_step(r, &gave_up, err);
    if (status == DPT_OK && !gave_up) {
        rank_log_divergence(r, r->state.step + 1, "stop", r->state.scaler.diverged_in_row);
        (void)rank_settles_log(r);
    }
    if (status == DPT_OK)
        status = join_flags(r, &gave_up, err);
    dpt_link_publish_busy(r->link, false);
    if (status != DPT_OK)
        return status;
    if (gave_up)
        return dpt_fail(err, DPT_EABORTED,
                        "the world changes before step %lld is saved: the next generation ends the "
                        "run",
                        (long long)r->state.step);
    return fail_diverged(r, why.text, r->config->train.on_divergence != DPT_DIVERGENCE_SKIP, err);
}

/* ---- a state that is not finite ---- */

/* Index of the first value that is not finite; -1: none. */
static int64_t find_not_finite(const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(values[i]))
            return i;
    return -1;
}

static const char *name_of_element(const struct dpt_rank *r, int64_t element)
{
    int t = 0;
    while (t + 1 < r->save->tensors.n && r->save->tensors.offset[t + 1] <= element)
        t++;
    return r->save->tensors.tensor[t].name;
}

/* Looks for a value that is not finite. False: all values of the part are finite. True: `ret` names
 * the place, as "second moment of tensor 'x'". */
static bool name_not_finite(const struct dpt_rank *r, const struct dpt_state_part *part,
                            char ret[WHAT_BYTES])
{
    static const char *const words[DPT_VECTOR_COUNT] = {"", "first moment of ",
                                                        "second moment of "};
    for (int u = 0; u < r->grid.n_units && !dpt_shard_is_none(part->shard); u++) {
        const struct dpt_interval piece = dpt_shard_piece(&r->grid, part->shard, u);
        for (int v = 0; v < DPT_VECTOR_COUNT; v++) {
            const int64_t at =
                !part->vector[v].mem
                    ? -1
                    : find_not_finite(dpt_strategy_state_at(part, &r->grid, (enum dpt_vector)v, u),
                                      piece.end - piece.first);
            if (at < 0)
                continue;
            (void)snprintf(ret, WHAT_BYTES, "%stensor '%.80s'", words[v],
                           name_of_element(r, piece.first + at));
            return true;
        }
    }
    return false;
}

/* Waits for earlier saves on all ranks, so that they have ended before the first rank reports the
 * end of the run. */
static enum dpt_status settle_savers(struct dpt_rank *r, struct dpt_err *err)
{
    bool none = false;
    if (r->config->checkpoint.dir[0])
        rank_settle_saver(r);
    return join_flags(r, &none, err);
}

enum dpt_status rank_end_not_finite(struct dpt_rank *r, struct dpt_err *err)
{
    char why[DPT_ERR_TEXT_BYTES];
    rank_trace_end_run(r);
    dpt_link_publish_busy(r->link, true);
    rank_log_divergence(r, r->state.step, "stop", 0);
    (void)rank_settles_log(r);
    enum dpt_status status = settle_savers(r, err);
    dpt_link_publish_busy(r->link, false);
    DPT_TRY(status);
    (void)snprintf(why, sizeof why, "step %lld is the last: %.500s", (long long)r->state.step,
                   r->save->not_finite[0]
                       ? r->save->not_finite
                       : "another rank dropped a checkpoint, for a value that is not "
                         "finite");
    return fail_diverged(r, why, false, err);
}

enum dpt_status rank_check_last_state(struct dpt_rank *r, struct dpt_err *err)
{
    char why[2 * WHAT_BYTES + 64], where[WHAT_BYTES] = "the part of another rank";
    const struct dpt_strategy_state *held = dpt_strategy_held(r->strategy);
    DPT_TRY(dpt_strategy_fetch_state(r->strategy, err));
    bool bad = r->config->checkpoint.dir[0] && name_not_finite(r, &held->own, where);
    DPT_TRY(join_flags(r, &bad, err));
    if (!bad)
        return DPT_OK;
    DPT_TRY(settle_savers(r, err));
    (void)snprintf(
        why, sizeof why,
        "the last checkpoint, of step %lld, is not written: %s holds a value that is not "
        "finite",
        (long long)r->state.step, where);
    return fail_diverged(r, why, r->config->train.on_divergence == DPT_DIVERGENCE_CONTINUE, err);
}
