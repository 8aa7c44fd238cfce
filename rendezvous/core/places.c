/* The places of a plan whose ranks are assigned: racks, hosts, nodes, positions, writers. */
#include "rendezvous/core/advance.h"

#include <stdlib.h>
#include <string.h>

/* Numbers racks, hosts and nodes in the order of their lowest rank. Nodes of two racks are on two
 * hosts, so that a host is in one rack. False: no memory. */
static bool number_racks_hosts_nodes(struct plan *plan)
{
    struct index nodes = {0}, hosts = {0}, racks = {0}; /* the first place of each */
    uint32_t n_nodes = 0, n_racks = 0;
    bool has_memory = true;
    plan->n_hosts = 0;
    for (uint32_t i = 0; i < plan->world_size && has_memory; i++) {
        struct place *place = &plan->places[i];
        const struct place *same = dpt_rdzv_index_find(&nodes, place->node->joined);
        if (same != NULL) {
            place->rack = same->rack;
            place->host = same->host;
            place->node_index = same->node_index;
            continue;
        }
        const uint64_t rack = dpt_rdzv_id_hash(place->node->location.rack);
        same = dpt_rdzv_index_find(&racks, rack);
        place->rack = same != NULL ? same->rack : n_racks++;
        has_memory = same != NULL || dpt_rdzv_index_add(&racks, rack, place);
        const uint64_t host = dpt_rdzv_id_hash(place->node->location.host) + place->rack;
        same = dpt_rdzv_index_find(&hosts, host);
        place->host = same != NULL ? same->host : plan->n_hosts++;
        place->node_index = n_nodes++;
        has_memory = has_memory && dpt_rdzv_index_add(&nodes, place->node->joined, place) &&
                     (same != NULL || dpt_rdzv_index_add(&hosts, host, place));
    }
    dpt_rdzv_index_fini(&racks);
    dpt_rdzv_index_fini(&nodes);
    dpt_rdzv_index_fini(&hosts);
    return has_memory;
}

/* The order of positions: rack by rack, in a rack host by host, on a host node by node, on a node
 * by rank. Handover ranks come last. */
static int compare_places(const void *a, const void *b)
{
    const struct place *x = *(struct place *const *)a, *y = *(struct place *const *)b;
    const int by_rank = x < y ? -1 : 1;
    if (x->only_hands_over || y->only_hands_over)
        return x->only_hands_over == y->only_hands_over ? by_rank : y->only_hands_over ? -1 : 1;
    if (x->rack != y->rack)
        return x->rack < y->rack ? -1 : 1;
    if (x->host != y->host)
        return x->host < y->host ? -1 : 1;
    if (x->node_index != y->node_index)
        return x->node_index < y->node_index ? -1 : 1;
    return by_rank;
}

/* False: no memory. */
static bool assign_positions(struct dpt_rdzv *core, struct plan *plan)
{
    struct place **order = dpt_outbox_alloc(&core->out, plan->world_size * sizeof order[0]);
    if (order == NULL || !number_racks_hosts_nodes(plan))
        return false;
    for (uint32_t i = 0; i < plan->world_size; i++)
        order[i] = &plan->places[i];
    qsort(order, plan->world_size, sizeof order[0], compare_places);
    for (uint32_t i = 0; i < plan->world_size; i++)
        order[i]->position = i;
    return true;
}

/* How much a rank may lack of the lines that the last log writer could not append before it died:
 * a process that has trained has kept them (0); one that got the state in a generation that never
 * ran has none (1), nor has one that gets the state now (2). */
static int lacks_lines(const struct place *place)
{
    return place->takes_state ? 2 : dpt_rdzv_rank_at(place)->ran_generation == 0;
}

/* In each distinct log folder one rank writes the logs: the first of those that lack least. False:
 * no memory. */
static bool assign_log_writers(struct plan *plan)
{
    const uint32_t world = plan->world_size - plan->handover_ranks;
    struct index logs = {0}; /* the writer of each folder */
    bool has_memory = true;
    for (int lack = 0; lack <= 2; lack++)
        for (uint32_t i = 0; i < world && has_memory; i++) {
            struct place *place = &plan->places[i];
            const uint64_t log = dpt_rdzv_id_hash(place->node->log_dir_id);
            if (place->node->log_dir_id[0] == '\0' || lacks_lines(place) != lack ||
                dpt_rdzv_index_find(&logs, log))
                continue;
            place->writes_log = true;
            has_memory = dpt_rdzv_index_add(&logs, log, place);
        }
    dpt_rdzv_index_fini(&logs);
    return has_memory;
}

/* Ranks that see the checkpoint folder of rank 0 write checkpoints. False: no memory. */
static bool assign_writers(struct plan *plan)
{
    const char *folder = plan->places[0].node->checkpoint_dir_id;
    for (uint32_t i = 0; folder[0] != '\0' && i < plan->world_size - plan->handover_ranks; i++)
        if (strcmp(plan->places[i].node->checkpoint_dir_id, folder) == 0)
            plan->places[i].checkpoint_slot = (int32_t)plan->checkpoint_writers++;
    return assign_log_writers(plan);
}

bool dpt_rdzv_arrange_places(struct dpt_rdzv *core, struct plan *plan)
{
    const bool has_memory = assign_positions(core, plan) && assign_writers(plan);
    core->out.no_memory = core->out.no_memory || !has_memory;
    return has_memory;
}
