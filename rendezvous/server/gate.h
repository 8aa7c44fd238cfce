/* The gate of the server: which peers get through the handshake of CURVE, and as what.
 *
 * libzmq asks the gate about the key of each new connection (ZAP, ZeroMQ RFC 27) over a socket that
 * the server's loop serves. The gate answers from the lists of the key folder
 * (rendezvous/keys/admission.h), which it reads again when a file changes. The user id of an
 * accepted connection is its public key; libzmq attaches it to each message, so a machine that is
 * denied later is cut off at its next message. One thread uses a gate. */
#ifndef DPT_RENDEZVOUS_SERVER_GATE_H
#define DPT_RENDEZVOUS_SERVER_GATE_H

#include "base/err.h"
#include "rendezvous/keys/admission.h"
#include "rendezvous/keys/keyring.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DPT_GATE_REQUESTS_MAX = 256, /* handshakes judged in one round of the loop */
    DPT_GATE_RELOAD_MS = 500,    /* pause between two looks at the files */
    DPT_GATE_NOTICE_S = 5
};

struct dpt_gate;

/* Reads or draws the keys. embedded: the server of one worker in this process; its keys are drawn
 * in memory, and only that worker has them. Else `key_dir` is that of --key-dir (NULL: the
 * default). DPT_ECONFIG: the folder or a file in it cannot be used. DPT_EUNSUPPORTED: libzmq has no
 * CURVE. */
DPT_MUST_USE enum dpt_status dpt_gate_create(const char *key_dir, bool embedded,
                                             struct dpt_gate **ret, struct dpt_err *err);
/* Closes its socket; accepts NULL and nulls the pointer. To be called before the context ends. */
void dpt_gate_destroy(struct dpt_gate **gate);

/* The keys for a client of this server on the same machine. */
const struct dpt_keyring *dpt_gate_keys(const struct dpt_gate *gate);

/* Gives `router` (not bound yet) the server's key, and binds the socket on which libzmq asks. */
DPT_MUST_USE enum dpt_status dpt_gate_open(struct dpt_gate *gate, void *context, void *router,
                                           struct dpt_err *err);
/* The socket to poll for input. */
void *dpt_gate_socket(const struct dpt_gate *gate);
/* The key that the server will have next, to be told to machines. False: none. *ret_number: that of
 * this key among those of this server, from 1. */
bool dpt_gate_next_key(const struct dpt_gate *gate, struct dpt_key *ret, uint32_t *ret_number);
/* When the time of the next key has come (now_s: seconds since 1970), makes it the server's key:
 * that of connections over the addresses to which `router` is bound from then on. From the first
 * call with a next key on, the server keeps its key for DPT_GATE_NOTICE_S at least, to tell the
 * next one to machines. */
DPT_MUST_USE enum dpt_status dpt_gate_change_key(struct dpt_gate *gate, void *router, int64_t now_s,
                                                 bool *ret_changed, struct dpt_err *err);

/* Answers the waiting questions of libzmq, and reads files that have changed. now_ms: monotonic. */
DPT_MUST_USE enum dpt_status dpt_gate_serve(struct dpt_gate *gate, int64_t now_ms,
                                            struct dpt_err *err);

/* The sender of a message. */
struct dpt_gate_peer {
    enum dpt_right right; /* TOKEN: only dpt_gate_enroll; JOIN, DEFINE: a machine; SPENT: a token
                              that admits nobody any more; else: none */
    struct dpt_key key;
    const char *run; /* the only one in which it may take part; "": every one. Valid until the lists
                        change */
};

/* `user_id`: of the message (zmq_msg_gets "User-Id"); NULL: none. */
void dpt_gate_judge(const struct dpt_gate *gate, const char *user_id, struct dpt_gate_peer *ret);

/* Takes the request of a peer with the key of a token, and writes the answer to it. Returns the
 * answer's size. */
size_t dpt_gate_enroll(struct dpt_gate *gate, const struct dpt_gate_peer *peer, const void *data,
                       size_t bytes, uint8_t ret_answer[DPT_ENROLL_MESSAGE_BYTES_MAX]);

#endif
