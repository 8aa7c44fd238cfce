/* How the agent's loop reaches the server: a small vtable, so that the loop knows nothing of ZeroMQ
 * (client_transport.c) and tests can put a socket pair in its place. Messages are lost whenever
 * there is no connection; the loop sends its state again. */
#ifndef DPT_WORKER_AGENT_TRANSPORT_H
#define DPT_WORKER_AGENT_TRANSPORT_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DPT_TRANSPORT_FDS_MAX = 2, DPT_TRANSPORT_WHY_BYTES = 256 };

enum dpt_transport_event_kind {
    DPT_TRANSPORT_UP,      /* a connection stands */
    DPT_TRANSPORT_DOWN,    /* it is gone */
    DPT_TRANSPORT_MESSAGE, /* bytes of a ServerState */
    DPT_TRANSPORT_EVENT_COUNT
};

struct dpt_transport_event {
    enum dpt_transport_event_kind kind;
    const void *message; /* MESSAGE: valid until the next call */
    size_t bytes;
};

struct dpt_transport_ops {
    /* Sends one message without waiting; DPT_INPROGRESS: dropped, no connection or no room. */
    enum dpt_status (*send)(void *self, const void *message, size_t bytes, struct dpt_err *err);
    /* The next event; DPT_INPROGRESS: none. Called until then before waiting for `fds`. */
    enum dpt_status (*next)(void *self, struct dpt_transport_event *ret, struct dpt_err *err);
    /* Descriptors that become readable when `next` may have something; returns how many. */
    int (*fds)(void *self, int ret_fds[DPT_TRANSPORT_FDS_MAX]);
    /* Tells the time, every few tens of milliseconds. */
    void (*tick)(void *self, int64_t now_ms);
    /* Why there has been no connection yet, for a person; "" when there was one or nothing is
     * known. NULL: never known. */
    void (*why)(void *self, char ret[DPT_TRANSPORT_WHY_BYTES]);
};

/* Borrowed by the loop. */
struct dpt_transport {
    const struct dpt_transport_ops *ops;
    void *self;
};

struct dpt_client;

/* The transport that is a rendezvous client (borrowed). */
struct dpt_transport dpt_client_transport(struct dpt_client *client);

#endif
