/* The plan of one node as a message. The places as nodes of other hosts see them are encoded once
 * for each plan; messages contain copies of these bytes. */
#include "rendezvous/core/reply.h"

#include "rendezvous/proto/links.h"

#include <stdlib.h>

enum {
    RANKS_FIELD = 6, /* Plan.ranks in dpt.proto */
    /* An entry: field number and type in one byte, a length of at most two bytes, a PlanRank, whose
     * addresses are short. */
    ENTRY_TAG = RANKS_FIELD << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
    ENTRY_BYTES_MAX = 3 + 2 * DPT_PROTO_ADDR_BYTES + 96,
    LENGTH_BITS = 7
};

/* ---- one place ---- */

static Dpt__PlanRank plan_rank_of(const struct plan *plan, uint32_t rank)
{
    const struct place *place = &plan->places[rank];
    Dpt__PlanRank ret = DPT__PLAN_RANK__INIT;
    ret.rank = rank;
    ret.position = place->position;
    ret.host = place->host;
    ret.tcp_addr = (char *)place->tcp_addr;
    ret.local_rank = -1;
    ret.takes_state = place->takes_state;
    ret.node = place->node_index;
    ret.rack = place->rack;
    ret.writes_log = place->writes_log;
    ret.checkpoint_slot = place->checkpoint_slot;
    return ret;
}

/* Encodes an entry of the field `ranks`. Returns its bytes. */
static size_t encode_entry(const Dpt__PlanRank *rank, uint8_t ret[ENTRY_BYTES_MAX])
{
    const size_t bytes = dpt__plan_rank__get_packed_size(rank);
    size_t at = 0;
    DPT_ASSERT(bytes <= ENTRY_BYTES_MAX - 3 && bytes >> 2 * LENGTH_BITS == 0);
    ret[at++] = ENTRY_TAG;
    if (bytes >> LENGTH_BITS != 0)
        ret[at++] = (uint8_t)(bytes | 1 << LENGTH_BITS);
    ret[at++] = (uint8_t)(bytes >> LENGTH_BITS != 0 ? bytes >> LENGTH_BITS : bytes);
    return at + dpt__plan_rank__pack(rank, ret + at);
}

/* ---- all places ---- */

/* Encodes the places once. False: no memory. */
static bool encode_places(const struct run *run, struct plan *plan)
{
    const size_t n = plan->world_size;
    size_t used = 0, bytes = 64 * n + ENTRY_BYTES_MAX;
    plan->wire = malloc(bytes);
    plan->wire_at = malloc((n + 1) * sizeof plan->wire_at[0]);
    plan->rank_at = malloc(n * sizeof plan->rank_at[0]);
    bool has_memory = plan->wire != NULL && plan->wire_at != NULL && plan->rank_at != NULL;
    for (uint32_t i = 0; i < n && has_memory; i++) {
        const Dpt__PlanRank rank = plan_rank_of(plan, i);
        plan->rank_at[plan->places[i].position] = i;
        plan->wire_at[i] = used;
        used += encode_entry(&rank, plan->wire + used);
        if (bytes - used >= ENTRY_BYTES_MAX)
            continue;
        uint8_t *bigger = realloc(plan->wire, 2 * bytes);
        has_memory = bigger != NULL;
        plan->wire = bigger != NULL ? bigger : plan->wire;
        bytes *= 2;
    }
    if (has_memory) {
        plan->wire_at[n] = used;
        return true;
    }
    free(plan->wire);
    plan->wire = NULL;
    run->core->out.no_memory = true;
    return false;
}

/* ---- one node ---- */

/* The ranks in the plan of one node. */
struct listing {
    const struct plan *plan;
    const struct node *node;
    uint32_t host;
    uint32_t *ranks; /* (n) rising; NULL: all ranks */
    uint32_t n;
    ProtobufCMessageUnknownField *fields; /* (n_fields) encoded entries */
    size_t n_fields;
    uint32_t next; /* a far entry of this rank continues the last field; 0: none does */
};

static int compare_ranks(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Lists the ranks of the node and those to which they have links. */
static void list_linked_ranks(struct dpt_rdzv *core, struct listing *listing)
{
    const struct plan *plan = listing->plan;
    const struct node *node = listing->node;
    uint32_t links[DPT_LINKS_MAX], n = 0;
    uint32_t *ranks =
        dpt_outbox_alloc(&core->out, node->n_ranks * (DPT_LINKS_MAX + 1) * sizeof ranks[0]);
    if (ranks == NULL)
        return;
    for (uint32_t i = 0; i < node->n_ranks; i++) {
        const int32_t own = node->ranks[i].place;
        if (own < 0)
            continue;
        ranks[n++] = (uint32_t)own;
        const int n_links = dpt_links_of(plan->world_size, plan->places[own].position, links);
        for (int k = 0; k < n_links; k++)
            ranks[n++] = plan->rank_at[links[k]];
    }
    qsort(ranks, n, sizeof ranks[0], compare_ranks);
    for (uint32_t i = 0; i < n; i++)
        if (listing->n == 0 || ranks[listing->n - 1] != ranks[i])
            ranks[listing->n++] = ranks[i];
    listing->ranks = ranks;
}

/* Adds bytes of whole entries. protobuf-c writes the tag of a field itself, so the first byte is
 * left out. */
static void add_field(struct listing *listing, uint8_t *entries, size_t bytes)
{
    listing->fields[listing->n_fields++] =
        (ProtobufCMessageUnknownField){.tag = RANKS_FIELD,
                                       .wire_type = PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
                                       .len = bytes - 1,
                                       .data = entries + 1};
}

/* Adds a rank of another host. Ranks one after the other are one field. */
static void add_far_rank(struct listing *listing, uint32_t rank)
{
    const struct plan *plan = listing->plan;
    const size_t at = plan->wire_at[rank], bytes = plan->wire_at[rank + 1] - at;
    if (listing->next == rank && rank > 0)
        listing->fields[listing->n_fields - 1].len += bytes;
    else
        add_field(listing, plan->wire + at, bytes);
    listing->next = rank + 1;
}

/* Adds a rank of this host: it has a shared-memory address. */
static void add_near_rank(struct dpt_rdzv *core, struct listing *listing, uint32_t rank)
{
    const struct place *place = &listing->plan->places[rank];
    Dpt__PlanRank message = plan_rank_of(listing->plan, rank);
    uint8_t *entry = dpt_outbox_alloc(&core->out, ENTRY_BYTES_MAX);
    if (entry == NULL)
        return;
    message.shm_addr = (char *)place->shm_addr;
    if (place->node == listing->node) {
        message.local_rank = (int32_t)place->local_rank;
        message.spawn = place->spawn;
    }
    add_field(listing, entry, encode_entry(&message, entry));
    listing->next = 0;
}

/* Lists the ranks, and makes room for their fields: one for each near rank, and one between each
 * two of them. */
static void list_ranks(struct dpt_rdzv *core, struct listing *listing)
{
    const struct plan *plan = listing->plan;
    size_t fields_max = 1;
    for (uint32_t i = 0; i < listing->node->n_ranks; i++)
        if (listing->node->ranks[i].place >= 0)
            listing->host = plan->places[listing->node->ranks[i].place].host;
    if (dpt_links_are_mesh(plan->world_size)) {
        listing->n = plan->world_size;
        for (uint32_t i = 0; i < plan->world_size; i++)
            fields_max += plan->places[i].host == listing->host ? 2 : 0;
    } else {
        list_linked_ranks(core, listing);
        fields_max += listing->n;
    }
    listing->fields = dpt_outbox_alloc(&core->out, fields_max * sizeof listing->fields[0]);
}

static bool add_ranks(struct dpt_rdzv *core, struct listing *listing)
{
    const struct plan *plan = listing->plan;
    list_ranks(core, listing);
    for (uint32_t i = 0; i < listing->n && !core->out.no_memory; i++) {
        const uint32_t rank = listing->ranks != NULL ? listing->ranks[i] : i;
        if (plan->places[rank].host == listing->host)
            add_near_rank(core, listing, rank);
        else
            add_far_rank(listing, rank);
    }
    return !core->out.no_memory;
}

/* True: a rank of the node has the gradient of the step from which the generation resumes, and has
 * not applied it. An outcome may have 64 KiB, and most nodes need none. */
static bool needs_outcome(const struct plan *plan, const struct node *node)
{
    for (uint32_t i = 0; i < node->n_ranks; i++) {
        const struct rank *rank = &node->ranks[i];
        if (rank->place >= 0 && !plan->places[rank->place].takes_state &&
            rank->step_applied == plan->resume_step - 1)
            return true;
    }
    return false;
}

Dpt__Plan *dpt_rdzv_plan_for(struct run *run, const struct node *node)
{
    struct plan *plan = &run->plan;
    struct listing listing = {.plan = plan, .node = node};
    Dpt__Plan *to = dpt_outbox_alloc(&run->core->out, sizeof *to);
    if (to == NULL || (plan->wire == NULL && !encode_places(run, plan)) ||
        !add_ranks(run->core, &listing))
        return NULL;
    dpt__plan__init(to);
    to->base.unknown_fields = listing.fields;
    to->base.n_unknown_fields = (unsigned)listing.n_fields;
    to->generation = plan->generation;
    to->nonce = (ProtobufCBinaryData){sizeof plan->nonce, plan->nonce};
    to->world_size = plan->world_size;
    to->n_nodes = plan->n_nodes;
    to->n_hosts = plan->n_hosts;
    to->digest = plan->digest;
    to->resume_step = plan->resume_step;
    to->load_checkpoint = plan->load_checkpoint;
    if (needs_outcome(plan, node))
        to->outcome = (ProtobufCBinaryData){plan->outcome_bytes, plan->outcome};
    to->checkpoint_writers = plan->checkpoint_writers;
    to->cause = run->formation.cause.text;
    to->cause_kind = (char *)dpt_rdzv_cause_name(run->formation.cause.kind);
    to->detect_ms = (uint64_t)run->formation.cause.detect_ms;
    to->steps_done_before = plan->steps_done_before;
    to->state_generation = plan->state_generation;
    to->handover_ranks = plan->handover_ranks;
    to->from_seed = plan->from_seed;
    to->final_save = plan->final_save;
    return to;
}
