/* A server's answer as a view of the run (hang.h). */
#include "worker/doctor/hang.h"

#include <string.h>

static void take_rank(const Dpt__RankStatus *from, struct dpt_hang_rank *ret)
{
    *ret = (struct dpt_hang_rank){.rank = from->plan_rank,
                                  .local_rank = from->local_rank,
                                  .phase = from->phase,
                                  .step = from->step_applied,
                                  .busy = from->busy != 0,
                                  .connected = from->connected != 0,
                                  .heard_ms = from->heard_ms_ago,
                                  .node_ms = from->node_ms_ago,
                                  .main_unit = -1,
                                  .main_slot = -1,
                                  .comm_unit = -1};
    (void)snprintf(ret->node, sizeof ret->node, "%s", from->node);
    (void)snprintf(ret->host, sizeof ret->host, "%s", from->host_name);
    const Dpt__RankActivity *activity = from->activity;
    ret->known = activity != NULL;
    if (!activity)
        return;
    ret->main = activity->main;
    ret->main_unit = (int)activity->main_unit - 1;
    ret->main_slot = (int)activity->main_slot - 1;
    ret->main_ms = activity->main_ms;
    ret->comm = activity->comm;
    ret->comm_unit = (int)activity->comm_unit - 1;
    ret->comm_ms = activity->comm_ms;
}

enum dpt_status dpt_hang_take(const Dpt__ServerState *message, struct dpt_hang_view *ret,
                              struct dpt_err *err)
{
    const Dpt__RunStatus *status = message->status;
    if (message->version != DPT_PROTO_VERSION)
        return dpt_fail(err, DPT_EVERSION,
                        "the server speaks protocol %u, this dpt-doctor protocol %d: install the "
                        "same version on both",
                        message->version, DPT_PROTO_VERSION);
    if (!status && message->text[0] != '\0')
        return dpt_fail(err, DPT_ENOENT, "%s", message->text);
    if (!status)
        return dpt_fail(err, DPT_EVERSION,
                        "the server tells no status: it is of an older version; install the same "
                        "version on both");
    ret->phase = message->phase;
    ret->generation = status->generation;
    ret->world_size = (int)status->world_size;
    ret->still_ms = status->still_ms;
    ret->limit_ms = status->limit_ms;
    ret->step_ms_median = status->step_ms_median;
    ret->phase_ms = status->phase_ms;
    ret->heartbeat_ms = status->heartbeat_ms;
    ret->heard_ms = status->heard_ms_ago;
    ret->unheard = status->unheard != 0;
    ret->left_out = (int)status->ranks_left_out;
    ret->n = (int)status->n_ranks; /* check.c: at most DPT_HANG_RANKS_MAX */
    (void)snprintf(ret->run, sizeof ret->run, "%s", status->run);
    (void)snprintf(ret->cause, sizeof ret->cause, "%s", status->cause);
    (void)snprintf(ret->text, sizeof ret->text, "%s", message->text);
    for (int i = 0; i < ret->n; i++)
        take_rank(status->ranks[i], &ret->rank[i]);
    return DPT_OK;
}
