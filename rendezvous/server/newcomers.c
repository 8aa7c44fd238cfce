/* Connections before their first message. */
#include "rendezvous/server/newcomers.h"

#include <linux/tcp.h>
#include <string.h>
#include <sys/socket.h>

enum { NETWORK_BYTES = 8 }; /* of an IPv6 address: what a stranger has, he has all of */

static bool is_watched(int fd)
{
    return fd >= 0 && fd < DPT_PEERS_FDS_MAX;
}

static bool is_loopback(const struct in6_addr *address)
{
    return IN6_IS_ADDR_LOOPBACK(address) ||
           (IN6_IS_ADDR_V4MAPPED(address) && address->s6_addr[12] == 127);
}

/* What connections of an address have done: new ones, and whether another was heard. */
struct company {
    size_t n_new;
    bool heard;
};

static struct company company_of(const struct dpt_newcomers *newcomers,
                                 const struct in6_addr *address)
{
    struct company company = {0};
    for (int fd = 0; fd < newcomers->fd_end; fd++) {
        const struct dpt_connection *each = &newcomers->fds[fd];
        if (!each->open || memcmp(&each->address, address, sizeof *address) != 0)
            continue;
        company.n_new += !each->heard;
        company.heard = company.heard || each->heard;
    }
    return company;
}

void dpt_newcomers_init(struct dpt_newcomers *newcomers, uint64_t n_descriptors)
{
    const size_t n = n_descriptors < DPT_PEERS_FDS_MAX ? (size_t)n_descriptors : DPT_PEERS_FDS_MAX;
    newcomers->n_max = n / 2 < DPT_NEWCOMERS_MAX ? n / 2 : DPT_NEWCOMERS_MAX;
    newcomers->of_known_max = n / 16;
    newcomers->of_address_max =
        n / 16 < DPT_NEWCOMERS_OF_ADDRESS ? n / 16 : DPT_NEWCOMERS_OF_ADDRESS;
    newcomers->n_share = n / 8;
    newcomers->n_room = n > DPT_GUESTS_SPARE ? n - DPT_GUESTS_SPARE : 0;
}

bool dpt_newcomers_take(struct dpt_newcomers *newcomers, int fd, const struct in6_addr *address,
                        int64_t now_ms)
{
    if (!is_watched(fd))
        return false; /* more descriptors than the server watches */
    bool welcome = newcomers->n_new < newcomers->n_max;
    struct dpt_connection connection = {.open = true, .since_ms = now_ms};
    if (address != NULL)
        connection.address = *address;
    if (!IN6_IS_ADDR_V4MAPPED(&connection.address) && !is_loopback(&connection.address))
        memset(&connection.address.s6_addr[NETWORK_BYTES], 0,
               sizeof connection.address - NETWORK_BYTES);
    if (welcome && newcomers->n_new >= newcomers->of_address_max &&
        !is_loopback(&connection.address)) {
        const struct company company = company_of(newcomers, &connection.address);
        welcome =
            company.n_new < (company.heard ? newcomers->of_known_max : newcomers->of_address_max);
    }
    if (newcomers->fds[fd].open)
        dpt_newcomers_gone(newcomers, fd);
    newcomers->fds[fd] = connection;
    newcomers->n_new++;
    if (fd >= newcomers->fd_end)
        newcomers->fd_end = fd + 1;
    return welcome;
}

int dpt_newcomers_excess(const struct dpt_newcomers *newcomers, size_t n_heard)
{
    int oldest = -1;
    if (newcomers->n_new <= newcomers->n_share || newcomers->n_new + n_heard <= newcomers->n_room)
        return -1;
    for (int fd = 0; fd < newcomers->fd_end; fd++) {
        const struct dpt_connection *each = &newcomers->fds[fd];
        if (each->open && !each->heard &&
            (oldest < 0 || each->since_ms < newcomers->fds[oldest].since_ms))
            oldest = fd;
    }
    return oldest;
}

void dpt_newcomers_heard(struct dpt_newcomers *newcomers, int fd)
{
    if (!is_watched(fd) || !newcomers->fds[fd].open || newcomers->fds[fd].heard)
        return;
    newcomers->fds[fd].heard = true;
    newcomers->n_new--;
}

void dpt_newcomers_gone(struct dpt_newcomers *newcomers, int fd)
{
    if (!is_watched(fd) || !newcomers->fds[fd].open)
        return;
    newcomers->n_new -= !newcomers->fds[fd].heard;
    newcomers->fds[fd].open = false;
    while (newcomers->fd_end > 0 && !newcomers->fds[newcomers->fd_end - 1].open)
        newcomers->fd_end--;
}

void dpt_newcomers_forget(struct dpt_newcomers *newcomers)
{
    memset(newcomers->fds, 0, (size_t)newcomers->fd_end * sizeof newcomers->fds[0]);
    newcomers->fd_end = 0;
    newcomers->n_new = 0;
}

/* ---- sockets ---- */

bool dpt_newcomers_address(int fd, struct in6_addr *ret)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) != 0)
        return false;
    if (address.ss_family == AF_INET6) {
        struct sockaddr_in6 v6;
        memcpy(&v6, &address, sizeof v6);
        *ret = v6.sin6_addr;
        return true;
    }
    if (address.ss_family != AF_INET)
        return false;
    struct sockaddr_in v4;
    memcpy(&v4, &address, sizeof v4);
    *ret = (struct in6_addr)IN6ADDR_ANY_INIT;
    ret->s6_addr[10] = ret->s6_addr[11] = 0xff;
    memcpy(&ret->s6_addr[12], &v4.sin_addr, sizeof v4.sin_addr);
    return true;
}

/* libzmq owns the descriptor, so it is not closed here. If libzmq has just closed it and the kernel
 * has given its number to a later connection, that one is cut off in its place, and its peer
 * connects again. */
void dpt_newcomers_close(int fd)
{
    (void)shutdown(fd, SHUT_RDWR);
}

static uint64_t received_bytes(int fd)
{
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    memset(&info, 0, sizeof info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 ? info.tcpi_bytes_received : 0;
}

void dpt_newcomers_look(struct dpt_newcomers *newcomers, int64_t now_ms)
{
    if (now_ms - newcomers->looked_ms < DPT_NEWCOMERS_LOOK_MS)
        return;
    newcomers->looked_ms = now_ms;
    size_t left = newcomers->n_new;
    for (int fd = 0; fd < newcomers->fd_end && left > 0; fd++) {
        struct dpt_connection *each = &newcomers->fds[fd];
        if (!each->open || each->heard)
            continue;
        left--;
        const bool sent_much = received_bytes(fd) > DPT_NEWCOMER_BYTES_MAX &&
                               !company_of(newcomers, &each->address).heard;
        if ((sent_much && each->suspect) || now_ms - each->since_ms >= DPT_NEWCOMER_MS)
            dpt_newcomers_close(fd);
        each->suspect = sent_much;
    }
}
