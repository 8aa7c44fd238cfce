/* See words.h. */
#include "worker/ctl/words.h"

#include "base/config.h"

#include <stdio.h>

const char *dpt_ctl_run_word(const Dpt__RunInfo *run)
{
    if (run->unheard)
        return "unheard";
    switch (run->phase) {
    case DPT__SERVER_PHASE__SERVER_DONE:
        return run->stopping ? "stopped" : "done";
    case DPT__SERVER_PHASE__SERVER_FAILED:
        return "failed";
    case DPT__SERVER_PHASE__SERVER_DRAINING:
        return "finishing";
    default:
        break;
    }
    if (run->stopping)
        return "stopping";
    if (run->paused)
        return run->held ? "paused" : "pausing";
    if (run->phase == DPT__SERVER_PHASE__SERVER_RUNNING)
        return "trains";
    return run->phase == DPT__SERVER_PHASE__SERVER_PREPARE ||
                   run->phase == DPT__SERVER_PHASE__SERVER_PLAN
               ? "forming"
               : "waits";
}

bool dpt_ctl_node_is_heard(const Dpt__NodeInfo *node)
{
    return node->role != DPT__NODE_ROLE__NODE_DENIED && node->role != DPT__NODE_ROLE__NODE_AWAITED;
}

const char *dpt_ctl_node_word(const Dpt__NodeInfo *node)
{
    switch (node->role) {
    case DPT__NODE_ROLE__NODE_TRAINS:
        return "trains";
    case DPT__NODE_ROLE__NODE_SPARE:
        return "spare";
    case DPT__NODE_ROLE__NODE_LEAVES:
        return "leaves";
    case DPT__NODE_ROLE__NODE_AWAITED:
        return "awaited";
    case DPT__NODE_ROLE__NODE_DENIED:
        return "denied";
    default:
        return "waits";
    }
}

void dpt_ctl_checkpoint_folder(const Dpt__RunSpec *spec, int64_t step, char ret[PATH_MAX])
{
    static struct dpt_config config;
    struct dpt_err err;
    ret[0] = '\0';
    if (spec == NULL ||
        dpt_config_load_text(spec->config_yaml, "the run's config", NULL, 0, &config, &err) !=
            DPT_OK ||
        config.checkpoint.dir[0] == '\0')
        return;
    const int bytes =
        snprintf(ret, PATH_MAX, "%s/step-%08lld", config.checkpoint.dir, (long long)step);
    if (bytes < 0 || bytes >= PATH_MAX)
        ret[0] = '\0';
}
