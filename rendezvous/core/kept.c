/* The list of members, and its index. */
#include "rendezvous/core/kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

struct departed *dpt_rdzv_departed_as(struct run *run, uint64_t id_hash, uint64_t incarnation,
                                      const uint8_t secret[DPT_PROTO_SECRET_BYTES])
{
    struct membership *membership = &run->membership;
    const size_t n = membership->n_departed < DEPARTED_MAX ? membership->n_departed : DEPARTED_MAX;
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
    free(node);
}

void dpt_rdzv_kept_fini(struct kept *kept)
{
    while (kept->first != NULL)
        dpt_rdzv_kept_drop(kept, kept->first);
    dpt_rdzv_index_fini(&kept->ids);
}
