/* The bytes of a step: see traffic.h. */
#include "worker/planner/traffic.h"

#include "base/strategy_traits.h"
#include "worker/plan/reduce_transfers.h"
#include "worker/planner/planned_world.h"

enum {
    F32 = 4,
    F16 = 2,
    GATHERS = 2, /* of a unit in a wave: forward and backward */
    BLOCK = 1    /* pieces are equal up to one element */
};

struct scene {
    const struct dpt_world *world;
    struct dpt_strategy_traits traits;
    int machines, most, fewest; /* most, fewest: ranks of a machine */
    int wire_bytes;             /* of an element of a gradient between machines */
    int64_t elements;
};

static void traffic_add(struct dpt_traffic *sum, double times, struct dpt_traffic part)
{
    sum->sent += times * part.sent;
    sum->crossing += times * part.crossing;
}

/* A rank sends its part of a vector to every other rank, or each rank's part to this rank. */
static struct dpt_traffic traffic_to_all(const struct scene *s, int near_bytes, int far_bytes)
{
    const double part = (double)s->elements / s->world->size;
    const int near = s->most - 1, far = s->world->size - s->most;
    return (struct dpt_traffic){part * (near * near_bytes + far * far_bytes),
                                s->most * part * far * far_bytes};
}

/* The same among the ranks of a machine. */
static struct dpt_traffic traffic_inside(const struct scene *s, int bytes)
{
    return (struct dpt_traffic){(double)s->elements * bytes * (s->most - 1) / s->most, 0};
}

/* A rank sends its part of the gradient to ranks of `copies` other machines. */
static struct dpt_traffic traffic_to_copies(const struct scene *s, int copies)
{
    const double bytes = copies * (double)s->elements * s->wire_bytes / s->world->size;
    return (struct dpt_traffic){bytes, s->most * bytes};
}

/* Sums of lanes, once a step. `gather`: the sum of all lanes goes to every rank. */
static struct dpt_traffic traffic_of_lanes(const struct scene *s, bool gather)
{
    const struct dpt_world *world = s->world;
    struct dpt_traffic ret = {.sent = 0};
    int64_t crossing = 0;
    for (int p = 0; p < world->size; p++) {
        const int rank = world->rank_of_position[p];
        const int64_t sent = dpt_reduce_bytes_sent(world, s->elements, BLOCK, rank, gather,
                                                   s->wire_bytes),
                      near = s->machines == 1 ? sent
                                              : dpt_reduce_bytes_sent(world, s->elements, BLOCK,
                                                                      rank, gather, 0);
        crossing = (dpt_world_host(world, p).first == p ? 0 : crossing) + sent - near;
        ret.sent = (double)sent > ret.sent ? (double)sent : ret.sent;
        ret.crossing = (double)crossing > ret.crossing ? (double)crossing : ret.crossing;
    }
    return ret;
}

/* hybrid_shard `local`: each machine sends the sums of its lanes to the others, and gets the sums
 * of all machines back. The machine with the fewest ranks divides its sums among them. */
static struct dpt_traffic traffic_of_node_sums(const struct scene *s)
{
    const struct dpt_world *world = s->world;
    int most = 0;
    for (int p = 0; p < world->size; p = dpt_world_node(world, p).end) {
        struct dpt_range cover[DPT_COVER_MAX];
        const int sums =
            dpt_tree_cover(world->lanes, dpt_world_lanes(world, dpt_world_node(world, p)), cover);
        most = sums > most ? sums : most;
    }
    const double bytes =
        (most + 1) * (double)s->elements * s->wire_bytes * (s->machines - 1) / s->machines;
    return (struct dpt_traffic){bytes / s->fewest, bytes};
}

/* hybrid_shard: each machine has a whole state. */
static struct dpt_traffic traffic_per_machine(const struct scene *s, int waves, int weight_bytes)
{
    struct dpt_traffic ret = {.sent = 0};
    traffic_add(&ret, GATHERS * waves, traffic_inside(s, weight_bytes));
    if (s->traits.by_node) {
        traffic_add(&ret, waves, traffic_inside(s, F32));
        traffic_add(&ret, 1, traffic_of_node_sums(s));
    } else {
        traffic_add(&ret, waves, traffic_to_all(s, F32, s->wire_bytes));
        traffic_add(&ret, 1, traffic_to_copies(s, s->machines - 1));
    }
    return ret;
}

/* dp: weights go out of position 0, and every slot's gradient of the other ranks comes in. dp has
 * one machine. */
static struct dpt_traffic traffic_of_first(const struct scene *s, int waves, int weight_bytes)
{
    const double each = (double)s->elements * (s->world->size - 1), out = each * weight_bytes,
                 in = each * waves * F32;
    return (struct dpt_traffic){.sent = in > out ? in : out};
}

struct dpt_traffic dpt_traffic_of(const struct dpt_config *config, const struct dpt_world *world,
                                  int64_t elements, int weight_bytes)
{
    const struct dpt_range first = dpt_world_host(world, 0),
                           last = dpt_world_host(world, world->size - 1);
    const struct dpt_strategy_traits traits = dpt_strategy_traits(config);
    const struct scene s = {.world = world,
                            .traits = traits,
                            .machines = world->host_of_position[world->size - 1] + 1,
                            .most = first.end - first.first,
                            .fewest = last.end - last.first,
                            .wire_bytes = traits.wire == DPT_PRECISION_FP32 ? F32 : F16,
                            .elements = elements};
    const bool replicated = traits.state == DPT_STATE_REPLICATED;
    const int waves = dpt_planned_world_waves(config, world);
    struct dpt_traffic ret = {.sent = 0};
    if (traits.state == DPT_STATE_PER_NODE)
        return traffic_per_machine(&s, waves, weight_bytes);
    if (traits.state == DPT_STATE_FIRST)
        return traffic_of_first(&s, waves, weight_bytes);
    if (traits.route == DPT_GRADIENT_LANES)
        traffic_add(&ret, 1, traffic_of_lanes(&s, replicated));
    else
        traffic_add(&ret, waves, traffic_to_all(&s, F32, s.wire_bytes));
    if (replicated && traits.route != DPT_GRADIENT_LANES) /* the sum of all, to every rank */
        traffic_add(&ret, traits.buckets.each_slot ? waves : 1,
                    traffic_to_all(&s, F32, s.wire_bytes));
    if (!replicated)
        traffic_add(&ret, traits.weights == DPT_WEIGHTS_UNITS ? GATHERS * waves : 1,
                    traffic_to_all(&s, weight_bytes, weight_bytes));
    if (traits.shadow && s.machines > 1)
        traffic_add(&ret, 1, traffic_to_copies(&s, 1));
    return ret;
}
