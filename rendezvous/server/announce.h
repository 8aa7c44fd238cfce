/* The one screen that dpt-rdzv prints when it listens: where, what to type on the other machines,
 * and which flag opens it to them. */
#ifndef DPT_RENDEZVOUS_SERVER_ANNOUNCE_H
#define DPT_RENDEZVOUS_SERVER_ANNOUNCE_H

#include <stdbool.h>
#include <stddef.h>

enum {
    DPT_ANNOUNCE_ADDRESSES_MAX = 8,
    DPT_ANNOUNCE_ADDRESS_BYTES = 64,
    DPT_ANNOUNCE_TEXT_BYTES = 4096
};

/* An address of this machine that others may reach. */
struct dpt_announce_address {
    char number[DPT_ANNOUNCE_ADDRESS_BYTES]; /* IPv6 in brackets */
    char interface[DPT_ANNOUNCE_ADDRESS_BYTES];
};

struct dpt_announce {
    const char *version, *endpoint; /* HOST:PORT as bound */
    int port;
    bool open;     /* others reach it */
    bool anywhere; /* bound to every address: `addresses` are where */
    struct dpt_announce_address addresses[DPT_ANNOUNCE_ADDRESSES_MAX];
    size_t n_addresses;
};

/* Fills `addresses` with those of interfaces that are up, without loopback and link-local ones;
 * IPv4 before IPv6. None when they cannot be read. */
void dpt_announce_look(struct dpt_announce *announce);

/* The text, with its last newline; cut at DPT_ANNOUNCE_TEXT_BYTES. Pure. */
void dpt_announce_print(const struct dpt_announce *announce, char ret[DPT_ANNOUNCE_TEXT_BYTES]);

#endif
