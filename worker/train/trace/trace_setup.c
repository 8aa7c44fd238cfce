/* The facts of a run that its traces state (rank_trace.h). */
#include "worker/train/trace/rank_trace.h"

#include "base/config_table.h"
#include "base/memory.h"
#include "base/strategy_traits.h"
#include "worker/strategy/strategy.h"
#include "worker/train/device/rank_device.h"

static const char *word_of(const struct dpt_config *config, const char *path)
{
    return dpt_config_key_choice(dpt_config_key(path), config)->name;
}

/* Nodes with one sum of lanes exchange it once a step; only their own ranks exchange slots. */
static bool sends_slots(const struct dpt_strategy_traits *traits)
{
    return (traits->route != DPT_GRADIENT_LANES || traits->buckets.each_slot) && !traits->by_node;
}

static bool gathers_units(const struct dpt_rank *r, const struct dpt_strategy_traits *traits)
{
    const int shared = dpt_model_n_units(r->model) - (dpt_strategy_tied_unit(r->model) >= 0);
    return traits->weights == DPT_WEIGHTS_UNITS &&
           dpt_strategy_gathered_places(r->config, r->model) < shared;
}

struct dpt_kineto_setup rank_trace_setup(const struct dpt_rank *r)
{
    const struct dpt_config *c = r->config;
    const struct dpt_strategy_traits traits = dpt_strategy_traits(c);
    const bool gpu = r->device->device_model != NULL;
    return (struct dpt_kineto_setup){
        .hosts = r->trace->hosts,
        .overlap = c->strategy.overlap,
        .compression = word_of(c, "strategy.compression"),
        .may_compress = dpt_config_may_round(c),
        .sends_slots = sends_slots(&traits),
        .gathers_units = gathers_units(r, &traits),
        .activation_checkpointing = word_of(c, "train.activation_checkpointing"),
        .precision = word_of(c, "train.precision"),
        .device = gpu ? "cuda" : "cpu",
        .data = word_of(c, "data.kind"),
        .global_batch = c->train.global_batch,
        .micro_batch = c->train.micro_batch,
        .memory_free = gpu ? 0 : dpt_memory_available("") / r->trace->ranks_of_host,
    };
}
