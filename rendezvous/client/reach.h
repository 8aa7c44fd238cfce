/* Why a server cannot be reached, in words for a person: a thread of its own looks the host's name
 * up and tries to connect, again and again, because ZeroMQ retries without saying why. */
#ifndef DPT_RENDEZVOUS_CLIENT_REACH_H
#define DPT_RENDEZVOUS_CLIENT_REACH_H

#include "base/err.h"

enum {
    DPT_REACH_TEXT_BYTES = 256,
    DPT_REACH_EVERY_MS = 2000,   /* pause between two attempts */
    DPT_REACH_ANSWER_MS = 2000,  /* an address that has not answered by then is silent */
    DPT_REACH_LOOKUP_MS = 700,   /* a name that is looked up for longer is said to be */
    DPT_REACH_ADDRESSES_MAX = 4, /* of one name, tried in each attempt */
    DPT_REACH_HOST_BYTES = 256
};

struct dpt_reach;

/* Starts looking. `endpoint`: HOST:PORT or [IPV6]:PORT, as dpt_client_check_endpoint takes it. */
DPT_MUST_USE enum dpt_status dpt_reach_start(const char *endpoint, struct dpt_reach **ret,
                                             struct dpt_err *err);

/* The newest finding: what is wrong and what to do; "" while nothing is known. Any thread; never
 * waits. */
void dpt_reach_text(struct dpt_reach *reach, char ret[DPT_REACH_TEXT_BYTES]);

/* Ends it without waiting: the thread may hang in a name server's silence, and ends after that.
 * Accepts NULL and nulls the pointer. */
void dpt_reach_stop(struct dpt_reach **reach);

#endif
