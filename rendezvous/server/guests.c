/* Members and guests by key: each key has a list of its guests, by the time of their last message.
 */
#include "rendezvous/server/guests.h"

#include <string.h>

static bool is_watched(int fd)
{
    return fd >= 0 && fd < DPT_PEERS_FDS_MAX;
}

int32_t dpt_guests_max(uint64_t n_descriptors)
{
    const int32_t n =
        n_descriptors < DPT_PEERS_FDS_MAX ? (int32_t)n_descriptors : DPT_PEERS_FDS_MAX;
    const int32_t most = n - n / 8 - DPT_GUESTS_SPARE;
    return most > 1 ? most : 1;
}

void dpt_guests_init(struct dpt_guests *guests, uint64_t n_descriptors, uint32_t nodes_max)
{
    guests->n_max = dpt_guests_max(n_descriptors);
    guests->of_key_max = nodes_max > DPT_GUESTS_OF_KEY ? (int32_t)nodes_max : DPT_GUESTS_OF_KEY;
    dpt_guests_forget(guests);
}

/* ---- owners ---- */

static int32_t *bucket_of(struct dpt_guests *guests, const struct dpt_key *key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof key->bytes; i++)
        hash = (hash ^ key->bytes[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return &guests->buckets[(hash ^ hash >> 32) & (DPT_GUESTS_BUCKETS - 1)];
}

/* There are as many owners as descriptors, so there is a free one. */
static int32_t find_owner(struct dpt_guests *guests, const struct dpt_key *key)
{
    int32_t *bucket = bucket_of(guests, key);
    for (int32_t at = *bucket; at >= 0; at = guests->owners[at].next)
        if (dpt_key_equal(&guests->owners[at].key, key))
            return at;
    const int32_t made = guests->free >= 0 ? guests->free : guests->n_owners++;
    if (made == guests->free)
        guests->free = guests->owners[made].next;
    guests->owners[made] =
        (struct dpt_guest_owner){.key = *key, .first = -1, .last = -1, .next = *bucket};
    *bucket = made;
    return made;
}

static void free_owner(struct dpt_guests *guests, int32_t owner)
{
    int32_t *at = bucket_of(guests, &guests->owners[owner].key);
    while (*at != owner)
        at = &guests->owners[*at].next;
    *at = guests->owners[owner].next;
    guests->owners[owner].next = guests->free;
    guests->free = owner;
}

/* ---- guests of an owner ---- */

static void add_guest(struct dpt_guests *guests, int fd)
{
    struct dpt_guest *each = &guests->fds[fd];
    struct dpt_guest_owner *owner = &guests->owners[each->owner];
    each->is_member = false;
    each->before = owner->last;
    each->after = -1;
    if (owner->last >= 0)
        guests->fds[owner->last].after = fd;
    else
        owner->first = fd;
    owner->last = fd;
    owner->n_guests++;
}

static void remove_guest(struct dpt_guests *guests, int fd)
{
    const struct dpt_guest *each = &guests->fds[fd];
    struct dpt_guest_owner *owner = &guests->owners[each->owner];
    if (each->before >= 0)
        guests->fds[each->before].after = each->after;
    else
        owner->first = each->after;
    if (each->after >= 0)
        guests->fds[each->after].before = each->before;
    else
        owner->last = each->before;
    owner->n_guests--;
}

void dpt_guests_gone(struct dpt_guests *guests, int fd)
{
    if (!is_watched(fd) || !guests->fds[fd].heard)
        return;
    struct dpt_guest *each = &guests->fds[fd];
    if (!each->is_member)
        remove_guest(guests, fd);
    if (--guests->owners[each->owner].n_conns == 0)
        free_owner(guests, each->owner);
    each->heard = false;
    guests->n_conns--;
    while (guests->fd_end > 0 && !guests->fds[guests->fd_end - 1].heard)
        guests->fd_end--;
}

void dpt_guests_forget(struct dpt_guests *guests)
{
    memset(guests->fds, 0, (size_t)guests->fd_end * sizeof guests->fds[0]);
    memset(guests->buckets, 0xff, sizeof guests->buckets); /* -1 */
    guests->n_owners = guests->n_conns = guests->fd_end = 0;
    guests->free = -1;
}

void dpt_guests_heard(struct dpt_guests *guests, int fd, const struct dpt_key *key, bool is_member)
{
    if (!is_watched(fd))
        return;
    struct dpt_guest *each = &guests->fds[fd];
    if (each->heard && !dpt_key_equal(&guests->owners[each->owner].key, key))
        dpt_guests_gone(guests, fd); /* an earlier connection, whose end is not reported yet */
    if (!each->heard) {
        *each = (struct dpt_guest){.heard = true, .owner = find_owner(guests, key)};
        guests->owners[each->owner].n_conns++;
        guests->n_conns++;
        if (fd >= guests->fd_end)
            guests->fd_end = fd + 1;
    } else if (!each->is_member) {
        remove_guest(guests, fd);
    }
    each->is_member = is_member;
    if (!is_member)
        add_guest(guests, fd);
}

/* ---- who is to be closed ---- */

static void review(struct dpt_guests *guests, bool (*is_member)(void *ctx, int fd), void *ctx)
{
    for (int fd = 0; fd < guests->fd_end; fd++)
        if (guests->fds[fd].heard && guests->fds[fd].is_member && !is_member(ctx, fd))
            add_guest(guests, fd);
}

int dpt_guests_excess(struct dpt_guests *guests, int fd, int64_t now_ms,
                      bool (*is_member)(void *ctx, int fd), void *ctx)
{
    if (!is_watched(fd) || !guests->fds[fd].heard)
        return -1;
    const struct dpt_guest_owner *most = &guests->owners[guests->fds[fd].owner];
    if (most->n_guests > guests->of_key_max)
        return most->first;
    if (guests->n_conns <= guests->n_max)
        return -1;
    if (now_ms - guests->reviewed_ms >= DPT_GUESTS_REVIEW_MS) {
        guests->reviewed_ms = now_ms;
        review(guests, is_member, ctx);
    }
    for (int32_t i = 0; i < guests->n_owners; i++)
        if (guests->owners[i].n_conns > 0 && guests->owners[i].n_guests > most->n_guests)
            most = &guests->owners[i];
    return most->n_guests > 1 ? most->first : -1;
}

const struct dpt_guest_owner *dpt_guests_owner(const struct dpt_guests *guests, int fd)
{
    return &guests->owners[guests->fds[fd].owner];
}
