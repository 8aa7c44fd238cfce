/* Chooses the host's address for peers. Connecting a UDP socket gives the route without sending a
 * packet. */
#include "worker/agent/node_address.h"

#include "base/parse.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PROBE_MS = 200 };

static bool is_loopback_address(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *number = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(number) ||
           (IN6_IS_ADDR_V4MAPPED(number) && number->s6_addr[12] == 127);
}

static void format_address(const struct sockaddr *address, char ret[DPT_ADDRESS_BYTES])
{
    const void *number = address->sa_family == AF_INET
                             ? (const void *)&((const struct sockaddr_in *)address)->sin_addr
                             : (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr;
    const char *text = inet_ntop(address->sa_family, number, ret, DPT_ADDRESS_BYTES);
    DPT_ASSERT(text != NULL);
}

/* The grade of an address: the smallest is the best. -1: peers cannot use the address. */
static int grade_address(const struct sockaddr *address)
{
    if (address == NULL)
        return -1;
    if (address->sa_family == AF_INET)
        return 0;
    if (address->sa_family != AF_INET6 ||
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)address)->sin6_addr))
        return -1;
    return 1;
}

static enum dpt_status find_address_of_interface(const char *interface, char ret[DPT_ADDRESS_BYTES],
                                                 struct dpt_err *err)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return dpt_fail_errno(err, errno, "list network interfaces");
    char names[256] = "";
    const struct sockaddr *best = NULL;
    for (const struct ifaddrs *entry = list; entry != NULL; entry = entry->ifa_next) {
        int here = grade_address(entry->ifa_addr);
        if (here < 0)
            continue;
        size_t used = strlen(names);
        (void)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                       entry->ifa_name);
        if (strcmp(entry->ifa_name, interface) == 0 && (best == NULL || here < grade_address(best)))
            best = entry->ifa_addr;
    }
    if (best != NULL)
        format_address(best, ret);
    freeifaddrs(list);
    if (best != NULL)
        return DPT_OK;
    return dpt_fail(err, DPT_ECONFIG,
                    "cluster.interface '%s' is not an interface with an address (there are: %s)",
                    interface, names);
}

/* Finds the local address of the route to `to`. False: there is no route. */
static bool route_from(const struct sockaddr *to, socklen_t to_bytes, struct sockaddr_storage *ret)
{
    int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    socklen_t bytes = sizeof *ret;
    bool found =
        connect(fd, to, to_bytes) == 0 && getsockname(fd, (struct sockaddr *)ret, &bytes) == 0;
    close(fd);
    return found;
}

/* Whether a server accepts TCP connections at this host's `address`. The packets stay on this host,
 * so PROBE_MS is long enough for the answer. */
static bool accepts_at(const struct sockaddr_storage *address, const char *port)
{
    struct sockaddr_storage target = *address;
    /* getaddrinfo has accepted `port` with AI_NUMERICSERV, so it is a number. */
    in_port_t number = htons((uint16_t)strtol(port, NULL, 10));
    bool v4 = target.ss_family == AF_INET;
    if (v4)
        ((struct sockaddr_in *)&target)->sin_port = number;
    else
        ((struct sockaddr_in6 *)&target)->sin6_port = number;
    int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    socklen_t bytes = v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    bool connected = connect(fd, (struct sockaddr *)&target, bytes) == 0;
    if (!connected && errno == EINPROGRESS) {
        struct pollfd item = {.fd = fd, .events = POLLOUT};
        int failed = 1;
        socklen_t failed_bytes = sizeof failed;
        connected = poll(&item, 1, PROBE_MS) == 1 &&
                    getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &failed_bytes) == 0 &&
                    failed == 0;
    }
    close(fd);
    return connected;
}

/* Finds this host's address towards other hosts. False: there is none, or the server does not
 * accept connections at it. */
static bool find_own_address(const char *port, struct sockaddr_storage *ret)
{
    /* Addresses in other networks than this host's: TEST-NET-3 (RFC 5737) and the documentation
     * prefix (RFC 3849). */
    static const char *const outside[] = {"203.0.113.1", "2001:db8::1"};
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM,
                                   .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        struct sockaddr_storage from = {0};
        struct addrinfo *list;
        if (getaddrinfo(outside[i], "9", &hints, &list) != 0)
            continue;
        found = route_from(list->ai_addr, list->ai_addrlen, &from) && !is_loopback_address(&from) &&
                accepts_at(&from, port);
        freeaddrinfo(list);
        if (found)
            *ret = from;
    }
    return found;
}

enum dpt_status dpt_node_address_explain(const char *interface, const char *endpoint,
                                         char ret[DPT_ADDRESS_BYTES],
                                         enum dpt_address_reason *ret_reason, struct dpt_err *err)
{
    *ret_reason = DPT_ADDRESS_NAMED;
    if (interface[0] != '\0')
        return find_address_of_interface(interface, ret, err);
    struct dpt_endpoint server;
    if (dpt_split_endpoint(endpoint, &server, err) != DPT_OK)
        return dpt_wrap(err, DPT_ECONFIG, "rendezvous endpoint");
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list;
    int failed = getaddrinfo(server.host, server.port, &hints, &list);
    if (failed != 0)
        return dpt_fail(err, DPT_ECONFIG, "rendezvous endpoint '%s': %s", endpoint,
                        gai_strerror(failed));
    struct sockaddr_storage from = {0};
    bool found = false;
    for (const struct addrinfo *entry = list; entry != NULL && !found; entry = entry->ai_next)
        found = route_from(entry->ai_addr, entry->ai_addrlen, &from);
    freeaddrinfo(list);
    if (!found)
        return dpt_fail(
            err, DPT_ECONFIG,
            "no route to the server at %s; cluster.interface names the interface to use", endpoint);
    *ret_reason = DPT_ADDRESS_ROUTE;
    if (is_loopback_address(&from)) {
        struct sockaddr_storage own = {0};
        const bool outward = find_own_address(server.port, &own);
        if (outward)
            from = own;
        *ret_reason = outward ? DPT_ADDRESS_OUTWARD : DPT_ADDRESS_LOOPBACK;
    }
    format_address((struct sockaddr *)&from, ret);
    return DPT_OK;
}

enum dpt_status dpt_node_address_find(const char *interface, const char *endpoint,
                                      char ret[DPT_ADDRESS_BYTES], struct dpt_err *err)
{
    enum dpt_address_reason ignored;
    return dpt_node_address_explain(interface, endpoint, ret, &ignored, err);
}
