/* The text that the server prints when it listens. */
#include "rendezvous/server/announce.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

/* ---- this machine's addresses ---- */

/* Writes the numeric address; "" if other machines cannot use it. */
static void print_address(const struct ifaddrs *item, int family,
                          char ret[DPT_ANNOUNCE_ADDRESS_BYTES])
{
    const bool v6 = family == AF_INET6;
    const socklen_t bytes = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    char number[DPT_ANNOUNCE_ADDRESS_BYTES - 2]; /* a longer address names an interface */
    ret[0] = '\0';
    if (item->ifa_addr == NULL || item->ifa_addr->sa_family != family ||
        !(item->ifa_flags & IFF_UP) || (item->ifa_flags & IFF_LOOPBACK) ||
        getnameinfo(item->ifa_addr, bytes, number, sizeof number, NULL, 0, NI_NUMERICHOST) != 0 ||
        strchr(number, '%') != NULL) /* link-local: needs the other machine's interface name */
        return;
    (void)snprintf(ret, DPT_ANNOUNCE_ADDRESS_BYTES, "%s%s%s", v6 ? "[" : "", number, v6 ? "]" : "");
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

/* Prints the commands for two machines. If `endpoint` is NULL, the server's address comes from
 * `announce`. */
static void print_commands(FILE *out, const struct dpt_announce *announce, const char *endpoint)
{
    char first[DPT_ANNOUNCE_ADDRESS_BYTES + 16];
    (void)snprintf(first, sizeof first, "%s:%d",
                   announce->n_addresses > 0 ? announce->addresses[0].number : "HEAD",
                   announce->port);
    endpoint = endpoint != NULL ? endpoint : first;
    (void)fprintf(
        out,
        "    dpt-worker --nnodes 2 --rdzv-endpoint %s --config FILE    # on one\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint %s --rdzv-id RUN    # on the other; RUN: run "
        "of FILE\n",
        endpoint, endpoint);
}

static void print_open(FILE *out, const struct dpt_announce *announce)
{
    (void)fprintf(out,
                  "dpt-rdzv %s listening on %s without keys: any process that reaches it can join "
                  "and stop runs\n",
                  announce->version, announce->endpoint);
    for (size_t i = 0; announce->anywhere && i < announce->n_addresses; i++)
        (void)fprintf(out, "%s%s:%d (%s)", i == 0 ? "  Addresses of this machine: " : ", ",
                      announce->addresses[i].number, announce->port,
                      announce->addresses[i].interface);
    if (announce->anywhere)
        (void)fputs(announce->n_addresses > 0 ? "\n"
                                              : "  This machine has no address but localhost.\n",
                    out);
    (void)fputs("  For a run of two machines:\n", out);
    print_commands(out, announce, announce->anywhere ? NULL : announce->endpoint);
}

static void print_closed(FILE *out, const struct dpt_announce *announce)
{
    (void)fprintf(
        out,
        "dpt-rdzv %s listening on %s (this host only; --insecure lets others in)\n"
        "  On this machine:\n"
        "    dpt-worker --nnodes 1 --rdzv-endpoint %s --config FILE\n"
        "  Other machines cannot connect: there are no keys yet. Inside a network that you "
        "trust, start it so:\n"
        "    dpt-rdzv --port %d --insecure\n"
        "  and on two machines:\n",
        announce->version, announce->endpoint, announce->endpoint, announce->port);
    print_commands(out, announce, NULL);
}

void dpt_announce_print(const struct dpt_announce *announce, FILE *out)
{
    if (announce->open)
        print_open(out, announce);
    else
        print_closed(out, announce);
}
