/* Key pairs, by libzmq (which calls libsodium). */
#ifndef DPT_RENDEZVOUS_KEYS_CURVE_H
#define DPT_RENDEZVOUS_KEYS_CURVE_H

#include "base/err.h"
#include "rendezvous/keys/key.h"

/* DPT_EUNSUPPORTED: this libzmq was built without CURVE. */
DPT_MUST_USE enum dpt_status dpt_curve_check(struct dpt_err *err);

/* Draws a new pair from the system's random source. */
DPT_MUST_USE enum dpt_status dpt_curve_draw(struct dpt_key_pair *ret, struct dpt_err *err);

/* The pair of a secret key. Any 32 bytes are a secret key (RFC 7748, section 5). */
DPT_MUST_USE enum dpt_status dpt_curve_pair(const struct dpt_key *secret_key,
                                            struct dpt_key_pair *ret, struct dpt_err *err);

#endif
