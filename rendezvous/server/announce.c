/* The text that the server prints when it listens. */
#include "rendezvous/server/announce.h"

#include "base/utc.h"

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

/* Prints the commands for two machines. If the server is bound to every address, its first address
 * is named. The second worker takes --nnodes from the run: the first may have been started with
 * another. */
static void print_commands(FILE *out, const struct dpt_announce *announce)
{
    char first[DPT_ANNOUNCE_ADDRESS_BYTES + 16];
    (void)snprintf(first, sizeof first, "%s:%d",
                   announce->n_addresses > 0 ? announce->addresses[0].number : "HEAD",
                   announce->port);
    const char *endpoint = announce->anywhere ? first : announce->endpoint;
    const char *token = announce->token != NULL ? announce->token : "none";
    (void)fprintf(
        out,
        "  For a run of two machines:\n"
        "    dpt-worker --nnodes 2 --rdzv-endpoint %s --rdzv-token %s --config FILE    # on one\n"
        "    dpt-worker --rdzv-endpoint %s --rdzv-token %s --rdzv-id RUN    # on the other; RUN: "
        "run of FILE\n",
        endpoint, token, endpoint, token);
}

static void print_addresses(FILE *out, const struct dpt_announce *announce)
{
    for (size_t i = 0; announce->anywhere && i < announce->n_addresses; i++)
        (void)fprintf(out, "%s%s:%d (%s)", i == 0 ? "  Addresses of this machine: " : ", ",
                      announce->addresses[i].number, announce->port,
                      announce->addresses[i].interface);
    if (announce->anywhere)
        (void)fputs(announce->n_addresses > 0 ? "\n"
                                              : "  This machine has no address but localhost.\n",
                    out);
}

/* The command that makes another token of this server, as a shell reads it. */
static void print_new_token(FILE *out, const struct dpt_announce *announce)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./";
    const char *at = announce->key_folder;
    (void)fputs("    dpt-rdzv --new-token", out);
    if (announce->is_default_folder)
        return;
    (void)fputs(" --key-dir ", out);
    if (at[strspn(at, plain)] == '\0') {
        (void)fputs(at, out);
        return;
    }
    (void)fputc('\'', out);
    for (; *at != '\0'; at++)
        if (*at == '\'')
            (void)fputs("'\\''", out);
        else
            (void)fputc(*at, out);
    (void)fputc('\'', out);
}

static void print_token(FILE *out, const struct dpt_announce *announce)
{
    char until[DPT_UTC_TEXT_BYTES];
    dpt_utc_text(announce->token_ends_s, until);
    if (announce->waits_for_key)
        (void)fputs("  TOKEN: none is made before the server has its next key. When its log says "
                    "that it has a new key, make one:\n",
                    out);
    else if (announce->token_uses == 0)
        (void)fputs("  TOKEN: one of those in the file 'tokens', which has as many as it may. "
                    "Remove some, then make another:\n",
                    out);
    else
        (void)fprintf(out,
                      "  The token admits %u more machine%s until %s, each once and for all. "
                      "Another:\n",
                      announce->token_uses, announce->token_uses == 1 ? "" : "s", until);
    print_new_token(out, announce);
    (void)fprintf(out, "\n  Processes with the key folder %s need no token.\n",
                  announce->key_folder);
}

void dpt_announce_no_keys(FILE *out)
{
    (void)fputs("WARNING: no keys (--open): any process that reaches the port can join, read and "
                "stop runs, and choose the paths of workers without a config\n",
                out);
}

void dpt_announce_print(const struct dpt_announce *announce, FILE *out)
{
    (void)fprintf(out, "dpt-rdzv %s listening on %s %s\n", announce->version, announce->endpoint,
                  announce->token != NULL ? "with keys" : "without keys");
    print_addresses(out, announce);
    print_commands(out, announce);
    if (announce->token != NULL)
        print_token(out, announce);
}
