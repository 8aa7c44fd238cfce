/* Key pairs by libzmq, whose functions use text in Z85 (ZeroMQ RFC 32). */
#include "rendezvous/keys/curve.h"

#include <string.h>
#include <zmq.h>

enum { Z85_BYTES = 41 };

enum dpt_status dpt_curve_check(struct dpt_err *err)
{
    if (zmq_has("curve") == 1)
        return DPT_OK;
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "this libzmq was built without CURVE, so there are no keys: install the "
                    "distribution's libzmq5, or use no keys (dpt-rdzv --open, dpt-worker "
                    "--rdzv-token none) inside a network that you trust");
}

static enum dpt_status decode_z85(const char text[Z85_BYTES], struct dpt_key *ret,
                                  struct dpt_err *err)
{
    if (zmq_z85_decode(ret->bytes, text) == NULL)
        return dpt_fail(err, DPT_EIO, "libzmq gave a key that is no Z85 text");
    return DPT_OK;
}

enum dpt_status dpt_curve_draw(struct dpt_key_pair *ret, struct dpt_err *err)
{
    char public_text[Z85_BYTES], secret_text[Z85_BYTES];
    struct dpt_key_pair pair;
    DPT_TRY(dpt_curve_check(err));
    if (zmq_curve_keypair(public_text, secret_text) != 0)
        return dpt_fail(err, DPT_EIO, "draw a key pair: %s", zmq_strerror(zmq_errno()));
    DPT_TRY(decode_z85(public_text, &pair.public_key, err));
    DPT_TRY(decode_z85(secret_text, &pair.secret_key, err));
    *ret = pair;
    return DPT_OK;
}

enum dpt_status dpt_curve_pair(const struct dpt_key *secret_key, struct dpt_key_pair *ret,
                               struct dpt_err *err)
{
    char public_text[Z85_BYTES], secret_text[Z85_BYTES];
    struct dpt_key_pair pair = {.secret_key = *secret_key};
    DPT_TRY(dpt_curve_check(err));
    if (zmq_z85_encode(secret_text, secret_key->bytes, DPT_KEY_BYTES) == NULL ||
        zmq_curve_public(public_text, secret_text) != 0)
        return dpt_fail(err, DPT_EIO, "public key of a secret key: %s", zmq_strerror(zmq_errno()));
    DPT_TRY(decode_z85(public_text, &pair.public_key, err));
    *ret = pair;
    return DPT_OK;
}
