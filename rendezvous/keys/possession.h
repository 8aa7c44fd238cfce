/* The proof, in a request to admit a key (enroll.h), that its sender has the secret key. Else the
 * owner of a token could have the public key of another machine admitted: with fewer rights than
 * that machine's own token gives, or for one run only, or under a false name.
 *
 * The proof is an HMAC-SHA256. Its key is the secret that machine and server share by
 * Diffie-Hellman (X25519, RFC 7748, section 6.1): the machine computes it from its secret key and
 * the server's public key, and the server from its own secret key and the machine's public key.
 * Only these two can make the proof. Its message has the public keys of server, token and machine,
 * and the machine's name, so it serves for no other request. It needs no challenge: the request
 * goes over a connection that is encrypted for the server, so only these two ever have it. */
#ifndef DPT_RENDEZVOUS_KEYS_POSSESSION_H
#define DPT_RENDEZVOUS_KEYS_POSSESSION_H

#include "base/err.h"
#include "rendezvous/keys/enroll.h"
#include "rendezvous/keys/key.h"

/* Writes request->proof. machine_secret: that of request->key; server, token: the public keys of
 * the server and of the token's pair. DPT_EREFUSED: `server` is the public key of no pair.
 * DPT_EUNSUPPORTED: libcrypto has no X25519. */
DPT_MUST_USE enum dpt_status dpt_possession_prove(struct dpt_enroll_request *request,
                                                  const struct dpt_key *machine_secret,
                                                  const struct dpt_key *server,
                                                  const struct dpt_key *token, struct dpt_err *err);

/* Checks request->proof. token: the public key of the connection over which the request came.
 * DPT_EREFUSED: the proof is another one; the text says what to do. DPT_EUNSUPPORTED: as above. */
DPT_MUST_USE enum dpt_status dpt_possession_check(const struct dpt_enroll_request *request,
                                                  const struct dpt_key_pair *server,
                                                  const struct dpt_key *token, struct dpt_err *err);

#endif
