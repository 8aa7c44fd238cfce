/* The text that dpt-rdzv prints when it listens: its addresses, and the commands for the other
 * machines with the token that admits them. */
#ifndef DPT_RENDEZVOUS_SERVER_ANNOUNCE_H
#define DPT_RENDEZVOUS_SERVER_ANNOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { DPT_ANNOUNCE_ADDRESSES_MAX = 8, DPT_ANNOUNCE_ADDRESS_BYTES = 64 };

/* An address of this machine that other machines may reach. */
struct dpt_announce_address {
    char number[DPT_ANNOUNCE_ADDRESS_BYTES]; /* IPv6 in brackets */
    char interface[DPT_ANNOUNCE_ADDRESS_BYTES];
};

struct dpt_announce {
    const char *version, *endpoint; /* HOST:PORT as bound */
    int port;
    bool anywhere;        /* bound to every address; `addresses` lists the machine's addresses */
    const char *token;    /* NULL: the server has no keys */
    unsigned token_uses;  /* machines that the token still admits; 0: there is no token */
    int64_t token_ends_s; /* seconds since 1970; it admits nobody from then on */
    bool waits_for_key;   /* there is no token, because the server's next key is due */
    const char *key_folder;
    bool is_default_folder; /* --key-dir need not name it */
    struct dpt_announce_address addresses[DPT_ANNOUNCE_ADDRESSES_MAX];
    size_t n_addresses;
};

/* Fills `addresses` from the interfaces that are up, without loopback and link-local addresses;
 * IPv4 before IPv6. If the interfaces cannot be read, there are no addresses. */
void dpt_announce_look(struct dpt_announce *announce);

/* Writes the first line of a server without keys; the caller checks `out` for errors. */
void dpt_announce_no_keys(FILE *out);

/* Writes the text; the caller checks `out` for errors. */
void dpt_announce_print(const struct dpt_announce *announce, FILE *out);

#endif
