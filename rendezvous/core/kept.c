/* The list of members, and its index. */
#include "rendezvous/core/kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPARTED_FIRST = 64 }; /* first room of the ring; doubled until DEPARTED_MAX */
_Static_assert((DEPARTED_MAX & (DEPARTED_MAX - 1)) == 0, "the room is doubled to the limit");

/* ---- search ---- */

const struct kept_node *dpt_rdzv_find_kept(const struct run *run, const char *id)
{
    return dpt_rdzv_index_find(&run->kept.ids, dpt_rdzv_id_hash(id));
}

const struct kept_node *dpt_rdzv_kept_as(const struct run *run, const Dpt__AgentState *message)
{
    uint8_t secret[DPT_PROTO_SECRET_BYTES];
    const struct kept_node *node = dpt_rdzv_find_kept(run, message->stamp->node);
    dpt_rdzv_secret_of(message, secret);
    return node != NULL && node->incarnation == message->stamp->incarnation &&
                   memcmp(node->secret, secret, sizeof secret) == 0
               ? node
               : NULL;
}

bool dpt_rdzv_kept_may_hold_newest(const struct run *run, const struct kept_node *node)
{
    return node->placed_generation != 0 && node->placed_generation >= run->kept.ran;
}

/* ---- the list ---- */

struct kept_node *dpt_rdzv_kept_add(struct kept *kept, const char *id)
{
    struct kept_node *node = calloc(1, sizeof *node);
    if (node == NULL)
        return NULL;
    node->id_hash = dpt_rdzv_id_hash(id);
    if (!dpt_rdzv_index_add(&kept->ids, node->id_hash, node)) {
        free(node);
        return NULL;
    }
    (void)snprintf(node->id, sizeof node->id, "%s", id);
    node->before = kept->last;
    *(kept->last != NULL ? &kept->last->after : &kept->first) = node;
    kept->last = node;
    kept->n_nodes++;
    return node;
}

void dpt_rdzv_kept_drop(struct kept *kept, struct kept_node *node)
{
    dpt_rdzv_index_remove(&kept->ids, node->id_hash, node);
    *(node->before != NULL ? &node->before->after : &kept->first) = node->after;
    *(node->after != NULL ? &node->after->before : &kept->last) = node->before;
    kept->n_nodes--;
    if (kept->missing == node)
        kept->missing = NULL;
    free(node);
}

void dpt_rdzv_kept_fini(struct kept *kept)
{
    while (kept->first != NULL)
        dpt_rdzv_kept_drop(kept, kept->first);
    dpt_rdzv_index_fini(&kept->ids);
}

/* ---- removed nodes ---- */

static size_t count_departed(const struct membership *membership)
{
    return membership->n_departed < membership->n_departed_room ? membership->n_departed
                                                                : membership->n_departed_room;
}

struct departed *dpt_rdzv_departed_as(struct run *run, uint64_t id_hash, uint64_t incarnation,
                                      const uint8_t secret[DPT_PROTO_SECRET_BYTES])
{
    struct membership *membership = &run->membership;
    const size_t n = count_departed(membership);
    struct departed *newest = NULL;
    for (size_t i = 0; i < n; i++) {
        struct departed *each = &membership->departed[i];
        if (each->id_hash == id_hash && each->incarnation >= incarnation &&
            memcmp(each->secret, secret, sizeof each->secret) == 0 &&
            (newest == NULL || each->incarnation > newest->incarnation))
            newest = each;
    }
    return newest;
}

const struct departed *dpt_rdzv_departed_newest(const struct membership *membership)
{
    return membership->n_departed == 0
               ? NULL
               : &membership->departed[(membership->n_departed - 1) % membership->n_departed_room];
}

static bool make_room(struct membership *membership)
{
    const size_t before = membership->n_departed_room;
    if (membership->n_departed < before || before == DEPARTED_MAX)
        return true;
    const size_t room = before == 0 ? DEPARTED_FIRST : 2 * before;
    struct departed *ring = realloc(membership->departed, room * sizeof ring[0]);
    if (ring == NULL)
        return false;
    memset(&ring[before], 0, (room - before) * sizeof ring[0]);
    membership->departed = ring;
    membership->n_departed_room = room;
    return true;
}

bool dpt_rdzv_departed_add(struct membership *membership, const struct departed *each)
{
    if (!make_room(membership))
        return false;
    struct departed *at =
        &membership->departed[membership->n_departed++ % membership->n_departed_room];
    dpt_rdzv_departed_drop(membership, at);
    *at = *each;
    membership->n_awaited += each->awaited;
    return true;
}

void dpt_rdzv_departed_drop(struct membership *membership, struct departed *each)
{
    membership->n_awaited -= each->awaited;
    *each = (struct departed){0};
}

void dpt_rdzv_departed_await_none(struct membership *membership)
{
    const size_t n = membership->n_awaited == 0 ? 0 : count_departed(membership);
    for (size_t i = 0; i < n; i++)
        membership->departed[i].awaited = false;
    membership->n_awaited = 0;
}
