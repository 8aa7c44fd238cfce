/* Creation of a communicator's connections: the higher rank of each pair dials the lower one
 * (comm.h).
 *
 *     dialer:    IDLE ──connect──► CONNECTING ──HELLO──► GREETED ──WELCOME──► link
 *                 ▲ refused, closed: again after a pause  │
 *                 └───────────────────────────────────────┘
 *     acceptor:  accept ──► half-open ──right HELLO──► WELCOME, link     (anything else: closed)
 *
 * A peer that has not begun to create this generation leaves the connection in its backlog. A peer
 * of another generation closes it. Then the dialer tries again until the deadline. So no connection
 * is kept between generations, and nothing of a stranger is remembered. A listener exists before
 * its address is published, so a peer that refuses connections for REFUSED_MS is dead.
 *
 * The acceptor detects a dead dialer in the same way: after PROBE_AFTER_MS the acceptor dials too,
 * sends nothing, and holds the connection, which the peer keeps among its half-open ones. */
#include "worker/comm/relay.h"

#include "base/clock.h"
#include "worker/comm/handshake.h"
#include "worker/comm/socket_address.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    RETRY_MS = 5,
    REFUSED_MS = 60,
    PROBE_AFTER_MS = 20,
    STRANGERS_MAX = 64, /* half-open connections besides one a peer; the oldest is closed */
    ACCEPTS_MAX = 64    /* connections taken in a row from one socket */
};

enum dial_state { DIAL_IDLE /* no socket */, DIAL_CONNECTING, DIAL_GREETED, DIAL_HELD };

/* The attempt to reach one peer. With relays a peer of this host may have two, one for a trunk. */
struct dial {
    const struct dpt_comm_peer *peer;
    struct dpt_conn *link; /* NULL: not connected yet */
    struct dpt_address address;
    enum dial_state state;
    int fd;
    bool shm, probe; /* probe: the peer has to dial; this only detects its death */
    int64_t next_ms, refused_since_ms;
    int last_errno;
    uint8_t sent[DPT_HANDSHAKE_BYTES], hello[DPT_HANDSHAKE_BYTES];
    size_t got;
};

/* An accepted connection whose hello is not complete. */
struct half {
    int fd;
    bool shm;
    uint8_t hello[DPT_HANDSHAKE_BYTES];
    size_t got;
};

struct creation {
    const struct dpt_comm_spec *spec;
    struct dpt_comm *comm;
    int64_t start_ms;
    struct dial *dials; /* [n_dials] */
    int n_dials;
    struct half *halves; /* oldest first */
    int n_halves, halves_max;
    struct pollfd *pollfds;
};

/* The connection fd of this dial is complete. `got`: the hello or welcome of its peer, which got
 * dial->sent. */
static enum dpt_status add_link(struct creation *c, struct dial *dial, int fd,
                                const uint8_t got[DPT_HANDSHAKE_BYTES], struct dpt_err *err)
{
    const int rank = dial->peer->rank;
    struct router *router = c->comm->router;
    dial->link = dial->shm        ? dpt_shm_link_create(c->comm, rank, fd, err)
                 : router != NULL ? dpt_router_connect(router, rank, fd, err)
                                  : dpt_tcp_link_create(c->comm, rank, fd, err);
    if (dial->link == NULL) {
        close(fd);
        return DPT_EIO;
    }
    if (dial->shm || router == NULL)
        dpt_comm_add_link(c->comm, dial->link);
    if (!dial->shm)
        DPT_TRY(dpt_comm_protect(c->comm, c->spec, dial->sent, got, &dial->link->wire, err));
    return dial->link->ops->send(dial->link, err);
}

/* Dialing. */

static void dial_again(struct dial *dial, int64_t now, int saved_errno)
{
    if (dial->state != DIAL_IDLE)
        close(dial->fd);
    dial->state = DIAL_IDLE;
    dial->next_ms = now + RETRY_MS;
    dial->last_errno = saved_errno;
}

static enum dpt_status dial_refused(struct creation *c, struct dial *dial, int64_t now,
                                    struct dpt_err *err)
{
    dial_again(dial, now, ECONNREFUSED);
    if (dial->refused_since_ms < 0)
        dial->refused_since_ms = now;
    if (now - dial->refused_since_ms < REFUSED_MS)
        return DPT_OK;
    c->comm->suspect = dial->peer->rank;
    return dpt_fail(err, DPT_EPEER, "rank %d is lost: its process listens no more",
                    dial->peer->rank);
}

static enum dpt_status dial_connected(struct creation *c, struct dial *dial, int64_t now,
                                      struct dpt_err *err)
{
    if (!dial->shm && dpt_socket_is_own_echo(dial->fd))
        return dial_refused(c, dial, now, err);
    dial->refused_since_ms = -1;
    dial->got = 0;
    dial->state = dial->probe ? DIAL_HELD : DIAL_GREETED;
    if (dial->shm && !dpt_socket_same_user(dial->fd))
        dial_again(dial, now, EPERM);
    else if (!dial->probe && !dpt_handshake_send(dial->fd, c->spec, DPT_HANDSHAKE_DIALER,
                                                 dial->peer->rank, dial->sent))
        dial_again(dial, now, errno);
    return DPT_OK;
}

/* `connect_errno`: the result of connect(), 0 for success. */
static enum dpt_status dial_connect_result(struct creation *c, struct dial *dial, int connect_errno,
                                           int64_t now, struct dpt_err *err)
{
    if (connect_errno == 0)
        return dial_connected(c, dial, now, err);
    if (connect_errno == ECONNREFUSED)
        return dial_refused(c, dial, now, err);
    if (connect_errno != EINPROGRESS)
        dial_again(dial, now, connect_errno);
    return DPT_OK;
}

static enum dpt_status start_dial(struct creation *c, struct dial *dial, int64_t now,
                                  struct dpt_err *err)
{
    const int type = (dial->shm ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC;
    dial->fd = socket(dial->address.addr.ss_family, type, 0);
    if (dial->fd < 0)
        return dpt_fail_errno(err, errno, "a socket to reach rank %d", dial->peer->rank);
    dial->state = DIAL_CONNECTING;
    const int rc = connect(dial->fd, (struct sockaddr *)&dial->address.addr, dial->address.len);
    return dial_connect_result(c, dial, rc == 0 ? 0 : errno, now, err);
}

static enum dpt_status finish_connect(struct creation *c, struct dial *dial, int64_t now,
                                      struct dpt_err *err)
{
    int so_error = 0;
    socklen_t len = sizeof so_error;
    if (getsockopt(dial->fd, SOL_SOCKET, SO_ERROR, &so_error, &len) != 0)
        so_error = errno;
    return dial_connect_result(c, dial, so_error, now, err);
}

static enum dpt_status dial_event(struct creation *c, struct dial *dial, int64_t now,
                                  struct dpt_err *err)
{
    if (dial->state == DIAL_CONNECTING)
        return finish_connect(c, dial, now, err);
    const int whole = dpt_handshake_receive(dial->fd, dial->shm, dial->hello, &dial->got);
    if (whole == 0)
        return DPT_OK;
    int from = -1;
    if (whole < 0 || dial->state == DIAL_HELD ||
        !dpt_handshake_check(c->spec, DPT_HANDSHAKE_WELCOME, dial->hello, &from) ||
        from != dial->peer->rank) {
        dial_again(dial, now, ECONNRESET);
        return DPT_OK;
    }
    dial->state = DIAL_IDLE;
    return add_link(c, dial, dial->fd, dial->hello, err);
}

static enum dpt_status start_dials(struct creation *c, int64_t now, struct dpt_err *err)
{
    for (int i = 0; i < c->n_dials; i++) {
        struct dial *dial = &c->dials[i];
        if (dial->link == NULL && dial->state == DIAL_IDLE && now >= dial->next_ms)
            DPT_TRY(start_dial(c, dial, now, err));
    }
    return DPT_OK;
}

/* Accepting. */

static struct dial *dial_of(struct creation *c, int rank, bool shm)
{
    for (int i = 0; i < c->n_dials; i++)
        if (c->dials[i].peer->rank == rank && c->dials[i].shm == shm)
            return &c->dials[i];
    return NULL;
}

static void drop_half(struct creation *c, int i, bool close_fd)
{
    if (close_fd)
        close(c->halves[i].fd);
    c->n_halves--;
    memmove(&c->halves[i], &c->halves[i + 1], (size_t)(c->n_halves - i) * sizeof c->halves[0]);
}

/* Reads from a half-open connection. True: it is welcomed or closed, and no longer half-open. */
static bool half_event(struct creation *c, int i, enum dpt_status *ret_status, struct dpt_err *err)
{
    struct half *half = &c->halves[i];
    const int whole = dpt_handshake_receive(half->fd, half->shm, half->hello, &half->got);
    if (whole == 0)
        return false;
    int from = -1;
    struct dial *dial = NULL;
    if (whole > 0 && dpt_handshake_check(c->spec, DPT_HANDSHAKE_DIALER, half->hello, &from))
        dial = dial_of(c, from, half->shm);
    const bool welcome = dial != NULL && dial->probe && dial->link == NULL;
    const struct half kept = *half;
    drop_half(c, i, !welcome);
    if (welcome) {
        if (dial->state != DIAL_IDLE)
            close(dial->fd);
        dial->state = DIAL_IDLE;
        /* If this fails, the dialer has given up; the link will read its end. */
        (void)!dpt_handshake_send(kept.fd, c->spec, DPT_HANDSHAKE_WELCOME, from, dial->sent);
        *ret_status = add_link(c, dial, kept.fd, kept.hello, err);
    }
    return true;
}

static enum dpt_status accept_some(struct creation *c, int listen_fd, bool shm, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < ACCEPTS_MAX && status == DPT_OK; i++) {
        const int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR))
            return DPT_OK;
        if (fd < 0)
            return dpt_fail_errno(err, errno, "accept a peer");
        if (shm && !dpt_socket_same_user(fd)) {
            close(fd);
            continue;
        }
        if (c->n_halves == c->halves_max)
            drop_half(c, 0, true);
        c->halves[c->n_halves++] = (struct half){.fd = fd, .shm = shm};
        (void)half_event(c, c->n_halves - 1, &status, err);
    }
    return status;
}

static bool all_links_ready(const struct creation *c)
{
    for (int i = 0; i < c->n_dials; i++)
        if (c->dials[i].link == NULL || !c->dials[i].link->ready)
            return false;
    return true;
}

static int next_wait_ms(const struct creation *c, int64_t now, int64_t link_deadline_ms)
{
    int64_t next = c->start_ms + c->spec->timeout_ms;
    if (link_deadline_ms < next)
        next = link_deadline_ms;
    for (int i = 0; i < c->n_dials; i++) {
        const struct dial *dial = &c->dials[i];
        if (dial->link == NULL && dial->state == DIAL_IDLE && dial->next_ms < next)
            next = dial->next_ms;
    }
    return next <= now ? 0 : (int)(next - now);
}

static enum dpt_status timed_out(struct creation *c, struct dpt_err *err)
{
    int missing = 0;
    const struct dial *first = NULL;
    for (int i = 0; i < c->n_dials; i++) {
        const struct dpt_conn *link = c->dials[i].link;
        if (link != NULL && link->ready)
            continue;
        missing++;
        if (first == NULL)
            first = &c->dials[i];
    }
    DPT_ASSERT(first != NULL);
    c->comm->suspect = first->peer->rank;
    return dpt_fail(err, DPT_ETIMEOUT,
                    "no connection with rank %d at %s within %d ms (%s); %d of %d peers missing",
                    first->peer->rank, first->shm ? first->peer->shm_addr : first->peer->tcp_addr,
                    c->spec->timeout_ms,
                    first->last_errno != 0 ? strerror(first->last_errno) : "no answer", missing,
                    c->n_dials);
}

/* Fills the descriptors to wait for: abort, two listeners, links, dials, halves, in this order. */
static nfds_t fill_pollfds(struct creation *c, int abort_fd)
{
    nfds_t n = 0;
    c->pollfds[n++] = (struct pollfd){.fd = abort_fd, .events = POLLIN};
    c->pollfds[n++] = (struct pollfd){.fd = c->comm->listener->shm_fd, .events = POLLIN};
    c->pollfds[n++] = (struct pollfd){.fd = c->comm->listener->tcp_fd, .events = POLLIN};
    for (int i = 0; i < c->comm->n_links; i++) {
        const struct dpt_conn *link = c->comm->links[i];
        c->pollfds[n++] = (struct pollfd){.fd = link->gone || link->doubtful ? -1 : link->fd,
                                          .events = (short)link->ops->interest(link)};
    }
    for (int i = 0; i < c->n_dials; i++) {
        const struct dial *dial = &c->dials[i];
        c->pollfds[n++] =
            (struct pollfd){.fd = dial->state == DIAL_IDLE ? -1 : dial->fd,
                            .events = dial->state == DIAL_CONNECTING ? POLLOUT : POLLIN};
    }
    for (int i = 0; i < c->n_halves; i++)
        c->pollfds[n++] = (struct pollfd){.fd = c->halves[i].fd, .events = POLLIN};
    return n;
}

static enum dpt_status handle_poll_events(struct creation *c, int64_t now, struct dpt_err *err)
{
    const struct pollfd *at = c->pollfds + 3;
    const int n_links = c->comm->n_links, n_halves = c->n_halves;
    for (int i = 0; i < n_links; i++, at++) {
        if (at->revents == 0)
            continue;
        c->comm->links[i]->readable = true;
        DPT_TRY(c->comm->links[i]->ops->receive(c->comm->links[i], err));
        DPT_TRY(c->comm->links[i]->ops->send(c->comm->links[i], err));
    }
    for (int i = 0; i < c->n_dials; i++, at++)
        if (at->revents != 0)
            DPT_TRY(dial_event(c, &c->dials[i], now, err));
    at += n_halves;
    for (int i = n_halves - 1; i >= 0; i--) { /* from the end: handling an entry moves later ones */
        enum dpt_status status = DPT_OK;
        at--;
        if (at->revents != 0 && half_event(c, i, &status, err) && status != DPT_OK)
            return status;
    }
    if (c->pollfds[1].revents != 0)
        DPT_TRY(accept_some(c, c->comm->listener->shm_fd, true, err));
    if (c->pollfds[2].revents != 0)
        DPT_TRY(accept_some(c, c->comm->listener->tcp_fd, false, err));
    return DPT_OK;
}

static enum dpt_status connect_all_peers(struct creation *c, int abort_fd, struct dpt_err *err)
{
    while (!all_links_ready(c)) {
        int64_t now = dpt_now_ms();
        if (now >= c->start_ms + c->spec->timeout_ms)
            return timed_out(c, err);
        DPT_TRY(start_dials(c, now, err));
        int64_t deadline;
        DPT_TRY(dpt_comm_check_deadlines(c->comm, now, &deadline, err));
        const nfds_t n = fill_pollfds(c, abort_fd);
        const int ready = poll(c->pollfds, n, next_wait_ms(c, now, deadline));
        if (ready < 0 && errno != EINTR)
            return dpt_fail_errno(err, errno, "wait for peers");
        if (ready <= 0)
            continue;
        if (c->pollfds[0].revents != 0)
            return dpt_fail(err, DPT_EABORTED, "aborted while connecting to peers");
        now = dpt_now_ms();
        DPT_TRY(handle_poll_events(c, now, err));
    }
    for (int i = 0; i < c->comm->n_links; i++)
        DPT_TRY(dpt_conn_watch(c->comm->links[i], err));
    return DPT_OK;
}

static enum dpt_status check_spec(const struct dpt_comm_spec *spec, struct dpt_err *err)
{
    if (spec->world_size < 1 || spec->world_size > DPT_COMM_WORLD_MAX || spec->rank < 0 ||
        spec->rank >= spec->world_size || spec->n_peers < 0 || spec->n_peers >= spec->world_size ||
        spec->timeout_ms < 1 || spec->mesh_max < 0 ||
        (!dpt_route_is_mesh(spec->world_size, spec->mesh_max) &&
         spec->n_peers != spec->world_size - 1) ||
        memchr(spec->run, '\0', sizeof spec->run) == NULL)
        return dpt_fail(err, DPT_EINVAL, "communicator of rank %d of %d with %d peers", spec->rank,
                        spec->world_size, spec->n_peers);
    for (int i = 0; i < spec->n_peers; i++) {
        const int rank = spec->peers[i].rank;
        bool twice = false;
        for (int j = 0; j < i; j++)
            twice |= spec->peers[j].rank == rank;
        if (rank < 0 || rank >= spec->world_size || rank == spec->rank || twice)
            return dpt_fail(err, DPT_EINVAL, "rank %d is no peer of rank %d, or is listed twice",
                            rank, spec->rank);
    }
    return DPT_OK;
}

static enum dpt_status add_dial(struct creation *c, const struct dpt_comm_peer *peer, bool shm,
                                struct dpt_err *err)
{
    struct dial *dial = &c->dials[c->n_dials++];
    const bool probe = peer->rank > c->spec->rank;
    *dial = (struct dial){.peer = peer,
                          .shm = shm,
                          .probe = probe,
                          .next_ms = c->start_ms + (probe ? PROBE_AFTER_MS : 0),
                          .refused_since_ms = -1};
    const char *address = shm ? peer->shm_addr : peer->tcp_addr;
    if (dpt_address_parse(address, &dial->address, err) != DPT_OK)
        return dpt_wrap(err, DPT_EINVAL, "address of rank %d", peer->rank);
    return DPT_OK;
}

static enum dpt_status prepare_dials(struct creation *c, struct dpt_err *err)
{
    const struct dpt_comm_spec *spec = c->spec;
    const bool relays = c->comm->router != NULL;
    const size_t dials = (size_t)spec->n_peers + (relays ? DPT_ROUTE_LINKS_MAX : 0),
                 links = dials + (relays ? (size_t)spec->n_peers : 0); /* of them, and flows */
    c->halves_max = (int)dials + STRANGERS_MAX;
    c->dials = calloc(dials + 1, sizeof *c->dials);
    c->halves = calloc((size_t)c->halves_max + 1, sizeof *c->halves);
    c->pollfds = calloc(3 + links + dials + (size_t)c->halves_max, sizeof *c->pollfds);
    if (c->dials == NULL || c->halves == NULL || c->pollfds == NULL)
        return dpt_fail_nomem(err, "connections to %d peers", spec->n_peers);
    for (int i = 0; i < spec->n_peers; i++) {
        const struct dpt_comm_peer *peer = &spec->peers[i];
        const bool near = peer->host == spec->host;
        if (near)
            DPT_TRY(add_dial(c, peer, true, err));
        if (relays ? dpt_route_is_link(spec->world_size, spec->rank, peer->rank) : !near)
            DPT_TRY(add_dial(c, peer, false, err));
    }
    return DPT_OK;
}

/* A peer that this rank greeted may answer later. The goodbye tells it why this rank closed. */
static void say_goodbye(struct creation *c, struct dial *dial)
{
    struct dpt_wire *wire = NULL;
    if (!dial->shm) /* if it fails, the peer does not understand the goodbye */
        (void)!dpt_comm_protect(c->comm, c->spec, dial->sent, NULL, &wire, NULL);
    if (!dial->shm && c->comm->router != NULL) {
        dpt_trunk_refuse(dial->fd, wire, c->comm->suspect);
        return;
    }
    struct dpt_conn *link = (dial->shm ? dpt_shm_link_create : dpt_tcp_link_create)(
        c->comm, dial->peer->rank, dial->fd, NULL);
    if (link == NULL) {
        close(dial->fd);
        return;
    }
    link->wire = wire;
    link->ops->destroy(link, GOODBYE_FAILED, c->comm->suspect);
}

static void clear_creation(struct creation *c)
{
    for (int i = 0; c->dials != NULL && i < c->n_dials; i++) {
        if (c->dials[i].state == DIAL_GREETED)
            say_goodbye(c, &c->dials[i]);
        else if (c->dials[i].state != DIAL_IDLE)
            close(c->dials[i].fd);
    }
    while (c->n_halves > 0)
        drop_half(c, c->n_halves - 1, true);
    free(c->dials);
    free(c->halves);
    free(c->pollfds);
}

enum dpt_status dpt_comm_create(struct dpt_comm_listener *listener,
                                const struct dpt_comm_spec *spec, int abort_fd,
                                struct dpt_comm **ret, int *ret_suspect, struct dpt_err *err)
{
    DPT_TRY(check_spec(spec, err));
    if (listener->network != NULL)
        return listener->network->create(listener, spec, abort_fd, ret, ret_suspect, err);
    struct dpt_err failure = {0};
    struct creation c = {.spec = spec, .start_ms = dpt_now_ms()};
    DPT_TRY(dpt_comm_alloc(listener, spec, &c.comm, err));
    enum dpt_status status = prepare_dials(&c, &failure);
    if (status == DPT_OK)
        status = connect_all_peers(&c, abort_fd, &failure);
    clear_creation(&c);
    if (status == DPT_OK) {
        *ret = c.comm;
        return DPT_OK;
    }
    if (ret_suspect != NULL)
        *ret_suspect = c.comm->suspect;
    status = dpt_comm_keep_failure(c.comm, &failure, err);
    dpt_comm_destroy(&c.comm);
    return status;
}
