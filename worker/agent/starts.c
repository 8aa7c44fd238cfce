/* Starts of rank processes, after the claims on the run's folders. */
#include "worker/agent/starts.h"

#include "worker/agent/address.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A run that only evaluates claims nothing: others may train in the folders. */
static enum dpt_status begin_claims(struct dpt_starts *starts, const struct dpt_node *node,
                                    uint64_t epoch, struct dpt_err *err)
{
    const struct dpt_config *config = &node->config;
    if (starts->claims != NULL || config->train.eval_only)
        return DPT_OK;
    const struct dpt_claims_options options = {.dir = {config->log.dir, config->checkpoint.dir},
                                               .run = config->run,
                                               .server = epoch,
                                               .embedded = starts->options->embedded,
                                               .timeout_ms = node->spec.timeout_ms};
    return dpt_claims_create(&options, &starts->claims, err);
}

bool dpt_starts_is_claimed(const struct dpt_starts *starts)
{
    char text[DPT_ERR_TEXT_BYTES];
    return starts->claims == NULL || dpt_claims_state(starts->claims, text) == DPT_CLAIMS_HELD;
}

static void start_rank(struct dpt_starts *starts, const struct dpt_node *node,
                       const struct dpt_agent_action *action)
{
    const struct dpt_worker_options *options = starts->options->worker;
    const struct dpt_data_digest *data = &node->data;
    struct dpt_rank_start start = {.incarnation = action->incarnation,
                                   .local_rank = (int)action->local_rank,
                                   .ranks = node->n_ranks,
                                   .spawn = (int)action->spawn,
                                   .threads = node->threads,
                                   .agent = getpid(),
                                   .log_level = (int)options->log_level,
                                   .n_allow = options->n_allow,
                                   .allow_fresh = options->allow_fresh};
    (void)snprintf(start.node, sizeof start.node, "%s", starts->options->agent.node);
    memcpy(start.data, data->train.hash, sizeof start.data);
    memcpy(start.data_stamp, data->train.stamp, sizeof start.data_stamp);
    memcpy(start.val, data->val.hash, sizeof start.val);
    memcpy(start.val_stamp, data->val.stamp, sizeof start.val_stamp);
    for (int i = 0; i < options->n_allow; i++)
        (void)snprintf(start.allow[i], sizeof start.allow[i], "%s", options->allow[i]);
    if (starts->claims != NULL &&
        !dpt_claims_get(starts->claims, 1, &start.claim_number, start.claim_token))
        start.claim_number = 0;
    struct dpt_err err;
    if (dpt_address_find(node->config.cluster.interface, starts->options->endpoint, start.address,
                         &err) != DPT_OK) {
        dpt_ranks_spawn_failed(starts->ranks, action->local_rank, action->spawn, err.text);
        return;
    }
    const struct dpt_spawn_options how = {starts->options->program, &start, node->config_text,
                                          node->config_bytes};
    dpt_ranks_spawn(starts->ranks, &how);
}

enum dpt_status dpt_starts_add(struct dpt_starts *starts, const struct dpt_node *node,
                               const struct dpt_agent_action *action, uint64_t epoch,
                               struct dpt_err *err)
{
    DPT_TRY(begin_claims(starts, node, epoch, err));
    if (dpt_starts_is_claimed(starts))
        start_rank(starts, node, action);
    else
        starts->waiting[action->local_rank] = *action;
    return DPT_OK;
}

void dpt_starts_release(struct dpt_starts *starts, const struct dpt_node *node)
{
    for (int i = 0; i < DPT_PROTO_RANKS_MAX; i++) {
        const struct dpt_agent_action action = starts->waiting[i];
        starts->waiting[i].spawn = 0;
        if (action.spawn != 0)
            start_rank(starts, node, &action);
    }
}

void dpt_starts_kill(struct dpt_starts *starts, const struct dpt_agent_action *action)
{
    struct dpt_agent_action *waiting = &starts->waiting[action->local_rank];
    if (waiting->spawn == 0 || waiting->spawn != action->spawn) {
        dpt_ranks_kill(starts->ranks, action->local_rank, action->spawn);
        return;
    }
    waiting->spawn = 0;
    dpt_ranks_spawn_failed(starts->ranks, action->local_rank, action->spawn,
                           "was given up while log.dir or checkpoint.dir was being claimed");
}
