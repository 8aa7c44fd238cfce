/* Checks whether a rank may continue: from the newest checkpoint, with this config, these data and
 * this kind of machine, and with the data that its agent has found. */
#include "base/strategy_traits.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/save/save.h"

#include <string.h>

enum dpt_status rank_check_source(const struct dpt_data *data, const char *hash, const char *stamp,
                                  struct dpt_err *err)
{
    struct dpt_data_identity was;
    (void)snprintf(was.hash, sizeof was.hash, "%s", hash);
    (void)snprintf(was.stamp, sizeof was.stamp, "%s", stamp);
    return dpt_data_check(data, &was, err);
}

/* Ignores the settings that a run that only evaluates may change: only the model's settings must be
 * those of the checkpoint. */
static void ignore_training_settings(const struct dpt_config *config, struct dpt_config *saved)
{
    const struct dpt_config was = *saved;
    saved->seed = config->seed;
    saved->train = config->train;
    /* The meaning of `auto` depends on the strategy, which may differ. */
    saved->train.accumulate = dpt_strategy_traits(config).order;
    saved->train.lora = was.train.lora;
    saved->optimizer = config->optimizer;
    saved->model.dropout = config->model.dropout;
    if (saved->data.kind != config->data.kind)
        saved->data.tokenizer = config->data.tokenizer;
    saved->data.kind = config->data.kind;
}

static bool change_allowed(const struct dpt_rank *r, const char *key)
{
    const struct dpt_rank_start *start = r->options->start;
    for (int i = 0; i < start->n_allow; i++)
        if (strcmp(start->allow[i], key) == 0)
            return true;
    return false;
}

/* DPT_ECONFIG: data.train is not the data of the checkpoint. Data without a digest are accepted. */
static enum dpt_status check_data(const struct dpt_rank *r, int64_t step, const char *was,
                                  struct dpt_err *err)
{
    const char *data = r->options->start->data;
    if (!was || !was[0] || !data[0] || strcmp(was, data) == 0 || change_allowed(r, "data.train"))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' holds step %lld of a run on other data: the content of data.train ('%s') "
                    "is not what it was; give another checkpoint.dir, the same data, or "
                    "--allow-change data.train",
                    r->config->checkpoint.dir, (long long)step, r->config->data.train);
}

/* Compares the kind of machine, because another kind computes other bits. `fast` and a run that
 * only evaluates promise no bits. */
static enum dpt_status check_fingerprint(const struct dpt_rank *r, int64_t step, const char *was,
                                         struct dpt_err *err)
{
    const char *is = r->device->fingerprint;
    if (!was || strcmp(was, is) == 0 || dpt_strategy_traits(r->config).order_open ||
        r->config->train.eval_only || change_allowed(r, "cluster.device"))
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' holds step %lld of a run on another kind of machine: %s; this one (%s) "
                    "would continue with other bits; give machines of the former kind, or "
                    "--allow-change cluster.device",
                    r->config->checkpoint.dir, (long long)step, was, is);
}

/* Refuses a different number of steps. The user most often wants it, so the message names the
 * option. */
static enum dpt_status refuse_length(int64_t step, const struct dpt_config *saved,
                                     const struct dpt_config *mine, struct dpt_err *err)
{
    const bool by_epochs = saved->train.epochs > 0 && mine->train.epochs > 0;
    const char *key = by_epochs ? "train.epochs" : "train.steps", *dir = mine->checkpoint.dir;
    const char *unit = by_epochs ? "epochs" : "steps";
    const long long was = (long long)(by_epochs ? saved->train.epochs : saved->train.steps);
    const long long is = (long long)(by_epochs ? mine->train.epochs : mine->train.steps);
    const long long at = (long long)step, steps = (long long)mine->train.steps;
    if (at >= steps)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' holds step %lld of a run of %lld %s, which is not before "
                        "%s, %lld here: there is nothing to train; give a larger "
                        "%s, or another checkpoint.dir to start anew",
                        dir, at, was, unit, key, is, key);
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' holds step %lld of a run of %lld %s, and %s is %lld here: "
                    "give --allow-change %s to continue to step %lld (the learning rate "
                    "follows the new number), or another checkpoint.dir to start anew",
                    dir, at, was, unit, key, is, key, steps);
}

/* Whether the model has the same tensors, by name and shape, as the model of the checkpoint's
 * config. */
static enum dpt_status has_tensors_of(const struct dpt_model *model, const struct dpt_config *saved,
                                      bool *ret, struct dpt_err *err)
{
    struct dpt_model *was = NULL;
    const enum dpt_status status = dpt_model_create(saved, &was, err);
    if (status != DPT_OK)
        return dpt_wrap(err, status, "the checkpoint's config");
    const int n = dpt_model_n_params(model);
    bool same = n == dpt_model_n_params(was);
    for (int i = 0; same && i < n; i++) {
        const struct dpt_param *a = dpt_model_param(model, i), *b = dpt_model_param(was, i);
        same = strcmp(a->name, b->name) == 0 && a->ndim == b->ndim &&
               memcmp(a->dim, b->dim, sizeof a->dim) == 0;
    }
    dpt_model_destroy(&was);
    *ret = same;
    return DPT_OK;
}

/* `keys`: names of the settings that differ. */
static enum dpt_status refuse_settings(const struct dpt_rank *r, int64_t step,
                                       const struct dpt_config *saved, const char *keys,
                                       struct dpt_err *err)
{
    const char *dir = r->config->checkpoint.dir;
    bool same = false;
    DPT_TRY(has_tensors_of(r->model, saved, &same, err));
    if (!same)
        return dpt_fail(err, DPT_ECONFIG,
                        "'%s' holds step %lld of a run with other settings: %s; the model has "
                        "other tensors than that step, which cannot be allowed; give another "
                        "checkpoint.dir or the same settings",
                        dir, (long long)step, keys);
    return dpt_fail(err, DPT_ECONFIG,
                    "'%s' holds step %lld of a run with other settings: %s; give another "
                    "checkpoint.dir, the same settings, or --allow-change KEY for each",
                    dir, (long long)step, keys);
}

/* Compares the keys that determine the trajectory. */
static enum dpt_status check_settings(const struct dpt_rank *r, int64_t step,
                                      const struct dpt_config *saved, struct dpt_err *err)
{
    const struct dpt_rank_start *start = r->options->start;
    const struct dpt_config *mine = r->config;
    const size_t n = (size_t)start->n_allow;
    const char *allow[DPT_RANK_ALLOW_MAX + 2] = {NULL}; /* the list ends with NULL */
    const bool both_have_epochs = saved->train.epochs > 0 && mine->train.epochs > 0;
    char keys[512], others[512];
    for (size_t i = 0; i < n; i++)
        allow[i] = start->allow[i];
    if (dpt_config_diff(saved, mine, DPT_CONFIG_TRAJECTORY, allow, keys, sizeof keys) == 0)
        return DPT_OK;
    allow[n] = both_have_epochs ? "train.epochs" : "train.steps";
    if (dpt_config_diff(saved, mine, DPT_CONFIG_TRAJECTORY, allow, others, sizeof others))
        return refuse_settings(r, step, saved, keys, err);
    return refuse_length(step, saved, mine, err);
}

enum dpt_status rank_check_resume(struct dpt_rank *r, struct dpt_err *err)
{
    if (!r->config->checkpoint.dir[0])
        return DPT_OK;
    int64_t step = -1;
    DPT_TRY(rank_newest_checkpoint(r, &step, err));
    if (step < 0 && r->config->cluster.nnodes_max == 1)
        return rank_refuse_seed(r, err); /* no other node has a checkpoint */
    if (step < 0)
        return DPT_OK;
    struct dpt_checkpoint *checkpoint = NULL;
    DPT_TRY(dpt_checkpoint_open(r->config->checkpoint.dir, step, &checkpoint, err));
    static _Thread_local struct dpt_config saved;
    const struct dpt_checkpoint_state *state = dpt_checkpoint_get_state(checkpoint);
    enum dpt_status status =
        dpt_config_load_text(state->config_yaml, "the checkpoint's config", NULL, 0, &saved, err);
    if (status == DPT_OK)
        status = check_data(r, step, state->data_digest, err);
    if (status == DPT_OK)
        status = check_fingerprint(r, step, state->fingerprint, err);
    dpt_checkpoint_close(&checkpoint);
    DPT_TRY(status);
    if (r->config->train.eval_only)
        ignore_training_settings(r->config, &saved);
    return check_settings(r, step, &saved, err);
}
