/* The text that the server prints when it listens. */
#include "rendezvous/server/announce.h"

#include "base/err.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- this machine's addresses ---- */

/* The numeric address; "" if other machines cannot use it. */
static void print_address(const struct ifaddrs *item, int family,
                          char ret[DPT_ANNOUNCE_ADDRESS_BYTES])
{
    char number[INET6_ADDRSTRLEN] = "";
    ret[0] = '\0';
    if (item->ifa_addr == NULL || item->ifa_addr->sa_family != family ||
        !(item->ifa_flags & IFF_UP) || (item->ifa_flags & IFF_LOOPBACK))
        return;
    if (family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, item->ifa_addr, sizeof v4);
        (void)inet_ntop(AF_INET, &v4.sin_addr, ret, DPT_ANNOUNCE_ADDRESS_BYTES);
        return;
    }
    struct sockaddr_in6 v6;
    memcpy(&v6, item->ifa_addr, sizeof v6);
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) /* needs the name of the other machine's interface */
        return;
    (void)inet_ntop(AF_INET6, &v6.sin6_addr, number, sizeof number);
    (void)snprintf(ret, DPT_ANNOUNCE_ADDRESS_BYTES, "[%s]", number);
}

void dpt_announce_look(struct dpt_announce *announce)
{
    static const int families[] = {AF_INET, AF_INET6};
    struct ifaddrs *list = NULL;
    announce->n_addresses = 0;
    if (getifaddrs(&list) != 0)
        return;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++)
        for (const struct ifaddrs *item = list;
             item != NULL && announce->n_addresses < DPT_ANNOUNCE_ADDRESSES_MAX;
             item = item->ifa_next) {
            struct dpt_announce_address *to = &announce->addresses[announce->n_addresses];
            print_address(item, families[f], to->number);
            (void)snprintf(to->interface, sizeof to->interface, "%s", item->ifa_name);
            announce->n_addresses += to->number[0] != '\0';
        }
    freeifaddrs(list);
}

/* ---- the text ---- */

struct text {
    char *at;
    size_t used;
};

static void add_text(struct text *text, const char *fmt, ...) DPT_PRINTF(2, 3);
static void add_text(struct text *text, const char *fmt, ...)
{
    const size_t room = DPT_ANNOUNCE_TEXT_BYTES - text->used;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text->at + text->used, room, fmt, ap);
    va_end(ap);
    if (n > 0)
        text->used += (size_t)n < room ? (size_t)n : room - 1;
}

static void add_commands(struct text *text, const char *endpoint)
{
    add_text(
        text,
        "    dpt-worker --nnodes 2 --rdzv-endpoint %s --config FILE    # on one\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint %s --rdzv-id RUN    # on the other; RUN: run of "
        "FILE\n",
        endpoint, endpoint);
}

static void add_open(struct text *text, const struct dpt_announce *announce)
{
    char first[DPT_ANNOUNCE_ADDRESS_BYTES + 16];
    add_text(
        text,
        "dpt-rdzv %s listening on %s without keys: whoever reaches it can join and stop runs\n",
        announce->version, announce->endpoint);
    if (!announce->anywhere) {
        add_text(text, "  For a run of two machines:\n");
        add_commands(text, announce->endpoint);
        return;
    }
    for (size_t i = 0; i < announce->n_addresses; i++)
        add_text(text, "%s%s:%d (%s)", i == 0 ? "  Addresses of this machine: " : ", ",
                 announce->addresses[i].number, announce->port, announce->addresses[i].interface);
    add_text(text,
             announce->n_addresses > 0 ? "\n" : "  This machine has no address but localhost.\n");
    add_text(text, "  For a run of two machines:\n");
    (void)snprintf(first, sizeof first, "%s:%d",
                   announce->n_addresses > 0 ? announce->addresses[0].number : "HEAD",
                   announce->port);
    add_commands(text, first);
}

static void add_closed(struct text *text, const struct dpt_announce *announce)
{
    add_text(text, "dpt-rdzv %s listening on %s (this host only; --insecure lets others in)\n",
             announce->version, announce->endpoint);
    add_text(
        text,
        "  On this machine:\n"
        "    dpt-worker --nnodes 1 --rdzv-endpoint %s --config FILE\n"
        "  Other machines cannot connect: there are no keys yet. Inside a network that you trust, "
        "start it so:\n"
        "    dpt-rdzv --port %d --insecure\n"
        "  and on two machines:\n",
        announce->endpoint, announce->port);
    char there[DPT_ANNOUNCE_ADDRESS_BYTES + 16];
    (void)snprintf(there, sizeof there, "%s:%d",
                   announce->n_addresses > 0 ? announce->addresses[0].number : "HEAD",
                   announce->port);
    add_commands(text, there);
}

void dpt_announce_print(const struct dpt_announce *announce, char ret[DPT_ANNOUNCE_TEXT_BYTES])
{
    struct text text = {.at = ret};
    ret[0] = '\0';
    if (announce->open)
        add_open(&text, announce);
    else
        add_closed(&text, announce);
}
