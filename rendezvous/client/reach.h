/* The reason why a server cannot be reached, as a text. A thread looks the host's name up and tries
 * to connect, repeatedly, because ZeroMQ retries without giving a reason. It reads the greeting of
 * a server (ZeroMQ RFC 23), which says whether the server has keys. */
#ifndef DPT_RENDEZVOUS_CLIENT_REACH_H
#define DPT_RENDEZVOUS_CLIENT_REACH_H

#include "rendezvous/client/client.h"

enum {
    DPT_REACH_EVERY_MS = 2000,   /* pause between two attempts */
    DPT_REACH_GREETING_MS = 700, /* a program that has not greeted by then is no server */
    DPT_REACH_ANSWER_MS = 2000,  /* an address that has not answered by then is silent */
    DPT_REACH_LOOKUP_MS = 700,   /* a lookup that takes longer is reported */
    DPT_REACH_ADDRESSES_MAX = 4  /* addresses of a name that an attempt tries */
};

struct dpt_reach;

/* Starts looking. `endpoint`: HOST:PORT or [IPV6]:PORT, as dpt_client_check_endpoint takes it.
 * `keys`: those with which the client connects; only read in this call. */
DPT_MUST_USE enum dpt_status dpt_reach_start(const char *endpoint, const struct dpt_keyring *keys,
                                             struct dpt_reach **ret, struct dpt_err *err);

/* The newest result: what is wrong and what to do; "" while nothing is known. Any thread. Does not
 * block. */
void dpt_reach_text(struct dpt_reach *reach, char ret[DPT_CLIENT_WHY_BYTES]);

/* Stops the search. Does not wait for the thread, which ends after its present attempt. Accepts
 * NULL and nulls the pointer. */
void dpt_reach_stop(struct dpt_reach **reach);

#endif
