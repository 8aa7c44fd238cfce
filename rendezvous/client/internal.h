/* Shared by the files of the client. Lowest first:
 *
 *   socket.c      the ZeroMQ sockets          client.c    events, time
 *   key_change.c  a key that is not known     reach.c     the reason why there is no connection */
#ifndef DPT_RENDEZVOUS_CLIENT_INTERNAL_H
#define DPT_RENDEZVOUS_CLIENT_INTERNAL_H

#include "rendezvous/client/client.h"
#include "rendezvous/client/reach.h"

#include <zmq.h>

/* The newest TCP connection. */
struct client_link {
    int fd;                 /* ZeroMQ owns it; -1: none */
    uint32_t round_trip_us; /* 0: not known */
};

/* Handshakes that failed without a word since the last connection. */
struct client_failures {
    unsigned n;
    int64_t newest_ms;
    char cause[DPT_CLIENT_WHY_BYTES]; /* newest known cause; "": unknown */
};

/* Connections over which nothing comes. */
struct client_silence {
    bool answered;      /* a message has come over the newest connection */
    int64_t gave_up_ms; /* when a connection without a message was given up; 0: none, or long ago */
};

struct dpt_client {
    void *context, *socket;
    bool borrows_context;                    /* that of a group */
    void *monitor;                           /* reports the start and the end of the connection */
    char address[DPT_CLIENT_ENDPOINT_BYTES]; /* tcp://… */
    int silence_ms;
    int fds[DPT_CLIENT_FDS];
    uint32_t sockets; /* number of sockets opened so far; part of a monitor's name */
    bool up;
    struct client_link newest;
    bool gave_up;      /* the socket was replaced, and DOWN is still to be returned */
    zmq_msg_t message; /* received last */
    bool heard;        /* a message or a connection came since the last tick */
    int64_t last_heard_ms, last_tick_ms;
    int64_t first_tick_ms; /* -1: there was no tick */
    bool was_up, looked;   /* a connection was made; the search for a reason was started */
    struct client_silence silence;
    struct dpt_keyring keys;
    bool enrolling;   /* the socket has the key of the token */
    bool asked_token; /* the token was tried */
    bool token_spent; /* the token admits nobody any more */
    bool with_next;   /* the socket expects the server's next key */
    bool swapped;     /* the next socket expects the other one of the server's two keys */
    bool ended;       /* the socket's session has ended: ZeroMQ makes no new connection */
    int64_t ended_ms; /* end of the socket's session */
    bool refused;     /* the server no longer admits this machine's key */
    struct client_failures failures;
    struct dpt_reach *reach; /* search for the reason, until a connection is made; else NULL */
};

/* ---- socket.c ---- */

enum dpt_status client_fail_zmq(struct dpt_err *err, const char *what);
/* HOST:PORT */
const char *client_endpoint(const struct dpt_client *client);
DPT_MUST_USE enum dpt_status client_open_socket(struct dpt_client *client, struct dpt_err *err);
void client_close_socket(struct dpt_client *client, int linger_ms);
/* Reads round_trip_us from the kernel. */
void client_measure_link(struct dpt_client *client);
/* ZeroMQ ends a session whose handshake was refused or ill-formed. A later tick replaces it. */
void client_note_end(struct dpt_client *client);
/* If no socket can be opened (descriptors may run out for a time), the next tick tries again. */
void client_replace_socket(struct dpt_client *client);
/* DPT_INPROGRESS: no whole message has arrived. */
DPT_MUST_USE enum dpt_status client_receive(struct dpt_client *client, struct dpt_client_event *ret,
                                            struct dpt_err *err);

/* ---- key_change.c ---- */

/* The handshake has failed without a word: a server with another key ends the connection so. If it
 * may have another key, that one is tried. */
void client_handshake_failed(struct dpt_client *client);
/* The connection stands, so the server has the key that the socket expects. If that is the next
 * one, the earlier one is trusted no more. If the server knows this machine although it is not
 * noted, it is noted. */
void client_settle_keys(struct dpt_client *client);
/* True: the message announces the server's next key, which is kept for later. */
bool client_take_next_key(struct dpt_client *client, const struct dpt_client_event *event);

/* The server has refused the key of the socket; `spent`: as that of a spent token. A machine that
 * has a token tries both keys: the server may have forgotten the machine, or the token.
 * DPT_ECONFIG: it admits none. */
DPT_MUST_USE enum dpt_status client_change_refused_key(struct dpt_client *client, bool spent,
                                                       struct dpt_err *err);
/* Over a connection with the token's key. An answer that is lost is asked for again after
 * silence_ms, over a new socket. DPT_EUNSUPPORTED: libcrypto cannot prove the key. */
DPT_MUST_USE enum dpt_status client_request_admission(struct dpt_client *client,
                                                      struct dpt_err *err);
/* DPT_INPROGRESS: no answer has come, or the machine is admitted and connects with its key. */
DPT_MUST_USE enum dpt_status client_take_admission(struct dpt_client *client, struct dpt_err *err);

#endif
