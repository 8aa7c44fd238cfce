/* A client process of dpt-bench rdzv (bench_rdzv_swarm.h). */
#include "worker/bench/bench_rdzv_swarm.h"

#include "base/clock.h"
#include "worker/bench/bench_rdzv_node.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    EVENTS_MAX = 256,
    CONNECTS_MAX = 16, /* nodes that connect in one turn: those before them must be heard */
    IDLE_MS = 1000     /* longest wait while there is no node */
};

/* In place of a node: the descriptor of commands. */
static const uint32_t commands_place = UINT32_MAX;

struct slot {
    struct rdzv_node *node; /* NULL: it is not connected yet, or lost */
    uint64_t incarnation;
    int fds[DPT_CLIENT_FDS]; /* descriptors that are watched; -1: none */
};

struct swarm {
    struct rdzv_host host;
    struct rdzv_range range;
    struct slot *slots; /* (range.n) */
    int64_t *due_ms;    /* (range.n) when the node wants its tick; INT64_MAX: it is not there */
    int epoll, command_fd;
    int to_connect; /* nodes that are still to be connected, the last ones of the range */
    bool ended;
};

/* ---- descriptors ---- */

static enum dpt_status add_watch(struct swarm *swarm, int fd, uint32_t place, struct dpt_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = place};
    if (epoll_ctl(swarm->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
        return dpt_fail_errno(err, errno, "watch a connection");
    return DPT_OK;
}

static void remove_watches(const struct swarm *swarm, struct slot *slot)
{
    for (int i = 0; i < DPT_CLIENT_FDS; i++) {
        if (slot->fds[i] >= 0) /* fails if the client has closed the descriptor */
            (void)epoll_ctl(swarm->epoll, EPOLL_CTL_DEL, slot->fds[i], NULL);
        slot->fds[i] = -1;
    }
}

/* After each call of the node: its due time, and the descriptors of a client that has replaced its
 * socket. */
static enum dpt_status follow_node(struct swarm *swarm, uint32_t place, struct dpt_err *err)
{
    struct slot *slot = &swarm->slots[place];
    int fds[DPT_CLIENT_FDS];
    swarm->due_ms[place] = rdzv_node_due_ms(slot->node);
    dpt_client_fds(rdzv_node_connection(slot->node), fds);
    if (memcmp(fds, slot->fds, sizeof fds) == 0)
        return DPT_OK;
    remove_watches(swarm, slot);
    for (int i = 0; i < DPT_CLIENT_FDS; i++) {
        if (fds[i] < 0) /* no socket could be opened; the client tries again */
            continue;
        DPT_TRY(add_watch(swarm, fds[i], place, err));
        slot->fds[i] = fds[i];
    }
    return DPT_OK;
}

/* ---- commands ---- */

static enum dpt_status start_slot(struct swarm *swarm, uint32_t place, bool ready,
                                  struct dpt_err *err)
{
    struct slot *slot = &swarm->slots[place];
    DPT_TRY(rdzv_node_create(&swarm->host, swarm->range.first + (int)place, ++slot->incarnation,
                             ready, &slot->node, err));
    return follow_node(swarm, place, err);
}

static void lose_slot(struct swarm *swarm, int place)
{
    remove_watches(swarm, &swarm->slots[place]);
    rdzv_node_destroy(&swarm->slots[place].node);
    swarm->due_ms[place] = INT64_MAX;
}

/* Breaks the ranks of the nodes that stay. Together they have heard of all of the `n` lost ones. */
static enum dpt_status break_others(struct swarm *swarm, struct rdzv_lost *lost,
                                    const struct rdzv_record *gone, int n, struct dpt_err *err)
{
    for (int i = 0; i < swarm->range.n; i++) {
        if (swarm->slots[i].node == NULL)
            continue;
        lost->first = gone[(swarm->range.first + i) % n].first_rank;
        DPT_TRY(rdzv_node_break(swarm->slots[i].node, lost, err));
        DPT_TRY(follow_node(swarm, (uint32_t)i, err));
    }
    return DPT_OK;
}

static enum dpt_status lose_nodes(struct swarm *swarm, const struct rdzv_command *command,
                                  struct dpt_err *err)
{
    const struct rdzv_record *gone = &swarm->host.shared->nodes[command->first];
    const int ranks_per_node = swarm->host.shared->setup.ranks;
    bool *ranks = calloc(gone->world, sizeof *ranks);
    if (ranks == NULL)
        return dpt_fail_nomem(err, "a world of %u ranks", gone->world);
    for (int i = 0; i < command->count; i++)
        for (int k = 0; k < ranks_per_node; k++)
            ranks[gone[i].first_rank + k] = true;
    for (int i = 0; i < swarm->range.n; i++) {
        const int node = swarm->range.first + i;
        if (node >= command->first && node < command->first + command->count)
            lose_slot(swarm, i);
    }
    struct rdzv_lost lost = {.world = gone->world, .ranks = ranks};
    const enum dpt_status status = break_others(swarm, &lost, gone, command->count, err);
    free(ranks);
    return status;
}

static enum dpt_status join_nodes(struct swarm *swarm, const struct rdzv_command *command,
                                  struct dpt_err *err)
{
    for (int i = 0; i < swarm->range.n; i++) {
        const int node = swarm->range.first + i;
        if (node < command->first || node >= command->first + command->count)
            continue;
        swarm->host.shared->nodes[node] = (struct rdzv_record){0};
        DPT_TRY(start_slot(swarm, (uint32_t)i, true, err));
    }
    return DPT_OK;
}

static enum dpt_status connect_some(struct swarm *swarm, struct dpt_err *err)
{
    for (int i = 0; i < CONNECTS_MAX && swarm->to_connect > 0; i++, swarm->to_connect--)
        DPT_TRY(start_slot(swarm, (uint32_t)(swarm->range.n - swarm->to_connect), false, err));
    return DPT_OK;
}

static enum dpt_status make_all_ready(struct swarm *swarm, struct dpt_err *err)
{
    for (int i = 0; i < swarm->range.n; i++) {
        DPT_TRY(rdzv_node_make_ready(swarm->slots[i].node, err));
        DPT_TRY(follow_node(swarm, (uint32_t)i, err));
    }
    return DPT_OK;
}

static enum dpt_status take_command(struct swarm *swarm, struct dpt_err *err)
{
    struct rdzv_command command;
    const ssize_t bytes = read(swarm->command_fd, &command, sizeof command);
    if (bytes != (ssize_t)sizeof command) { /* the bench has ended */
        swarm->ended = true;
        return DPT_OK;
    }
    switch (command.kind) {
    case RDZV_CONNECT:
        swarm->to_connect = swarm->range.n;
        break;
    case RDZV_READY:
        return make_all_ready(swarm, err);
    case RDZV_LOSE:
        return lose_nodes(swarm, &command, err);
    case RDZV_JOIN:
        return join_nodes(swarm, &command, err);
    case RDZV_END:
        swarm->ended = true;
        break;
    }
    return DPT_OK;
}

/* ---- the loop ---- */

static int64_t next_due_ms(const struct swarm *swarm, int64_t now_ms)
{
    int64_t due_ms = now_ms + IDLE_MS;
    for (int i = 0; i < swarm->range.n; i++)
        if (swarm->due_ms[i] < due_ms)
            due_ms = swarm->due_ms[i];
    return due_ms;
}

static enum dpt_status tick_nodes(struct swarm *swarm, struct dpt_err *err)
{
    const int64_t now_ms = dpt_now_ms();
    for (int i = 0; i < swarm->range.n; i++) {
        if (swarm->due_ms[i] > now_ms)
            continue;
        DPT_TRY(rdzv_node_tick(swarm->slots[i].node, err));
        DPT_TRY(follow_node(swarm, (uint32_t)i, err));
    }
    return DPT_OK;
}

static enum dpt_status do_turn(struct swarm *swarm, struct dpt_err *err)
{
    struct epoll_event events[EVENTS_MAX];
    const int64_t now_ms = dpt_now_ms(),
                  wait_ms = swarm->to_connect > 0 ? 0 : next_due_ms(swarm, now_ms) - now_ms;
    const int n = epoll_wait(swarm->epoll, events, EVENTS_MAX, wait_ms > 0 ? (int)wait_ms : 0);
    if (n < 0 && errno != EINTR)
        return dpt_fail_errno(err, errno, "wait for messages");
    bool commanded = false;
    for (int i = 0; i < n; i++) {
        const uint32_t place = events[i].data.u32;
        commanded = commanded || place == commands_place;
        if (place == commands_place || swarm->slots[place].node == NULL)
            continue;
        DPT_TRY(rdzv_node_read(swarm->slots[place].node, err));
        DPT_TRY(follow_node(swarm, place, err));
    }
    if (commanded)
        DPT_TRY(take_command(swarm, err));
    DPT_TRY(connect_some(swarm, err));
    return swarm->ended ? DPT_OK : tick_nodes(swarm, err);
}

static enum dpt_status open_swarm(struct swarm *swarm, struct dpt_err *err)
{
    swarm->slots = calloc((size_t)swarm->range.n, sizeof *swarm->slots);
    swarm->due_ms = malloc((size_t)swarm->range.n * sizeof *swarm->due_ms);
    swarm->host.buffer = malloc(DPT_MESSAGE_BYTES_MAX);
    if (swarm->slots == NULL || swarm->due_ms == NULL || swarm->host.buffer == NULL)
        return dpt_fail_nomem(err, "%d nodes", swarm->range.n);
    for (int i = 0; i < swarm->range.n; i++)
        memset(swarm->slots[i].fds, 0xff, sizeof swarm->slots[i].fds);
    for (int i = 0; i < swarm->range.n; i++)
        swarm->due_ms[i] = INT64_MAX;
    swarm->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (swarm->epoll < 0)
        return dpt_fail_errno(err, errno, "watch connections");
    DPT_TRY(add_watch(swarm, swarm->command_fd, commands_place, err));
    const struct rdzv_setup *setup = &swarm->host.shared->setup;
    const struct dpt_keyring_options keys = {.token = setup->open ? DPT_KEYRING_NO_KEYS : "",
                                             .endpoint = setup->endpoint};
    DPT_TRY(dpt_keyring_load(&keys, &swarm->host.keys, err));
    return dpt_client_group_create(swarm->range.n, &swarm->host.group, err);
}

static void close_swarm(struct swarm *swarm)
{
    for (int i = 0; swarm->slots != NULL && swarm->due_ms != NULL && i < swarm->range.n; i++)
        lose_slot(swarm, i);
    dpt_client_group_destroy(&swarm->host.group);
    if (swarm->epoll >= 0)
        (void)close(swarm->epoll);
    free(swarm->host.buffer);
    free(swarm->due_ms);
    free(swarm->slots);
}

int rdzv_swarm_run(struct rdzv_shared *shared, int client, int command_fd)
{
    struct rdzv_client *own = &shared->clients[client];
    struct swarm swarm = {.host = {.shared = shared, .client = own},
                          .range = rdzv_range_of(&shared->setup, client),
                          .epoll = -1,
                          .command_fd = command_fd};
    struct dpt_err err;
    enum dpt_status status = open_swarm(&swarm, &err);
    while (status == DPT_OK && !swarm.ended)
        status = do_turn(&swarm, &err);
    close_swarm(&swarm);
    if (status == DPT_OK)
        return 0;
    (void)snprintf(own->error, sizeof own->error, "%s", err.text);
    __atomic_store_n(&own->failed, 1, __ATOMIC_RELEASE);
    return 1;
}
