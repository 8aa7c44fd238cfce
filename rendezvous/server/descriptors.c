/* The limit of descriptors, and the lines about it. */
#include "rendezvous/server/descriptors.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>

void dpt_descriptors_raise(uint32_t nodes_max)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    const int32_t most = dpt_guests_max(limit.rlim_max);
    if (limit.rlim_max < DPT_PEERS_FDS_MAX && (uint32_t)most < nodes_max)
        dpt_log(DPT_LOG_WARN,
                "the system lets this server have %" PRIu64
                " descriptors (`ulimit -Hn`): there is room for %" PRId32
                " nodes of all runs, while --max-nodes is %" PRIu32
                "; raise that limit if there are more",
                (uint64_t)limit.rlim_max, most, nodes_max);
}

void dpt_descriptors_init(struct dpt_descriptors *descriptors)
{
    struct rlimit limit;
    const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    *descriptors = (struct dpt_descriptors){.n = known ? limit.rlim_cur : DPT_PEERS_FDS_MAX};
}

void dpt_descriptors_accepted(struct dpt_descriptors *descriptors, int fd, int64_t now_ms)
{
    if ((uint64_t)fd + 1 < descriptors->n ||
        dpt_log_bound_each(&descriptors->full, now_ms, DPT_DESCRIPTORS_PAUSE_MS) == 0)
        return;
    dpt_log(DPT_LOG_WARN,
            "all %" PRIu64
            " descriptors are in use: further connections wait until one is closed. If these are "
            "nodes, raise the limit (`ulimit -Hn`) and start dpt-rdzv again",
            descriptors->n);
}

void dpt_descriptors_closed(struct dpt_descriptors *descriptors,
                            const struct dpt_guest_owner *owner, bool has_keys, int64_t now_ms)
{
    const uint64_t n = dpt_log_bound_each(&descriptors->closed, now_ms, DPT_DESCRIPTORS_PAUSE_MS);
    char hex[DPT_KEY_HEX_BYTES], address[INET6_ADDRSTRLEN] = "", who[INET6_ADDRSTRLEN + 8];
    if (n == 0)
        return;
    dpt_key_hex(&owner->key, hex);
    (void)inet_ntop(AF_INET6, owner->key.bytes, address, sizeof address);
    (void)snprintf(who, sizeof who, has_keys ? "key %.8s" : "address %s", has_keys ? hex : address);
    dpt_log(DPT_LOG_WARN,
            "%" PRIu64
            " connection(s) closed over which no node of a plan speaks; the last was one "
            "of %" PRId32 " of the machine with %s, more than it may have or than there is room "
            "for beside others",
            n, owner->n_guests, who);
}
