/* The first message of a connection: the dialer's HELLO and the acceptor's WELCOME. Both have 136
 * bytes in the same layout, little-endian. Both name the run, the generation, the sending and the
 * receiving rank, whether ranks relay, and how the bytes that follow are protected. Both have 16
 * random bytes, from which the keys of that are made (protected_records.h).
 *
 * Both carry a code of all that (the first half of HMAC-SHA256) whose key is the plan's nonce. Only
 * ranks of the plan have the nonce: the server sends it over the encrypted control plane, and it
 * does not go over this connection. Whoever can read this network can send a hello again, but only
 * in the same generation and to the same rank, which takes each peer once. */
#ifndef DPT_WORKER_COMM_HANDSHAKE_H
#define DPT_WORKER_COMM_HANDSHAKE_H

#include "worker/comm/comm.h"

enum {
    DPT_HANDSHAKE_BYTES = 136,
    DPT_HANDSHAKE_VERSION = 4,
    DPT_HANDSHAKE_SALT_AT = 56, /* the random bytes */
    DPT_HANDSHAKE_SALT_BYTES = 16
};
enum dpt_handshake_kind { DPT_HANDSHAKE_DIALER = 1, DPT_HANDSHAKE_WELCOME };

/* `salt`: the random bytes. */
void dpt_handshake_encode(const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind, int to,
                          const uint8_t salt[DPT_HANDSHAKE_SALT_BYTES],
                          uint8_t ret_bytes[DPT_HANDSHAKE_BYTES]);

/* True if the bytes are a hello of this kind to this rank, with this run, generation, world and
 * protection, made with this nonce. *ret_from gets the sender's rank. */
bool dpt_handshake_check(const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind,
                         const uint8_t bytes[DPT_HANDSHAKE_BYTES], int *ret_from);

/* Sends a hello with new random bytes, which *ret_sent gets; never blocks. False: it was not sent
 * whole; errno has the reason. */
bool dpt_handshake_send(int fd, const struct dpt_comm_spec *spec, enum dpt_handshake_kind kind,
                        int to, uint8_t ret_sent[DPT_HANDSHAKE_BYTES]);

/* Receives the rest of a hello, of which *got bytes have arrived. Never blocks. `one_packet`: a
 * hello that does not arrive in one packet is ill-formed. Returns 1: complete, 0: not yet, -1:
 * closed or ill-formed. */
int dpt_handshake_receive(int fd, bool one_packet, uint8_t hello[DPT_HANDSHAKE_BYTES], size_t *got);

#endif
