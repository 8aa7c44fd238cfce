/* The agent's connection to the rendezvous server: one ZeroMQ DEALER.
 *
 * No call waits for the server. The client sends a message if the connection stands and its queue
 * has room, and drops it otherwise. A dropped message does no harm: every message is the sender's
 * whole state, and a later one repeats it. ZeroMQ reconnects by itself. A connection may be dead
 * without either kernel noticing. So the client replaces the socket when nothing has come back over
 * it for `silence_ms`; the server then sees a new peer. One thread uses a client.
 *
 * With keys the connection is encrypted and both ends prove their keys (CURVE). A machine that the
 * server has not admitted yet connects with the key of its token first, asks that its own key be
 * admitted (rendezvous/keys/enroll.h), and connects again with that. */
#ifndef DPT_RENDEZVOUS_CLIENT_CLIENT_H
#define DPT_RENDEZVOUS_CLIENT_CLIENT_H

#include "base/err.h"
#include "rendezvous/keys/keyring.h"
#include "rendezvous/proto/message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_CLIENT_QUEUE_MAX = 16,    /* messages waiting to be sent */
    DPT_CLIENT_RECEIVED_MAX = 64, /* messages waiting to be received */
    DPT_CLIENT_LINGER_MS = 500,   /* destroy waits this long for the last message to leave */
    DPT_CLIENT_ENDPOINT_BYTES = 280,
    DPT_CLIENT_WHY_BYTES = 256,
    DPT_CLIENT_DENIAL_BYTES = 768,
    DPT_CLIENT_PATIENCE_MS = 200, /* after this time without a connection, look for the reason */
    DPT_CLIENT_FDS = 2,
    DPT_CLIENT_GROUP_FDS = 4 /* descriptors that a connected client of a group takes */
};

/* How the user of a program gives a token: only dpt-worker has the option. */
#define DPT_CLIENT_TOKEN_BY "dpt-worker: --rdzv-token; other programs: $DPT_RDZV_TOKEN"

/* The remedy if the server takes connections and sends no message. */
#define DPT_CLIENT_SEE_LOG "see its log (a full disk of its state folder has this effect)"
#define DPT_CLIENT_SILENT                                                                          \
    "the server there takes connections but does not answer: " DPT_CLIENT_SEE_LOG

struct dpt_client;

/* DPT_ECONFIG: the endpoint is not HOST:PORT or [IPV6]:PORT; the text says why. */
DPT_MUST_USE enum dpt_status dpt_client_check_endpoint(const char *endpoint, struct dpt_err *err);

/* Starts connecting to `endpoint` (copied) with `keys` (copied); never waits for the server.
 * silence_ms > 0: time without a message after which the socket is replaced. */
DPT_MUST_USE enum dpt_status dpt_client_create(const char *endpoint, int silence_ms,
                                               const struct dpt_keyring *keys,
                                               struct dpt_client **ret, struct dpt_err *err);

/* Closes within DPT_CLIENT_LINGER_MS; accepts NULL and nulls the pointer. A client of a group
 * returns at once, and its last messages leave within that time. */
void dpt_client_destroy(struct dpt_client **client);

/* What many clients of one process share: one ZeroMQ context, so that a client costs descriptors
 * and no threads. One thread uses the group and its clients. */
struct dpt_client_group;

/* A group of at most `clients_max` clients at a time. */
DPT_MUST_USE enum dpt_status dpt_client_group_create(int clients_max, struct dpt_client_group **ret,
                                                     struct dpt_err *err);

/* Call after its clients are destroyed. Returns within DPT_CLIENT_LINGER_MS; accepts NULL and nulls
 * the pointer. */
void dpt_client_group_destroy(struct dpt_client_group **group);

/* As dpt_client_create. The client borrows `group`. Its calls of dpt_client_tick may begin with the
 * first connection: before it they look for the reason of a failure, with a thread for each
 * client. */
DPT_MUST_USE enum dpt_status dpt_client_create_in(struct dpt_client_group *group,
                                                  const char *endpoint, int silence_ms,
                                                  const struct dpt_keyring *keys,
                                                  struct dpt_client **ret, struct dpt_err *err);

/* Queues one message of at most DPT_MESSAGE_BYTES_MAX bytes. DPT_INPROGRESS: there is no connection
 * or its queue is full; the message was dropped. */
DPT_MUST_USE enum dpt_status dpt_client_send(struct dpt_client *client, const void *message,
                                             size_t bytes, struct dpt_err *err);

enum dpt_client_event_kind {
    DPT_CLIENT_UP,      /* a connection stands: messages are sent from now on */
    DPT_CLIENT_DOWN,    /* the connection ended, or the client replaced it after silence_ms */
    DPT_CLIENT_MESSAGE, /* a message of the server */
    DPT_CLIENT_EVENT_COUNT
};

struct dpt_client_event {
    enum dpt_client_event_kind kind;
    const void *message; /* MESSAGE: owned by the client, valid until the next call */
    size_t bytes;
};

/* The next event; DPT_INPROGRESS: none. Messages of more than one part are dropped. DPT_EPROTO: too
 * many such parts came in a row. DPT_EREFUSED: the server admits neither this machine's key nor its
 * token, and there was no connection before; the text says what to do. DPT_EUNSUPPORTED: libcrypto
 * cannot prove this machine's key. Call until DPT_INPROGRESS before polling: the descriptors are
 * edge-triggered. */
DPT_MUST_USE enum dpt_status dpt_client_next(struct dpt_client *client,
                                             struct dpt_client_event *ret, struct dpt_err *err);

/* Descriptors that become readable when there may be an event. A call of tick or next may change
 * them. */
void dpt_client_fds(const struct dpt_client *client, int ret_fds[DPT_CLIENT_FDS]);

/* The shortest round trip to the server that the kernel measured (TCP_INFO) while the newest
 * connection was made: the handshakes of TCP and of the keys, no message. 0: not known. */
uint32_t dpt_client_round_trip_us(const struct dpt_client *client);

/* The reason why no server answers, and what to do: why no connection was ever made, or that the
 * newest connections stood for silence_ms without a message. "": the server answers, or the reason
 * is not known. */
void dpt_client_why(const struct dpt_client *client, char ret[DPT_CLIENT_WHY_BYTES]);

/* True: the server is there and refuses this machine's key, or has another key than this machine
 * knows, and no connection has been made since; *ret is one line with the remedy. False: *ret is
 * "". */
bool dpt_client_is_denied(const struct dpt_client *client, char ret[DPT_CLIENT_DENIAL_BYTES]);

/* True: the server has announced its next key and does not have it yet. Its change ends the
 * connection for about a second. */
bool dpt_client_awaits_new_key(const struct dpt_client *client);

/* Tells the client the time (monotonic). After silence_ms without a message over a standing
 * connection the client replaces the socket, and dpt_client_next returns DOWN. Call it at least
 * every silence_ms / 4. If the process was suspended between two calls, the silence counts from the
 * later call. */
void dpt_client_tick(struct dpt_client *client, int64_t now_ms);

#endif
