/* The bytes of a step: see traffic.h. */
#include "worker/planner/traffic.h"

#include "base/strategy_traits.h"

enum { F32 = 4, F16 = 2, GATHERS = 2 /* of a unit in a wave: forward and backward */ };

/* Bytes that a rank sends in a step, by destination. */
struct sent {
    double evenly;  /* to all other ranks */
    double inside;  /* to ranks of the same machine */
    double between; /* to ranks of other machines */
};

static int machine_ranks(const struct dpt_traffic_world *world)
{
    return (world->ranks + world->machines - 1) / world->machines;
}

/* The part of a vector that one of `members` equal members sends to the others. */
static double to_others(double bytes, int members)
{
    return bytes * (members - 1) / members;
}

/* hybrid_shard: each machine has a whole state. */
static struct sent sent_per_machine(const struct dpt_traffic_world *world, bool by_node,
                                    double slots)
{
    const int h = machine_ranks(world), k = world->machines, n = world->ranks;
    const double gradient = world->elements * F32,
                 weights = to_others(world->elements * world->weight_bytes, h);
    struct sent sent = {.inside = GATHERS * slots * weights};
    if (by_node) {
        sent.inside += slots * to_others(gradient, h);
        sent.between = 2 * to_others(gradient / h, k);
    } else {
        sent.evenly = slots * to_others(gradient, n);
        sent.between = (k - 1) * gradient / n;
    }
    return sent;
}

static struct sent sent_by_rank(const struct dpt_config *config,
                                const struct dpt_traffic_world *world)
{
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const int n = world->ranks;
    const int wire_bytes = traits.wire == DPT_PRECISION_FP32 ? F32 : F16;
    const double slots = (double)((dpt_config_slots(config) + n - 1) / n),
                 gradient = to_others(world->elements * wire_bytes, n),
                 weights = to_others(world->elements * world->weight_bytes, n);
    if (traits.state == DPT_STATE_PER_NODE)
        return sent_per_machine(world, traits.by_node, slots);
    struct sent sent = {.evenly = traits.route == DPT_GRADIENT_LANES ? gradient : slots * gradient};
    if (traits.state == DPT_STATE_REPLICATED) /* the sum of all, to every rank */
        sent.evenly += traits.buckets.each_slot ? slots * gradient : gradient;
    else if (traits.weights == DPT_WEIGHTS_UNITS)
        sent.evenly += GATHERS * slots * weights;
    else
        sent.evenly += weights;
    if (traits.shadow)
        sent.between = world->elements * F32 / n;
    return sent;
}

double dpt_traffic_sent(const struct dpt_config *config, const struct dpt_traffic_world *world)
{
    const struct sent sent = sent_by_rank(config, world);
    return sent.evenly + sent.inside + sent.between;
}

double dpt_traffic_crossing(const struct dpt_config *config, const struct dpt_traffic_world *world)
{
    const struct sent sent = sent_by_rank(config, world);
    const int h = machine_ranks(world);
    if (world->machines == 1)
        return 0;
    return h * (sent.evenly * (world->ranks - h) / (world->ranks - 1) + sent.between);
}
